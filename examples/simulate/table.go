package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// group is the runs of one policy at one rate of one workload, over all seeds.
type group struct {
	sweep  *sweep
	order  int // of the sweep, among all
	policy string
	rate   float64 // of the cell
	runs   []*result
}

// groupsOf returns the groups in the order of the results.
func groupsOf(results []*result) []group {
	var groups []group
	sweeps := 0
	for _, r := range results {
		n := len(groups)
		if n == 0 || groups[n-1].sweep != r.sweep {
			sweeps++
		}
		if n == 0 || groups[n-1].sweep != r.sweep || groups[n-1].policy != r.policy || groups[n-1].rate != r.rate {
			groups = append(groups, group{sweep: r.sweep, order: sweeps, policy: r.policy, rate: r.rate})
		}
		g := &groups[len(groups)-1]
		g.runs = append(g.runs, r)
	}
	return groups
}

// mean is the mean over seeds.
func (g *group) mean(value func(*row) float64) float64 {
	sum := 0.0
	for _, r := range g.runs {
		sum += value(&r.row)
	}
	return sum / float64(len(g.runs))
}

// spread is the standard deviation over seeds as a share of the mean.
func (g *group) spread(value func(*row) float64) float64 {
	mean := g.mean(value)
	if mean == 0 {
		return 0
	}
	variance := g.mean(func(r *row) float64 { return (value(r) - mean) * (value(r) - mean) })
	return math.Sqrt(variance) / mean
}

// column is one figure of the table.
type column struct {
	head, unit string
	value      func(*row) float64
	digits     int
}

// number formats a figure.
func (c *column) number(g *group) string {
	x := g.mean(c.value)
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.*f", c.digits, x)
}

// columns are those of the table, in the terminal and on the page, without
// those that are 0 or absent in all rows.
func columns(results []*result) []column {
	all := []column{
		{"rate", "req/s", func(r *row) float64 { return r.Rate }, 2},
		{"TTFT mean", "ms", func(r *row) float64 { return r.TTFT.Mean }, 0},
		{"p50", "ms", func(r *row) float64 { return r.TTFT.P50 }, 0},
		{"p95", "ms", func(r *row) float64 { return r.TTFT.P95 }, 0},
		{"p99", "ms", func(r *row) float64 { return r.TTFT.P99 }, 0},
		{"TPOT mean", "ms", func(r *row) float64 { return r.TPOT.Mean }, 1},
		{"p95", "ms", func(r *row) float64 { return r.TPOT.P95 }, 1},
		{"E2E mean", "s", func(r *row) float64 { return r.E2E.Mean / 1000 }, 2},
		{"p95", "s", func(r *row) float64 { return r.E2E.P95 / 1000 }, 2},
		{"output", "tok/s", func(r *row) float64 { return r.OutputTPS }, 0},
		{"prefix hit", "%", func(r *row) float64 { return 100 * r.PrefixHitRatio }, 1},
		{"imbalance", "", func(r *row) float64 { return r.Imbalance }, 2},
	}
	seen := func(value func(*row) float64) bool {
		return slices.ContainsFunc(results, func(r *result) bool { x := value(&r.row); return x != 0 && !math.IsNaN(x) })
	}
	if anyUnseen(results) {
		all = append(all, unseen)
	}
	for _, c := range []column{
		{"preempted", "", func(r *row) float64 { return float64(r.Preemptions) }, 0},
		{"rejected", "", func(r *row) float64 { return float64(r.Rejected) }, 0},
		{"attained", "%", func(r *row) float64 { return 100 * attainment(r) }, 1},
		{"goodput", "req/s", func(r *row) float64 {
			if r.SLOAttainment == nil {
				return math.NaN()
			}
			return r.GoodputRPS
		}, 2},
		{"TTFT error", "%", func(r *row) float64 { return predictionError(r, func(p *predictions) *prediction { return p.TTFT }) }, 1},
		{"TPOT error", "%", func(r *row) float64 { return predictionError(r, func(p *predictions) *prediction { return p.TPOT }) }, 1},
	} {
		if seen(c.value) {
			all = append(all, c)
		}
	}
	return all
}

// attainment is the share of requests with an SLO that met it; NaN if there were
// none.
func attainment(r *row) float64 {
	if r.SLOAttainment == nil {
		return math.NaN()
	}
	return *r.SLOAttainment
}

// predictionError is the MAPE of a prediction in percent; NaN if there is none.
func predictionError(r *row, of func(*predictions) *prediction) float64 {
	if r.Predictions == nil || of(r.Predictions) == nil {
		return math.NaN()
	}
	return 100 * of(r.Predictions).MAPE
}

func e2eMean(r *row) float64 { return r.E2E.Mean }

