package sim

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, text string) *Trace {
	trace, err := ReadTrace("x", strings.NewReader(text))
	require.NoError(t, err)
	return trace
}

func TestReadMooncake(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 1050, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 520, "output_length": 1, "hash_ids": [0, 9]}
`)
	require.Equal(t, MooncakeTick, trace.Spread)
	require.Equal(t, Record{InputTokens: 1050, OutputTokens: 500, Blocks: []uint64{0, 1, 2}, BlockTokens: 512}, trace.Records[0])
	source, err := trace.Start(1)
	require.NoError(t, err)
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
	require.Zero(t, read(t, `{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []}
{"timestamp": 7, "input_length": 1, "output_length": 1, "hash_ids": []}`).Spread)
}

func TestReadAzure(t *testing.T) {
	trace := read(t, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
	require.Equal(t, []Record{
		{InputTokens: 374, OutputTokens: 44},
		{ArrivalMillis: 4314.579, InputTokens: 396, OutputTokens: 109},
	}, trace.Records)
}

func TestRecordsGoRound(t *testing.T) {
	cached := 16
	records := []Record{
		{InputTokens: 40, OutputTokens: 3, Blocks: []uint64{1 << 63, 2}, CachedTokens: &cached, Tenant: "t", FirstTokenMillis: 5, LastTokenMillis: 8},
		{ArrivalMillis: 1.5, InputTokens: 1, OutputTokens: 1, TTFTTargetMillis: 100},
	}
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	require.NoError(t, WriteTrace(zipped, records))
	require.NoError(t, zipped.Close())
	trace, err := ReadTrace("x.gz", &b)
	require.NoError(t, err)
	require.Equal(t, records, trace.Records)

	trace.RateScale = 3
	source, err := trace.Start(0)
	require.NoError(t, err)
	source.Take()
	at, _ := source.Next()
	require.Equal(t, 500*time.Microsecond, at)
	require.Equal(t, 100*time.Millisecond, source.Take().SLO.TTFT)
}

func TestBrokenTraces(t *testing.T) {
	const mooncake = `{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[0]}` + "\n"
	const azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	const vllm = "input_tokens,output_tokens,queued_s,scheduled_s,first_token_s,last_token_s\n"
	for _, c := range []struct{ text, err string }{
		{"", "sim: x:1: is of no known format (mooncake, azure, record, gateway, vllm)"},
		{"hello\n", "sim: x:1: is of no known format (mooncake, azure, record, gateway, vllm)"},
		{azure, "sim: x: has no requests"},
		{mooncake + `{"timestamp":0,"input_length":10`, "sim: x:2: is no JSON object of this format: unexpected EOF"},
		{mooncake + `{"timestamp":-5,"input_length":10,"output_length":1}`, "sim: x:2: timestamp -5 is not within [0, 2.592e+09]"},
		{mooncake + `{"timestamp":0,"input_length":0,"output_length":1}`, "sim: x:2: input_length 0 is not within [1, 16777216]"},
		{mooncake + `{"timestamp":0,"input_length":5,"output_length":0}`, "sim: x:2: output_length 0 is not within [1, 16777216]"},
		{mooncake + `{"timestamp":0,"input_length":5}`, "sim: x:2: output_length is missing"},
		{mooncake + `{"input_length":5,"output_length":1}`, "sim: x:2: timestamp is missing"},
		{mooncake + `{"timestamp":0,"input_length":"many","output_length":1}`, "sim: x:2: input_length is a string"},
		{mooncake + `{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[-1]}`, "sim: x:2: hash_ids is a number -1"},
		{mooncake + `{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1,2]}`, "sim: x:2: hash_ids has 2 blocks of 512 tokens for a prompt of 5"},
		{`{"arrival_ms":0,"input_tokens":5,"output_tokens":1}{}`, "sim: x:1: has more than one JSON object"},
		{`{"arrival_ms":0,"input_tokens":5,"output_tokens":1,"colour":1}`, `sim: x:1: is no JSON object of this format: json: unknown field "colour"`},
		{`{"arrival_ms":0,"input_tokens":5,"output_tokens":1,"block_tokens":10}`, "sim: x:1: block_tokens 10 is no multiple of 16"},
		{`{"arrival_ms":0,"input_tokens":5,"output_tokens":1,"cached_tokens":6}`, "sim: x:1: cached_tokens 6 is not within [0, 5]"},
		{`{"arrival_ms":0,"input_tokens":5,"output_tokens":1,"first_token_ms":6,"last_token_ms":5}`, "sim: x:1: last_token_ms is before first_token_ms"},
		{azure + "2023-11-16 18:15:46.68,374\n", "sim: x:2: wrong number of fields"},
		{azure + "yesterday,374,1\n", `sim: x:2: TIMESTAMP "yesterday" is no time`},
		{azure + "2023-11-16 18:15:46.68,x,1\n", `sim: x:2: ContextTokens "x" is no whole number`},
		{azure + "2023-11-16 18:15:46.68,1,0\n", "sim: x:2: GeneratedTokens 0 is not within [1, 16777216]"},
		{azure + "2023-11-16 18:15:46.68,1,1\n2023-11-16 18:15:45.68,1,1\n", "sim: x:3: TIMESTAMP -1000 is not within [0, 2.592e+09]"},
		{"TIMESTAMP,Tokens,GeneratedTokens\n", `sim: x:1: ContextTokens is missing, there is "Tokens"`},
		{vllm + "1,1,0,0,nan,1\n", "sim: x:2: first_token_s NaN is not within [0, 2.592e+09]"},
		{vllm + "1,1,0,0,2,1\n", "sim: x:2: last_token_s is before first_token_ms"},
		{"\x1f\x8bnonsense", "sim: x: gzip: invalid header"},
	} {
		_, err := ReadTrace("x", strings.NewReader(c.text))
		require.EqualError(t, err, c.err, "%q", c.text)
		var trace *TraceError
		require.ErrorAs(t, err, &trace)
	}
	_, err := OpenTrace("no such file")
	require.ErrorContains(t, err, "sim: open no such file")
}

// The figures of the traces' own description.
func TestRealTraces(t *testing.T) {
	for _, c := range []struct {
		name          string
		rows          int
		input, output float64
		spread        time.Duration
	}{
		{"mooncake_conversation_first_half.jsonl.gz", 5606, 12934, 346, MooncakeTick},
		{"azure_2023_conv.csv.gz", 19366, 1155, 211, 0},
	} {
		trace, err := OpenTrace(sharedTrace(t, c.name))
		require.NoError(t, err)
		require.Len(t, trace.Records, c.rows)
		require.Equal(t, c.spread, trace.Spread)
		var input, output moments
		for i := range trace.Records {
			input.add(float64(trace.Records[i].InputTokens))
			output.add(float64(trace.Records[i].OutputTokens))
		}
		mean, _ := input.meanStd()
		require.InDelta(t, c.input, mean, 1)
		mean, _ = output.meanStd()
		require.InDelta(t, c.output, mean, 1)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[0]}`))
	f.Add([]byte(`{"arrival_ms":0,"input_tokens":5,"output_tokens":1,"blocks":[1]}`))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"))
	f.Add([]byte("input_tokens,output_tokens,queued_s,scheduled_s,first_token_s,last_token_s\n1,2,0,0,1,2\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		trace, err := ReadTrace("x", bytes.NewReader(text))
		if err != nil {
			return
		}
		for i := range trace.Records {
			trace.Records[i].InputTokens %= 1 << 12 // keep the work small
			trace.Records[i].Blocks = nil
			trace.Records[i].InputTokens++
			trace.Records[i].CachedTokens = nil
		}
		source, err := trace.Start(1)
		if err != nil {
			t.Fatal(err)
		}
		last := time.Duration(0)
		for at, ok := source.Next(); ok; at, ok = source.Next() {
			if at < last {
				t.Fatal("out of order")
			}
			last = at
			source.Take()
		}
	})
}
