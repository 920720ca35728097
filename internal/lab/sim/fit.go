package sim

import (
	"cmp"
	"math"
	"slices"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Fit adapts the deployment's profile, and the size of its KV cache if blocks is
// true, to a recording: it finds the coefficients with which [Replay] comes
// closest to the times of the first known records. All records are replayed,
// since later ones slow down earlier ones, but only the times of the first known
// count; the others are held back for judging. The deployment's profile is the
// starting point, and its peak fields limit the fit.
//
// The search is Nelder and Mead's simplex over the logarithms of the coefficients
// (The Computer Journal, 1965), with a few hundred replays and no randomness.
func Fit(records []Record, known int, d Deployment, blocks bool) (Deployment, error) {
	if known < 1 || known > len(records) {
		return d, &ConfigError{"Fit", "needs some of the records to be known"}
	}
	probe, err := engine.New(d.Engine) // sets defaults, and validates
	if err != nil {
		return d, err
	}
	d.Engine = probe.Config()
	start, err := Replay(records, d)
	if err != nil {
		return d, err
	}
	if _, err := Assess(records[:known], start[:known]); err != nil {
		return d, err
	}

	coefficients := func(d *Deployment) []*float64 {
		p := &d.Engine.Profile
		return []*float64{&p.StepMicros, &p.WeightMicros, &p.TokenMicros, &p.SequenceMicros, &p.ContextNanos, &p.PairNanos}
	}
	at := func(x []float64) Deployment {
		tried := d
		for i, c := range coefficients(&tried) {
			*c = math.Exp(x[i])
		}
		tried.Engine.Profile = tried.Engine.Profile.AtPeak()
		if blocks {
			tried.Engine.Blocks = int(math.Exp(x[len(x)-1]))
		}
		return tried
	}
	loss := func(x []float64) float64 {
		replayed, err := Replay(records, at(x))
		if err != nil {
			return math.Inf(1) // out of bounds, or a cache that is too small
		}
		f, err := Assess(records[:known], replayed[:known])
		if err != nil {
			return math.Inf(1)
		}
		sum := 0.0
		for _, a := range []Agreement{f.TTFT, f.ITL, f.E2E} {
			sum += a.MAE + a.MeanError + a.P90Error
		}
		return sum
	}
	var x []float64
	for _, c := range coefficients(&d) {
		x = append(x, math.Log(max(*c, 1e-3)))
	}
	if blocks {
		x = append(x, math.Log(float64(d.Engine.Blocks)))
	}
	for range 3 { // a collapsed simplex is restarted where it is
		x = minimize(loss, x, 0.25, 300)
	}
	return at(x), nil
}

// minimize is Nelder and Mead's simplex search from x, with first steps of this
// size and at most so many evaluations.
func minimize(f func([]float64) float64, x []float64, size float64, evaluations int) []float64 {
	type vertex struct {
		x []float64
		f float64
	}
	byLoss := func(a, b vertex) int { return cmp.Compare(a.f, b.f) }
	try := func(x []float64) vertex { evaluations--; return vertex{x, f(x)} }
	simplex := []vertex{try(x)}
	for i := range x {
		moved := slices.Clone(x)
		moved[i] += size
		simplex = append(simplex, try(moved))
	}
	n := len(x)
	along := func(center, from []float64, t float64) vertex {
		to := make([]float64, n)
		for i := range to {
			to[i] = center[i] + t*(from[i]-center[i])
		}
		return try(to)
	}
	for evaluations > 0 {
		slices.SortStableFunc(simplex, byLoss)
		best, worst := simplex[0], simplex[n]
		center := make([]float64, n)
		for _, v := range simplex[:n] {
			for i := range center {
				center[i] += v.x[i] / float64(n)
			}
		}
		reflected := along(center, worst.x, -1)
		switch {
		case reflected.f < best.f:
			if expanded := along(center, worst.x, -2); expanded.f < reflected.f {
				reflected = expanded
			}
			simplex[n] = reflected
		case reflected.f < simplex[n-1].f:
			simplex[n] = reflected
		default:
			nearer := worst
			if reflected.f < worst.f {
				nearer = reflected
			}
			if contracted := along(center, nearer.x, 0.5); contracted.f < nearer.f {
				simplex[n] = contracted
				continue
			}
			for i := 1; i <= n; i++ {
				simplex[i] = along(best.x, simplex[i].x, 0.5)
			}
		}
	}
	return slices.MinFunc(simplex, byLoss).x
}
