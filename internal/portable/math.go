// Package portable has an exponential and a logarithm with the same bits on every machine.
package portable

import (
	"math"
)

// Exp and Ln are written out here, instead of using package math, for two reasons: math differs
// between architectures, and a model must have the same bytes everywhere; and this Exp is small
// enough for predictions. Products are converted explicitly so that no compiler fuses them with the
// following addition.

const (
	expSteps = 64
	// Ln2 is the natural logarithm of 2.
	Ln2        = 0.693147180559945309417232121458176568
	ln2High    = 6.93147180369123816490e-01
	ln2Low     = 1.90821492927058770002e-10
	expLimit   = 700 // e^700 is near the largest float64; a log latency never comes close
	sqrt2Mant  = 0x6a09e667f3bcd
	mantissa64 = 1<<52 - 1
)

// expTable holds 2^(i/64).
var expTable = makeExpTable()

func makeExpTable() (t [expSteps]float64) {
	// Six correctly rounded roots of 2, multiplied according to the bits of i: the same on every
	// machine.
	var roots [6]float64
	r := 2.0
	for i := range roots {
		r = math.Sqrt(r)
		roots[i] = r
	}
	for i := range t {
		v := 1.0
		for b, root := range roots {
			if i>>(5-b)&1 == 1 {
				v *= root
			}
		}
		t[i] = v
	}
	return t
}

// Exp returns e^x with a relative error below 1e-14 for |x| ≤ 700, and clamps beyond that.
func Exp(x float64) float64 {
	if x > expLimit {
		x = expLimit
	} else if !(x >= -expLimit) {
		x = -expLimit
	}
	// Rounding goes through a positive number, whose conversion to an integer truncates downwards.
	const above = 1 << 20
	n := int64(float64(x*(expSteps/Ln2))+(above+0.5)) - above
	k := float64(n)
	r := x - float64(k*(ln2High/expSteps))
	r -= float64(k * (ln2Low / expSteps))
	p := 1.0/6 + float64(r*(1.0/24))
	p = 0.5 + float64(r*p)
	p = 1 + float64(r*p)
	p = 1 + float64(r*p)
	return p * expTable[n&(expSteps-1)] * math.Float64frombits(uint64(n>>6+1023)<<52)
}

// Ln returns the natural logarithm of a positive, finite, normal x with a relative error below 1e-14.
func Ln(x float64) float64 {
	bits := math.Float64bits(x)
	e := int64(bits>>52) - 1023
	m := bits & mantissa64
	if m > sqrt2Mant {
		e++
		m |= 1022 << 52
	} else {
		m |= 1023 << 52
	}
	f := math.Float64frombits(m) - 1
	s := f / (2 + f)
	z := s * s
	// Ln(1+f) = 2s(1 + z/3 + z²/5 + …), |s| ≤ 0.1716.
	p := 0.0
	for i := 21; i >= 1; i -= 2 {
		p = float64(p*z) + 1/float64(i)
	}
	return float64(float64(e)*Ln2) + float64(2*s*p)
}
