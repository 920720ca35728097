package portable

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestExpAndLnAgreeWithPackageMath(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(-690, 690).Draw(t, "x")
		require.InEpsilon(t, math.Exp(x), Exp(x), 1e-12)
		y := rapid.Float64Range(1e-300, 1e300).Draw(t, "y")
		require.InDelta(t, math.Log(y), Ln(y), 1e-12*(1+math.Abs(math.Log(y))))
	})
	for _, c := range []struct{ x, want float64 }{{0, 1}, {1, math.E}, {-1, 1 / math.E}, {math.Ln2, 2}, {10 * math.Ln2, 1024}} {
		require.InEpsilon(t, c.want, Exp(c.x), 1e-14)
	}
	require.Equal(t, 0.0, Ln(1))
	require.Equal(t, Exp(expLimit), Exp(math.Inf(1)))
	require.Equal(t, Exp(-expLimit), Exp(math.Inf(-1)))
	require.Equal(t, Exp(-expLimit), Exp(math.NaN()), "never NaN")
}