// overviewColumns are the latencies that users notice, and attainment if there are
// targets.
func overviewColumns(results []*result) []column {
	cols := []column{
		{"E2E mean", "s", func(r *row) float64 { return r.E2E.Mean / 1000 }, 2},
		{"p50", "s", func(r *row) float64 { return r.E2E.P50 / 1000 }, 2},
		{"p95", "s", func(r *row) float64 { return r.E2E.P95 / 1000 }, 2},
		{"TTFT p50", "ms", func(r *row) float64 { return r.TTFT.P50 }, 0},
		{"p95", "ms", func(r *row) float64 { return r.TTFT.P95 }, 0},
	}
	if slices.ContainsFunc(results, func(r *result) bool { return r.row.SLOAttainment != nil }) {
		cols = append(cols,
			column{"attained", "%", func(r *row) float64 { return 100 * attainment(r) }, 1},
			column{"goodput", "req/s", func(r *row) float64 { return r.GoodputRPS }, 2})
	}
	if anyUnseen(results) {
		cols = append(cols, unseen)
	}
	return cols
}

// writeTable prints the runs. An overview has those of any number of workloads, by
// workload and rate, with the policies below each other and fewer columns; its last one
// compares the mean E2E latency with the best of the other policies, without variants of
// the same one.
func writeTable(w io.Writer, results []*result, overview bool) error {
	groups, cols := groupsOf(results), columns(results)
	heads, units := "policy\t", "\t"
	if overview {
		cols = overviewColumns(results)
		heads, units = "workload\tload\trate\tpolicy\t", "\t\treq/s\t\t"
		slices.SortStableFunc(groups, func(a, b group) int {
			return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.rate, b.rate))
		})
	}
	for _, c := range cols {
		heads += c.head + "\t"
		units += c.unit + "\t"
	}
	seeds := len(groups[0].runs)
	if overview || seeds > 1 {
		heads, units = heads+"E2E ±\t", units+"%\t"
	}
	if overview {
		heads, units = heads+"mean against best\t", units+"%\t"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s\n%s\n", heads, units)
	for i := range groups {
		g := &groups[i]
		switch {
		case !overview:
		case i == 0 || groups[i-1].sweep != g.sweep || groups[i-1].rate != g.rate:
			r := &g.runs[0].row
			fmt.Fprintf(t, "%s\t%s\t%.2f\t", cmp.Or(r.Workload, "trace"), r.Load, g.mean(func(r *row) float64 { return r.Rate }))
		default:
			fmt.Fprint(t, "\t\t\t")
		}
		fmt.Fprintf(t, "%s\t", g.policy)
		for k := range cols {
			fmt.Fprintf(t, "%s\t", cols[k].number(g))
		}
		if overview || seeds > 1 {
			fmt.Fprintf(t, "%.1f\t", 100*g.spread(e2eMean))
		}
		if overview {
			if best := bestOther(groups, g); !math.IsInf(best, 1) {
				fmt.Fprintf(t, "%+.1f", 100*(g.mean(e2eMean)/best-1))
			}
			fmt.Fprint(t, "\t")
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	under := notes(results)
	if overview {
		under = seedNotes(seeds)
	}
	if len(under) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, "\n"+strings.Join(under, "\n"))
	return err
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

// unseen is the share of prompts that the router's index took for cold although the
// chosen server had them.
var unseen = column{"cold yet warm", "%", func(r *row) float64 {
	if r.ColdYetWarm == nil {
		return math.NaN()
	}
	return 100 * *r.ColdYetWarm
}, 1}

// anyUnseen reports whether any policy has an index.
func anyUnseen(results []*result) bool {
	return slices.ContainsFunc(results, func(r *result) bool { return r.row.ColdYetWarm != nil })
}

func seedNotes(seeds int) []string {
	if seeds < 2 {
		return nil
	}
	return []string{fmt.Sprintf("Means over %d seeds; ± is their standard deviation.", seeds)}
}

// notes describe the figures.
func notes(results []*result) []string {
	r := &results[0].row
	all := []string{fmt.Sprintf("%d requests, as generated (seed %d): input mean %.0f, standard deviation %.0f; output mean %.0f, standard deviation %.0f tokens.",
		r.Requests, r.Seed, r.Realised.InputMean, r.Realised.InputStd, r.Realised.OutputMean, r.Realised.OutputStd)}
	all = append(all, seedNotes(len(groupsOf(results)[0].runs))...)
	if anyUnseen(results) {
		all = append(all, "Cold yet warm: prompts that the router's index took for cold and the chosen server had, at least four fifths of each.")
	}
	for _, r := range results {
		if r.row.TooLong > 0 {
			all = append(all, fmt.Sprintf("%s at %.4g, seed %d: %d requests were longer than any KV cache and rejected.",
				r.policy, r.row.Rate, r.seed, r.row.TooLong))
		}
	}
	return all
}
