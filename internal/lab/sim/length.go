package sim

import (
	"math"
	"math/rand/v2"
)

// Length is a distribution of token counts. The zero Length is always 0; one with
// only a Mean is always that.
type Length struct {
	Mean, Std float64
	// Shape is Normal by default.
	Shape Shape
	// Max is the largest length; 0: no limit. Draws outside [1, Max] are clamped.
	Max int
}

// Shape is the shape of a distribution of lengths.
type Shape uint8

// The shapes.
const (
	Normal    Shape = iota
	LogNormal       // with that mean and standard deviation before clamping
)

// draw draws one length.
func (l Length) draw(random *rand.Rand) int {
	if l.Mean == 0 {
		return 0
	}
	x := l.Mean
	switch {
	case l.Std == 0:
	case l.Shape == LogNormal:
		// Moments of exp(N(m, s²)): mean exp(m + s²/2), variance (exp(s²) − 1)·mean².
		variance := math.Log1p(l.Std * l.Std / (l.Mean * l.Mean))
		x = math.Exp(math.Log(l.Mean) - variance/2 + math.Sqrt(variance)*random.NormFloat64())
	default:
		x += l.Std * random.NormFloat64()
	}
	most := 1 << 30
	if l.Max > 0 {
		most = l.Max
	}
	return int(min(max(math.Round(x), 1), float64(most)))
}
