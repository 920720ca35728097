package learn

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// Before there are trees a model is just its linear part: the estimate equals the prediction.
func TestLinearIsTheModelWithoutTrees(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	for target := range Targets {
		l, err := New(&Trainer{Synchronous: true}, Latency(target))
		require.NoError(t, err)
		require.Nil(t, l.Linear())
		features := func() (Features, endpick.Candidate, int, float64) {
			input, held, output := 100+chance.IntN(4000), chance.IntN(100), 1+chance.IntN(500)
			c := endpick.Candidate{Waiting: float64(chance.IntN(5)), Running: float64(chance.IntN(40)), KVUsage: chance.Float64()}
			c.InFlight.PrefillTokens, c.InFlight.ContextTokens = chance.IntN(9000), chance.IntN(90_000)
			share := float64(held) / float64(input)
			return Features{
				KVUsage: c.KVUsage, InputTokens: float64(input), Waiting: c.Waiting, Running: c.Running, PrefixShare: share,
				PrefillTokens: float64(c.InFlight.PrefillTokens), ResidentTokens: float64(c.InFlight.ContextTokens), ExpectedOutputTokens: float64(output),
			}, c, output, float64(input) * (1 - share)
		}
		var row [FeatureCount]float64
		for range 60 {
			f, c, output, fresh := features()
			f.Row(row[:])
			took := 5 + 20*c.KVUsage + 3*c.Waiting + c.Running + 0.01*fresh + 0.02*float64(c.InFlight.PrefillTokens) + 0.001*float64(c.InFlight.ContextTokens) + float64(output)
			l.Label(row[:], took, 0, 0, time.Unix(1, 0))
		}
		require.Zero(t, l.Model().Trees())
		for i := range 50 {
			f, c, output, fresh := features()
			if i%3 == 0 { // the length of the response is unknown
				f.ExpectedOutputTokens, output = math.NaN(), 0
			}
			f.Row(row[:])
			var want [1]float64
			require.True(t, l.Predict(want[:], row[:]))
			e := l.Linear().For(int(f.InputTokens), output)
			require.InEpsilon(t, want[0], e.Of(&c, fresh), 1e-9, "target %d", target)
		}
	}
}
