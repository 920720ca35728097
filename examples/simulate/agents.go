package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/endpick/endpick/internal/lab/sim"
)

// figuresSessions is enough for the tails of two runs to be alike.
const figuresSessions = 20_000

// ofAgents reports whether the sweep is of coding agents.
func (s *sweep) ofAgents() bool {
	n, err := sim.Scenario(s.scenario)
	if err != nil {
		return false
	}
	_, ok := n.Workload.(sim.Agents)
	return ok
}

// cacheColumns say where prompts were cached.
var cacheColumns = []column{
	{"offered", "req/s", func(r *row) float64 { return r.OfferedRPS }, 2},
	{"prefix hit", "%", func(r *row) float64 { return 100 * r.PrefixHitRatio }, 1},
	{"in one cache", "%", func(r *row) float64 { return 100 * orNaN(r.PooledHitRatio) }, 1},
}

// unseen is the share of prompts that the router's index took for cold although the
// chosen server had them.
var unseen = column{"cold yet warm", "%", func(r *row) float64 { return 100 * orNaN(r.ColdYetWarm) }, 1}

// anyUnseen reports whether any policy has an index.
func anyUnseen(results []*result) bool {
	return slices.ContainsFunc(results, func(r *result) bool { return r.row.ColdYetWarm != nil })
}

func orNaN(x *float64) float64 {
	if x == nil {
		return math.NaN()
	}
	return *x
}

// writeAgents prints the cache hits of runs of coding agents, if there are any.
func writeAgents(w io.Writer, results []*result) error {
	results = slices.DeleteFunc(slices.Clone(results), func(r *result) bool { return !r.sweep.ofAgents() })
	if len(results) == 0 {
		return nil
	}
	fmt.Fprint(w, "\nCaches: what the servers found, and what one cache as large as all of theirs would have:\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	heads, units := "policy\trate\t", "\treq/s\t"
	for _, c := range cacheColumns {
		heads += c.head + "\t"
		units += c.unit + "\t"
	}
	fmt.Fprintf(t, "%s\n%s\n", heads, units)
	for _, g := range groupsOf(results) {
		fmt.Fprintf(t, "%s\t%.2f\t", g.policy, g.rate)
		for i := range cacheColumns {
			fmt.Fprintf(t, "%s\t", cacheColumns[i].number(&g))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

const agentsUsage = `simulate agents [flags]: the workload of coding agents beside the published figures`

// describeAgents shows how well the workload reproduces the published figures.
func describeAgents(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(agentsUsage, flag.ContinueOnError)
	seed := flags.Uint64("seed", 1, "`number` that all chance depends on")
	if _, err := parse(flags, args, stderr); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return usage("what is %q? simulate agents takes flags only", flags.Arg(0))
	}
	fmt.Fprintf(stdout, "The workload against the published figures, in %d sessions (seed %d) at full length, played to their ends:\n\n", figuresSessions, *seed)
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\tpublished\trealised\tdifference\t")
	before := ""
	for _, f := range sim.AgentFigures(*seed, figuresSessions) {
		name := f.Of
		if f.Kind != "" {
			name = f.Kind + ": " + name
		}
		if name == before {
			name = ""
		} else {
			before = name
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%+.1f %%\t\n", name, f.Statistic, amount(f.Published, f.Unit), amount(f.Realised, f.Unit), 100*(f.Realised/f.Published-1))
	}
	return t.Flush()
}

// amount formats a number with its unit.
func amount(x float64, unit string) string {
	switch {
	case unit == "s" && x >= 2*3600:
		x, unit = x/3600, "h"
	case unit == "s" && x >= 2*60:
		x, unit = x/60, "min"
	case unit == "tokens" && x >= 10_000:
		x, unit = x/1000, "k tokens"
	}
	digits := 1
	if unit == "tokens" {
		digits = 0
	} else if x < 10 {
		digits = 2
	}
	text := fmt.Sprintf("%.*f", digits, x)
	if unit != "" {
		text += " " + unit
	}
	return text
}
