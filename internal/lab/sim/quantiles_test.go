package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantiles(t *testing.T) {
	q := newQuantiles(0, 1, 0.5, 4, 1, 64)
	for u, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 4, 0.75: 16, 1: 64} {
		require.InEpsilon(t, want, q.at(u), 1e-12, "%v", u)
	}
	random := rand.NewPCG(1, 2)
	draws := make([]float64, 100_000)
	sum, below := 0.0, 0
	for i := range draws {
		draws[i] = q.draw(random)
		sum += draws[i]
		if normal(random) < 1 {
			below++
		}
	}
	slices.Sort(draws)
	require.InEpsilon(t, 2, draws[25_000], 0.02)
	require.InEpsilon(t, 16, draws[75_000], 0.02)
	// Each half has the mean (b − a)/ln(b/a).
	require.InEpsilon(t, 3/math.Log(4)/2+60/math.Log(16)/2, sum/100_000, 0.02)
	require.InDelta(t, normalShare(1), float64(below)/100_000, 0.005)
	require.InDelta(t, 0.8413, normalShare(1), 1e-4)
}
