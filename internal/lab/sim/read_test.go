package sim

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func read(text string) *Trace { return rig.Must(ReadTrace("x", strings.NewReader(text))) }

func TestReadMooncake(t *testing.T) {
	trace := read(`{"timestamp": 0, "input_length": 1050, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 520, "output_length": 1, "hash_ids": [0, 9]}
`)
	require.Equal(t, MooncakeTick, trace.Spread)
	require.Equal(t, Record{InputTokens: 1050, OutputTokens: 500, Blocks: []uint64{0, 1, 2}, BlockTokens: 512}, trace.Records[0])
	source := rig.Must(trace.Start(1))
	at, ok := source.Next()
	require.True(t, ok)
	require.Less(t, at, MooncakeTick)
	first := source.Take()
	at, _ = source.Next()
	require.True(t, at >= MooncakeTick && at < 2*MooncakeTick)
	second := source.Take()
	// 65 full blocks of 16 in 1,050 tokens; 32 in 520, all of them from the shared block of 512.
	require.Len(t, first.Blocks, 65)
	require.Len(t, second.Blocks, 32)
	require.Equal(t, first.Blocks[:32], second.Blocks)
	_, ok = source.Next()
	require.False(t, ok)

	// Times off the tick are taken as they are.
	require.Zero(t, read(`{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []}
{"timestamp": 7, "input_length": 1, "output_length": 1, "hash_ids": []}`).Spread)
}

func TestReadAzure(t *testing.T) {
	trace := read("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
	require.Equal(t, []Record{
		{InputTokens: 374, OutputTokens: 44},
		{ArrivalMillis: 4314.579, InputTokens: 396, OutputTokens: 109},
	}, trace.Records)
}

// Scaled by three: requests come in a third of the time, with unchanged targets.
func TestRateScale(t *testing.T) {
	trace := &Trace{Name: "x", RateScale: 3, Records: []Record{
		{InputTokens: 40, OutputTokens: 3},
		{ArrivalMillis: 1.5, InputTokens: 1, OutputTokens: 1, TTFTTargetMillis: 100},
	}}
	source := rig.Must(trace.Start(0))
	source.Take()
	at, _ := source.Next()
	require.Equal(t, 500*time.Microsecond, at)
	require.Equal(t, 100*time.Millisecond, source.Take().SLO.TTFT)
}

func zipped(t *testing.T, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	rig.Must(w.Write([]byte(text)))
	require.NoError(t, w.Close())
	return b.String()
}

const (
	mooncakeRow   = `{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[0]}` + "\n"
	azureHead     = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	azureRow      = "2023-11-16 18:15:46.68,374,44\n"
	vllmHead      = "input_tokens,output_tokens,queued_s,scheduled_s,first_token_s,last_token_s\n"
	vllmRow       = "1,2,0,0,1,2\n"
	recordingLine = `{"time":"2026-01-02T03:04:05Z","status":"completed","e2e_ms":1,"input_tokens":1,"output_tokens":1,"attempts":1}` + "\n"
)

func TestBrokenTraces(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{"", "sim: x:1: is in no known format (mooncake, azure, recording, vllm)"},
		{azureHead, "sim: x: has no requests"},
		{mooncakeRow + `{"timestamp":0,"input_length":10`, "sim: x:2: can't be read: unexpected end of JSON input"},
		{mooncakeRow + `{"timestamp":0,"input_length":5,"output_length":0}`, "sim: x:2: OutputTokens 0 is not within [1, 16777216]"},
		{mooncakeRow + `{"timestamp":0,"input_length":5}`, "sim: x:2: output_length is missing"},
		{mooncakeRow + `{"timestamp":0,"input_length":"many","output_length":1}`, "sim: x:2: input_length is a string"},
		{mooncakeRow + `{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[-1]}`, "sim: x:2: hash_ids is a number -1"},
		{mooncakeRow + `{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1,2]}`, "sim: x:2: Blocks has 2 blocks of 512 tokens for a prompt of 5"},
		{azureHead + azureRow + "\n1,\"a\n\nb\"c,3", `sim: x:6: is not a row: extraneous or missing " in quoted-field`},
		{azureHead + "yesterday,374,1\n", `sim: x:2: TIMESTAMP "yesterday" is no time`},
		{azureHead + "2023-11-16 18:15:46.68,1,1\n2023-11-16 18:15:45.68,1,1\n", "sim: x:3: ArrivalMillis -1000 is not within [0, 2.592e+09]"},
		{"TIMESTAMP,Tokens,GeneratedTokens\n", `sim: x:1: ContextTokens is missing, there is "Tokens"`},
		{vllmHead + "1,1,0,0,nan,1\n", "sim: x:2: FirstTokenMillis NaN is not within [0, 2.592e+09]"},
		{vllmHead + "1,1,0,0,2,1\n", "sim: x:2: LastTokenMillis is before the first token"},
		{vllmHead + "1.5,1,0,0,1,1\n", `sim: x:2: input_tokens "1.5" is no whole number`},
		{mooncakeRow + "[]", "sim: x:2: can't be read: json: cannot unmarshal array into Go value of type sim.mooncakeLine"},
		{recordingLine + "\n\n" + strings.Replace(recordingLine, `"e2e_ms":1`, `"e2e_ms":3e9`, 1), "sim: x:4: LastTokenMillis 3e+09 is not within [0, 2.592e+09]"},
		{recordingLine + strings.Replace(recordingLine, "-01-", "-06-", 1), "sim: x:2: ArrivalMillis 1.30464e+10 is not within [0, 2.592e+09]"},
		{recordingLine + strings.Replace(recordingLine, `"input_tokens":1`, `"input_tokens":-1`, 1), "sim: x:2: input_tokens is negative"},
		{recordingLine + strings.Replace(recordingLine, `"input_tokens":1`, `"input_tokens":99999999`, 1), "sim: x:2: InputTokens 99999999 is not within [1, 16777216]"},
		{recordingLine + strings.Replace(recordingLine, `"input_tokens":1`, `"input_tokens":20,"blocks":["1f"]`, 1), "sim: x:2: block_tokens 0 is out of range"},
		{recordingLine + strings.Replace(recordingLine, `"time":`, `"when":`, 1), "sim: x:2: time is missing"},
		{recordingLine + "{", "sim: x:2: can't be read: unexpected end of JSON input"},
		{"\x1f\x8bnonsense", "sim: x: can't be unpacked: gzip: invalid header"},
		{zipped(t, azureHead+azureRow+"x\n"), "sim: x:3: is not a row: wrong number of fields"},
	} {
		_, err := ReadTrace("x", strings.NewReader(c.text))
		require.EqualError(t, err, c.err, "%q", c.text)
		require.ErrorAs(t, err, new(*TraceError))
	}
	require.ErrorContains(t, rig.Err(OpenTrace("no such file")), "sim: open no such file")
}

