package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// pair is how much longer something takes under one policy than under another, in
// percent: the mean over seeds, and half of its 95 % interval. Runs with the same seed
// have the same requests, which removes most of the variation between seeds.
type pair struct{ longer, half float64 }

// pairOf compares two policies in one round, seed by seed.
func (r *round) pairOf(policy, other string, value func(*score) float64) pair {
	var longer []float64
	sum := 0.0
	for i := range r.scores[policy] {
		mine := &r.scores[policy][i]
		at := slices.IndexFunc(r.scores[other], func(s score) bool { return s.Seed == mine.Seed })
		if at < 0 {
			continue
		}
		v := 100 * (value(mine)/value(&r.scores[other][at]) - 1)
		longer = append(longer, v)
		sum += v
	}
	return pair{sum / float64(len(longer)), interval(longer)}
}

func (p pair) String() string { return fmt.Sprintf("%+.1f ± %.1f", p.longer, p.half) }

// interval is half of the 95 % interval of a mean, by Student's distribution; NaN
// for fewer than two values.
func interval(values []float64) float64 {
	n := float64(len(values))
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	for _, v := range values {
		squares += (v - sum/n) * (v - sum/n)
	}
	quantiles := []float64{math.NaN(), math.NaN(), 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26}
	t := 1.96 + 2.6/n
	if len(values) < len(quantiles) {
		t = quantiles[len(values)]
	}
	return t * math.Sqrt(squares/(n-1)/n)
}

// pairedMeasures are the measures compared in pairs, and from how many percent on
// a policy is behind.
var pairedMeasures = []struct {
	name   string
	value  func(*score) float64
	behind float64
}{
	{"E2E mean", func(s *score) float64 { return s.E2EMean }, 1},
	{"TTFT p95", func(s *score) float64 { return s.TTFT95 }, 5},
}

// writePairs compares the last policy with each of the others.
func (t *tournament) writePairs(w io.Writer, scores []score) error {
	last := len(t.policies) - 1
	policy, others := t.policies[last], t.policies[:last]
	rounds := t.rounds(scores)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "contest\tload\t")
	for _, m := range pairedMeasures {
		for _, other := range others {
			fmt.Fprintf(tw, "%s %% on %s\t", m.name, other)
		}
	}
	fmt.Fprintln(tw)
	type tally struct{ behind, surely, ahead, ofAhead int }
	tallies := make([]tally, len(pairedMeasures))
	for i := range rounds {
		r := &rounds[i]
		fmt.Fprintf(tw, "%s\t%g\t", r.contest, r.load)
		for j, paired := range pairedMeasures {
			behind, surely, ahead := false, false, true
			for _, other := range others {
				p := r.pairOf(policy, other, paired.value)
				fmt.Fprintf(tw, "%v\t", p)
				behind = behind || p.longer > paired.behind
				surely = surely || p.longer-p.half > paired.behind
				ahead = ahead && p.longer < 0
			}
			tallies[j].behind += count(behind)
			tallies[j].surely += count(surely)
			if r.load >= 0.8 {
				tallies[j].ofAhead++
				tallies[j].ahead += count(ahead)
			}
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nHow much longer it takes under %s, in percent, with the 95 %% interval of %d paired seeds.\n", policy, len(t.seeds))
	for j, paired := range pairedMeasures {
		c := &tallies[j]
		fmt.Fprintf(w, "%s: more than %g %% behind one of them in %d of %d cells, in %d by more than the interval; ahead of all in %d of %d at 80 %% and more.\n",
			paired.name, paired.behind, c.behind, len(rounds), c.surely, c.ahead, c.ofAhead)
	}
	return nil
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
