package predict

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
)

// Every thousand samples a model is fitted to the labels that are known by then: all of the
// earlier ones or, with delay, those of requests that have ended.
func TestEvaluate(t *testing.T) {
	samples := make([]Sample, 2100)
	for i := range samples {
		samples[i] = Sample{
			At: time.Unix(1e9, 0).Add(time.Duration(i) * time.Second), PrefillRate: 1000, TTFT: 100, TPOT: 10,
			Request: endpick.Request{InputTokens: 1000, ExpectedOutputTokens: 101, Stream: true},
		}
		if i%2 == 1 {
			samples[i].TTFT, samples[i].PrefillRate = 200, 2000
		}
		if i < 1000 {
			samples[i].TPOT = 15_000 // the response takes 1,500 s
			samples[i/2].TTFT = math.NaN()
		}
	}
	samples[0].TPOT = 1e9 // nobody waits for the first
	for delay, first := range map[bool]int{false: 1000, true: 2000} {
		got := rig.Must(Evaluate(samples, delay))
		for i, p := range got {
			require.Equal(t, i >= 1000, p.Has&endpick.TTFT != 0, "TTFT of %d", i)
			require.Equal(t, i >= first, p.Has&endpick.TPOT != 0, "TPOT of %d", i)
			require.GreaterOrEqual(t, p.TTFTUpper, p.TTFT)
		}
		require.InEpsilon(t, 0.1, got[1000].TTFT.Seconds(), 0.01)
		require.InEpsilon(t, 0.2, got[1001].TTFT.Seconds(), 0.01)
		require.Less(t, got[2099].TTFTUpper, got[2099].TTFT*11/10)
	}
	require.Equal(t, make([]endpick.Prediction, 1000), rig.Must(Evaluate(samples[:1000], false)), "too few")
}