// A read error is reported, not taken for the end of a shorter trace, whatever
// the file contains, in whatever way the reader returns it, and even if the reader later forgets it.
func TestReadErrorsAreNotAnEnd(t *testing.T) {
	broke := errors.New("broke")
	for name, text := range map[string]string{
		"mooncake": mooncakeRow + mooncakeRow, "azure": azureHead + azureRow, "vllm": vllmHead + vllmRow,
		"recording": recordingLine + recordingLine,
	} {
		rig.Must(ReadTrace(name, strings.NewReader(text)))
		rig.Must(ReadTrace(name, strings.NewReader(zipped(t, text))))
		for n := range len(text) {
			for how, r := range map[string]io.Reader{
				"after the data":  io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(broke)),
				"once, then more": &oneError{text: text[:n], err: broke, more: text[n:]},
			} {
				_, err := ReadTrace(name, r)
				var bad *TraceError
				require.ErrorAs(t, err, &bad, "%s, %d bytes, %s", name, n, how)
				require.ErrorIs(t, err, broke, "%s, %d bytes, %s", name, n, how)
				require.Equal(t, 1+strings.Count(text[:n], "\n"), bad.Line, "%s, %d bytes, %s", name, n, how)
			}
		}
		packed := zipped(t, text)
		for n := 10; n < len(packed); n++ {
			require.ErrorIs(t, rig.Err(ReadTrace(name, strings.NewReader(packed[:n]))), io.ErrUnexpectedEOF, "%s, %d bytes", name, n)
		}
	}
}

// oneError fails once, together with its text, and then continues as if nothing had happened.
type oneError struct {
	text, more string
	err        error
}

