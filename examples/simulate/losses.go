package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// round is a workload at a load: the scores of each policy, by seed.
type round struct {
	contest string
	load    float64
	rate    float64
	scores  map[string][]score
}

func (t *tournament) rounds(scores []score) []round {
	var rounds []round
	for _, c := range t.contests {
		for _, load := range t.loads {
			r := round{contest: c.name, load: load, scores: map[string][]score{}}
			for _, s := range scores {
				if s.Contest == c.name && s.Load == load {
					r.rate = s.Rate
					r.scores[s.Policy] = append(r.scores[s.Policy], s)
				}
			}
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// mean is a policy's mean over seeds.
func (r *round) mean(policy string, value func(*score) float64) float64 {
	sum := 0.0
	for i := range r.scores[policy] {
		sum += value(&r.scores[policy][i])
	}
	return sum / float64(len(r.scores[policy]))
}

// best is the lowest of the policies' means.
func (r *round) best(policies []string, value func(*score) float64) float64 {
	best := math.Inf(1)
	for _, p := range policies {
		best = min(best, r.mean(p, value))
	}
	return best
}

// loss is a policy's mean divided by that of the best, at least 1.
func (r *round) loss(policies []string, policy string, value func(*score) float64) float64 {
	return r.mean(policy, value) / r.best(policies, value)
}

// overall is the geometric mean of a policy's losses over all cells, and the worst.
func (t *tournament) overall(rounds []round, policy string, value func(*score) float64) (mean, worst float64) {
	for i := range rounds {
		r := &rounds[i]
		loss := r.loss(t.policies, policy, value)
		mean += math.Log(loss) / float64(len(rounds))
		worst = max(worst, loss)
	}
	return math.Exp(mean), worst
}

// writeCells prints every policy's loss in every cell.
func (t *tournament) writeCells(w io.Writer, rounds []round) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, m := range measures {
		fmt.Fprintf(w, "\n%s: the best, and the loss of each\n\n", m.name)
		fmt.Fprint(tw, "contest\tload\treq/s\tbest, ms\t")
		for _, p := range t.policies {
			fmt.Fprintf(tw, "%s\t", p)
		}
		fmt.Fprintln(tw)
		for i := range rounds {
			r := &rounds[i]
			fmt.Fprintf(tw, "%s\t%g\t%.2f\t%.0f\t", r.contest, r.load, r.rate, r.best(t.policies, m.value))
			for _, p := range t.policies {
				fmt.Fprintf(tw, "%.3f\t", r.loss(t.policies, p, m.value))
			}
			fmt.Fprintln(tw)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func loads(shares []float64) string {
	var text []string
	for _, s := range shares {
		text = append(text, fmt.Sprintf("%g %%", math.Round(1000*s)/10))
	}
	return strings.Join(text, ", ")
}
