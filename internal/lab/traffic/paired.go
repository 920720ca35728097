package traffic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/endpick/endpick"
)

// Front is something in front of a fleet that clients connect to.
type Front struct {
	Client *Client
	Leases func() int // open leases
	Stop   func() error
}

// Opener opens a front.
type Opener func(*Fleet) (*Front, error)

// Paired are the shares of prompts that were cached behind two fronts, in pairs with the
// same conversations.
type Paired struct{ A, B []float64 }

// InStepPolicy is the policy for PairHits. It does not learn times, which depend on the
// machine, so that two fronts with the same information decide alike.
const InStepPolicy = "lmetric"

// PairHits plays the workload with that many seeds behind both fronts, each time with
// four new servers, in steps of atOnce requests: see PlayInStep.
func PairHits(ctx context.Context, w Workload, seeds, atOnce, kvTokens int, a, b Opener) (p Paired, err error) {
	for range seeds {
		for _, side := range []struct {
			open Opener
			hits *[]float64
		}{{a, &p.A}, {b, &p.B}} {
			hits, err := hitsInStep(ctx, &w, atOnce, kvTokens, side.open)
			if err != nil {
				return p, err
			}
			*side.hits = append(*side.hits, hits)
		}
		w.Seed++
	}
	return p, nil
}

func hitsInStep(ctx context.Context, w *Workload, atOnce, kvTokens int, open Opener) (hits float64, err error) {
	config, err := ServerConfig(kvTokens)
	if err != nil {
		return 0, err
	}
	config.Speed = 100 // times are not measured
	fleet, err := StartGated(4, config)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	front, err := open(fleet)
	if err != nil {
		return 0, err
	}
	defer func() { front.Client.Close(); err = errors.Join(err, front.Stop()) }()
	samples, err := front.Client.PlayInStep(ctx, w.Conversations(), atOnce, fleet.Gate, front.Leases)
	if err != nil {
		return 0, err
	}
	r := Summarise("", samples, endpick.SLO{})
	if r.Failed > 0 {
		return 0, fmt.Errorf("traffic: %d requests failed, the first: %w", r.Failed, r.FirstErr)
	}
	if r.PrefixHitRatio == nil {
		return 0, errors.New("traffic: nothing was measured")
	}
	return *r.PrefixHitRatio, nil
}

// Means are the means of both sides.
func (p *Paired) Means() (a, b float64) { return mean(p.A), mean(p.B) }

// Difference is the mean of A − B over the pairs, and half of its 95 % interval by
// Student's distribution, which is infinite for fewer than two pairs.
func (p *Paired) Difference() (difference, half float64) {
	n := len(p.A)
	d := make([]float64, n)
	for i := range p.A {
		d[i] = p.A[i] - p.B[i]
	}
	difference = mean(d)
	if n < 2 {
		return difference, math.Inf(1)
	}
	squares := 0.0
	for _, v := range d {
		squares += (v - difference) * (v - difference)
	}
	return difference, student(n-1) * math.Sqrt(squares/float64(n-1)/float64(n))
}

// Typical is the median of A − B. A single pair that a busy machine has spoilt does not
// change it: servers that stall are avoided, and then lose their conversations.
func (p *Paired) Typical() float64 {
	d := make([]float64, len(p.A))
	for i := range p.A {
		d[i] = p.A[i] - p.B[i]
	}
	slices.Sort(d)
	n := len(d)
	return (d[(n-1)/2] + d[n/2]) / 2
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// student is the two-sided 95 % quantile, by degrees of freedom.
func student(freedom int) float64 {
	table := []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	return 2.086 // that of 20, a little too much for more
}

// String formats it in percentage points.
func (p *Paired) String() string {
	a, b := p.Means()
	d, half := p.Difference()
	return fmt.Sprintf("%.1f %% and %.1f %%, %+.2f points apart (95 %%: ± %.2f; median %+.2f of %d pairs)", 100*a, 100*b, 100*d, 100*half, 100*p.Typical(), len(p.A))
}
