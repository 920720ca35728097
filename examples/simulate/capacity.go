package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

const capacityUsage = `simulate capacity [flags]: what fits into the KV caches, and what is evicted

The tables of the appendix of "Predicted-latency scheduling": how much of the working
set of scenarios A to D a fleet can cache, and what a rate of requests does to the
cache of one server if each request is served in no time.`

// capacityReport is the JSON output of the verb.
type capacityReport struct {
	Workload string `json:"workload"`
	Groups   int    `json:"groups"`
	Users    int    `json:"users_per_group"`
	sim.CapacityRow
	Onset    *float64       `json:"eviction_onset_qps"` // nil: not at these rates
	Pressure []sim.Pressure `json:"pressure"`
}

// appendixRates cover the appendix's onsets, from 0.4 to 7.
var appendixRates = []float64{0.2, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 14}

func capacity(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(capacityUsage, flag.ContinueOnError)
	workloads := listOf(func(s string) (string, error) { _, err := conversations(s); return s, err }, "A", "B", "C", "D")
	flags.Var(workloads, "workload", "comma-separated `scenarios`")
	servers := flags.Int("endpoints", 10, "`number` of servers in the fleet")
	blocks := flags.Int("kv-blocks", engine.DefaultBlocks, "`blocks` of 16 tokens in each server's KV cache")
	rates := listOf(positive, appendixRates...)
	flags.Var(rates, "rate", "comma-separated `rates` at one server, in requests per second")
	duration := flags.Duration("duration", 100*time.Second, "`time` for which each rate lasts")
	seed := flags.Uint64("seed", 1, "seed")
	format := flags.String("format", "table", "table or json")
	given, err := parse(flags, args, stderr)
	if err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return usage("what is %q? simulate capacity takes flags only", flags.Arg(0))
	case *format != "table" && *format != "json":
		return usage("-format %q is unknown (known: table, json)", *format)
	case *servers < 1 || *blocks < 1 || given["duration"] && *duration <= 0:
		return usage("-endpoints, -kv-blocks and -duration are above 0")
	}
	var reports []capacityReport
	for _, name := range workloads.values {
		c, err := conversations(name)
		if err != nil {
			return err
		}
		r := capacityReport{
			Workload: name, Groups: c.Groups, Users: c.UsersPerGroup,
			CapacityRow: sim.Capacity(c, *servers, *blocks, sim.AppendixRounds),
		}
		sorted := slices.Sorted(slices.Values(rates.values))
		if r.Pressure, err = sim.CachePressure(c, sorted, *duration, *blocks, *seed); err != nil {
			return err
		}
		for _, p := range r.Pressure {
			if p.Evictions != (sim.Evictions{}) {
				r.Onset = &p.QPS
				break
			}
		}
		reports = append(reports, r)
	}
	if *format == "json" {
		return indented(stdout, reports)
	}
	return writeCapacity(stdout, reports)
}

func conversations(name string) (sim.Conversations, error) {
	n, err := sim.Scenario(name)
	c, ok := n.Workload.(sim.Conversations)
	if err == nil && !ok {
		err = usage("%q is not a workload of conversations in groups", name)
	}
	return c, err
}

func writeCapacity(w io.Writer, reports []capacityReport) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tgroups\tusers\tsystem tokens\tuser tokens\tcapacity\tsystem fits\tuser fits\tevictions from\t")
	for _, r := range reports {
		onset := "–"
		if r.Onset != nil {
			onset = fmt.Sprintf("%g req/s", *r.Onset)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%.2f %%\t%.2f %%\t%s\t\n", r.Workload, r.Groups, r.Users,
			r.SystemTokens, r.UserTokens, r.CapacityTokens, 100*r.SystemFits, 100*r.UserFits, onset)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nOne server; hits are a share of prompt tokens, the cache's filling of its blocks:")
	fmt.Fprintln(w)
	fmt.Fprintln(t, "workload\treq/s\trequests\thits\tfilled\tevicted system\tevicted user\tevicted other\t")
	for _, r := range reports {
		for _, p := range r.Pressure {
			fmt.Fprintf(t, "%s\t%g\t%d\t%.1f %%\t%.1f %%\t%d\t%d\t%d\t\n", r.Workload, p.QPS, p.Requests,
				100*p.HitRatio, 100*p.Filled, p.Evictions.System, p.Evictions.User, p.Evictions.Other)
		}
	}
	return t.Flush()
}
