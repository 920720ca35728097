package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// overviewColumns are the latencies that users notice, and attainment if there
// are targets.
var overviewColumns = []column{
	{"E2E mean", "s", func(r *row) float64 { return r.E2E.Mean / 1000 }, 2},
	{"p50", "s", func(r *row) float64 { return r.E2E.P50 / 1000 }, 2},
	{"p95", "s", func(r *row) float64 { return r.E2E.P95 / 1000 }, 2},
	{"TTFT p50", "ms", func(r *row) float64 { return r.TTFT.P50 }, 0},
	{"p95", "ms", func(r *row) float64 { return r.TTFT.P95 }, 0},
	{"attained", "%", func(r *row) float64 { return 100 * attainment(r) }, 1},
	{"goodput", "req/s", func(r *row) float64 { return r.GoodputRPS }, 2},
}

// writeOverview prints the runs of any number of workloads, by workload and rate, with
// policies below each other. The last column compares the mean E2E latency with the best
// of the other policies, without variants of the same one.
func writeOverview(w io.Writer, results []*result) error {
	cols := overviewColumns
	if !slices.ContainsFunc(results, func(r *result) bool { return r.row.SLOAttainment != nil }) {
		cols = cols[:5]
	}
	if anyUnseen(results) {
		cols = append(slices.Clip(cols), unseen)
	}
	groups := groupsOf(results)
	// Results, and so groups, are in the order of their workloads.
	rank := map[*sweep]int{}
	for i := range groups {
		if _, ok := rank[groups[i].sweep]; !ok {
			rank[groups[i].sweep] = len(rank)
		}
	}
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(rank[a.sweep], rank[b.sweep]), cmp.Compare(a.rate, b.rate))
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	heads, units := "workload\tload\trate\tpolicy\t", "\t\treq/s\t\t"
	for _, c := range cols {
		heads += c.head + "\t"
		units += c.unit + "\t"
	}
	fmt.Fprintf(t, "%sE2E ±\tmean against best\t\n%s%%\t%%\t\n", heads, units)
	for i := range groups {
		g := &groups[i]
		if i == 0 || groups[i-1].sweep != g.sweep || groups[i-1].rate != g.rate {
			r := &g.runs[0].row
			fmt.Fprintf(t, "%s\t%s\t%.2f\t", cmp.Or(r.Workload, "trace"), r.Load, g.mean(func(r *row) float64 { return r.Rate }))
		} else {
			fmt.Fprint(t, "\t\t\t")
		}
		fmt.Fprintf(t, "%s\t", g.policy)
		for k := range cols {
			fmt.Fprintf(t, "%s\t", cols[k].number(g))
		}
		fmt.Fprintf(t, "%.1f\t", 100*g.spread(e2eMean))
		if best := bestOther(groups, g); !math.IsInf(best, 1) {
			fmt.Fprintf(t, "%+.1f", 100*(g.mean(e2eMean)/best-1))
		}
		fmt.Fprintln(t, "\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if n := len(groups[0].runs); n > 1 {
		_, err := fmt.Fprintf(w, "\nMeans over %d seeds; ± is their standard deviation.\n", n)
		return err
	}
	return nil
}

// bestOther is the least mean E2E latency of another policy at the same rate of the same
// workload; infinite if there is none.
func bestOther(groups []group, g *group) float64 {
	best := math.Inf(1)
	for i := range groups {
		if o := &groups[i]; o.sweep == g.sweep && o.rate == g.rate && base(o.policy) != base(g.policy) {
			best = min(best, o.mean(e2eMean))
		}
	}
	return best
}