func (r *oneError) Read(p []byte) (int, error) {
	n := copy(p, r.text)
	if r.text = r.text[n:]; r.text != "" || r.err == nil {
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
	err := r.err
	r.text, r.err = r.more, nil
	return n, err
}

// Whatever the text, in each of the formats: an error with the number of an existing line, or a workload that can be run.
func FuzzReadTrace(f *testing.F) {
	heads := []string{mooncakeRow, azureHead, vllmHead, recordingLine}
	for i, row := range []string{mooncakeRow, azureRow, vllmRow, recordingLine} {
		f.Add(i, []byte(row+"\n"+row))
		f.Add(i, []byte(strings.Replace(row, "1", "-1", 1)))
		f.Add(i, []byte(strings.ReplaceAll(row, "1", "1e30")))
		f.Add(i, []byte("\"\n"))
	}
	f.Fuzz(func(t *testing.T, format int, rows []byte) {
		text := heads[uint(format)%uint(len(heads))] + string(rows)
		trace, err := ReadTrace("x", strings.NewReader(text))
		if err != nil {
			var bad *TraceError
			require.ErrorAs(t, err, &bad)
			require.LessOrEqual(t, bad.Line, 1+strings.Count(text, "\n"))
			return
		}
		work := 0
		for i := range trace.Records {
			work += trace.Records[i].InputTokens
		}
		if work > 1<<20 {
			return
		}
		source := rig.Must(trace.Start(1))
		last, n := time.Duration(0), 0
		for at, ok := source.Next(); ok; at, ok = source.Next() {
			require.GreaterOrEqual(t, at, last, "out of order")
			last = at
			n++
			source.Take()
		}
		require.Equal(t, len(trace.Records), n)
	})
}

// recorded writes a recording as a gateway does.
func recorded(t *testing.T, records ...recording.Request) string {
	var b bytes.Buffer
	write, end := recording.NewWriter(&b)
	for _, r := range records {
		write(r)
	}
	require.NoError(t, end())
	return b.String()
}

func TestReadRecording(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ttft, cached := 120.0, 32
	text := recorded(t,
		recording.Request{
			Time: start.Add(2 * time.Second), TTFTMillis: &ttft, E2EMillis: 900, Model: "m", Status: "completed", Endpoint: "a",
			InputTokens: 70, OutputTokens: 5, CachedTokens: &cached, Blocks: []recording.Hash{7, 8, 9, 10}, BlockTokens: 16,
			Tenant: 0xabc, Session: 0xdef, Priority: -1, SLOTTFTMillis: 300, SLOTPOTMillis: 40,
		},
		recording.Request{Time: start, E2EMillis: 50, Status: "completed", InputTokens: 10, OutputTokens: 1},
		recording.Request{Time: start.Add(-time.Second), E2EMillis: 3, Status: "failed", InputTokens: 10},
	)
	trace := rig.Must(ReadTrace("day.jsonl", strings.NewReader(text)))
	require.Len(t, trace.Records, 2, "what brought no token is left out")
	r := trace.Records[0]
	assert.Equal(t, []float64{3000, 3120, 3900}, []float64{r.ArrivalMillis, r.FirstTokenMillis, r.LastTokenMillis}, "times count from the earliest request")
	assert.Equal(t, 32, *r.CachedTokens)
	assert.Equal(t, []any{"abc", "def", -1, 300.0, 40.0}, []any{r.Tenant, r.Session, r.Priority, r.TTFTTargetMillis, r.TPOTTargetMillis})
	assert.Len(t, r.Blocks, 4)
	assert.Zero(t, trace.Records[1].FirstTokenMillis, "a response that did not stream has none")
	assert.Equal(t, []bool{false, true}, []bool{trace.Records[0].request().Whole, trace.Records[1].request().Whole})
	assert.Nil(t, trace.Records[1].CachedTokens)
}

// A first token noted after the end counts as coming with it. Each model has its own ratio of tokens to blocks.
func TestRecordingsOfModels(t *testing.T) {
	ttft, cached := 900.5, 1001
	of := func(model string, blockTokens float64) recording.Request {
		return recording.Request{
			Time: time.Unix(1, 0), TTFTMillis: &ttft, E2EMillis: 900, Model: model, Status: "completed", InputTokens: 1000, OutputTokens: 5,
			CachedTokens: &cached, Blocks: []recording.Hash{1, 2, 3, 4}, BlockTokens: blockTokens,
		}
	}
	trace := rig.Must(ReadTrace("day.jsonl", strings.NewReader(recorded(t, of("a", 11), of("b", 64), of("a", 13), of("c", 16)))))
	var blocks []int
	for _, r := range trace.Records {
		blocks = append(blocks, len(r.Blocks))
		assert.Equal(t, r.LastTokenMillis, r.FirstTokenMillis)
		assert.Equal(t, 1000, *r.CachedTokens, "no more than there are")
	}
	assert.Equal(t, []int{3, 16, 3, 4}, blocks)
}

// Blocks of 12 tokens: a block of 16 is known when both of the blocks it spans are.
func TestRecut(t *testing.T) {
	ids := recut([]recording.Hash{1, 2, 3, 4}, 12, 100)
	require.Len(t, ids, 3, "4 blocks of 12 tokens fill 3 of 16")
	same := recut([]recording.Hash{1, 2, 3, 5}, 12, 100)
	assert.Equal(t, ids[:2], same[:2], "tokens 0 to 31 lie in blocks 0 to 2")
	assert.NotEqual(t, ids[2], same[2], "tokens 32 to 47 end in block 3")
	assert.Len(t, recut([]recording.Hash{1, 2, 3, 4}, 12, 2), 2)
	long := recut([]recording.Hash{1, 2}, 64, 100)
	require.Len(t, long, 8)
	assert.NotEqual(t, long[0], long[1], "pieces of one block differ")
	assert.Equal(t, recut([]recording.Hash{1, 2}, 16, 2), recut([]recording.Hash{1, 2}, 16-1e-12, 2), "a mean is rounded")
}

// Responses that did not stream have no first token to be compared.
func TestAssessWithoutStreaming(t *testing.T) {
	observed := []Record{
		{ArrivalMillis: 0, InputTokens: 10, OutputTokens: 11, FirstTokenMillis: 100, LastTokenMillis: 300},
		{ArrivalMillis: 1000, InputTokens: 10, OutputTokens: 11, LastTokenMillis: 1400},
	}
	simulated := []Record{
		{ArrivalMillis: 0, InputTokens: 10, OutputTokens: 11, FirstTokenMillis: 150, LastTokenMillis: 320},
		{ArrivalMillis: 1000, InputTokens: 10, OutputTokens: 11, FirstTokenMillis: 1100, LastTokenMillis: 1500},
	}
	f := rig.Must(Assess(observed, simulated))
	assert.InDelta(t, 0.5, f.TTFT.MAPE, 1e-9, "100 → 150 ms")
	assert.InDelta(t, 0.15, f.ITL.MAPE, 1e-9, "20 → 17 ms")
	assert.InDelta(t, (20.0/300+100.0/400)/2, f.E2E.MAPE, 1e-9)
}

// Requests go to the ranks in turn, and each rank serves its own.
func TestReplayOnRanks(t *testing.T) {
	records := make([]Record, 6)
	for i := range records {
		records[i] = Record{InputTokens: 100, OutputTokens: 5}
	}
	profile := rig.Must(engine.ProfileByName("llama-3.1-8b-h100"))
	for ranks := range 4 { // 0 is one
		got := rig.Must(Replay(records, Deployment{Ranks: ranks, Engine: engine.Config{Profile: profile, MaxSequences: 1}}))
		ranks = max(ranks, 1)
		for i, r := range got {
			if i < ranks {
				assert.Equal(t, got[0].FirstTokenMillis, r.FirstTokenMillis)
			} else {
				assert.GreaterOrEqual(t, r.FirstTokenMillis, got[i-ranks].LastTokenMillis, "%d of %d", i, ranks)
				assert.Equal(t, got[i/ranks*ranks].LastTokenMillis, r.LastTokenMillis)
			}
			assert.Less(t, r.FirstTokenMillis, r.LastTokenMillis)
			assert.Zero(t, *r.CachedTokens)
		}
	}
	assert.EqualError(t, rig.Err(Replay(records, Deployment{Ranks: -1})), "sim: Deployment.Ranks -1 is negative")
}
