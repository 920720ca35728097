package sim

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	assert.Nil(t, trace.Records[1].CachedTokens)
}

// A first token noted after the end counts as coming with it. Each model has its own ratio of
// tokens to blocks.
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
			switch {
			case i < ranks:
				assert.Equal(t, got[0].FirstTokenMillis, r.FirstTokenMillis)
			default:
				assert.GreaterOrEqual(t, r.FirstTokenMillis, got[i-ranks].LastTokenMillis, "%d of %d", i, ranks)
				assert.Equal(t, got[i/ranks*ranks].LastTokenMillis, r.LastTokenMillis)
			}
			assert.Less(t, r.FirstTokenMillis, r.LastTokenMillis)
			assert.Zero(t, *r.CachedTokens)
		}
	}
	_, err := Replay(records, Deployment{Ranks: -1})
	assert.EqualError(t, err, "sim: Deployment.Ranks -1 is negative")
}
