package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/endpick/endpick/scorer/preset/all"
)

const tournamentUsage = `simulate tournament [flags]: every policy on many workloads, at several loads

A load is a share of the fleet's saturation, which is found first: the requests per
second that are completed when three times as many arrive. The loss of a policy in a
cell, a workload at a load, is how much longer it takes than the best policy there.`

// tournament is the command line of the verb.
type tournament struct {
	contests []contest
	policies []string
	loads    []float64
	seeds    []uint64
	requests int
	format   string
	plot     string // file for a chart
}

// score is one run.
type score struct {
	Contest  string  `json:"contest"`
	Load     float64 `json:"load"` // share of saturation
	Policy   string  `json:"policy"`
	Seed     uint64  `json:"seed"`
	Requests int     `json:"requests"`
	Rate     float64 `json:"rate"`

	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFT50   float64 `json:"ttft_p50_ms"`
	TTFT95   float64 `json:"ttft_p95_ms"`
	TPOT50   float64 `json:"tpot_p50_ms"`
	TPOT95   float64 `json:"tpot_p95_ms"`
	E2EMean  float64 `json:"e2e_mean_ms"`
	E2E95    float64 `json:"e2e_p95_ms"`
	Done     float64 `json:"throughput_rps"`
	Hits     float64 `json:"prefix_hit_ratio"`
}

// measures are the measures by which policies are compared.
var measures = []struct {
	name  string
	value func(*score) float64
}{
	{"E2E mean", func(s *score) float64 { return s.E2EMean }},
	{"E2E p95", func(s *score) float64 { return s.E2E95 }},
	{"TTFT mean", func(s *score) float64 { return s.TTFTMean }},
	{"TTFT p95", func(s *score) float64 { return s.TTFT95 }},
}

func playTournament(args []string, stdout, stderr io.Writer) error {
	var t tournament
	flags := flag.NewFlagSet(tournamentUsage, flag.ContinueOnError)
	all := contests()
	names := listOf(oneOf("contest", slices.Concat(sets, contestNames(all))...))
	flags.Var(names, "contests", "comma-separated `names`; tuned are those by which the library was tuned, held and foreign others, the latter on engines that work in another way (default: all): "+strings.Join(contestNames(all), ", "))
	policies := listOf(readPolicy, tournamentPolicies()...)
	flags.Var(policies, "policies", "comma-separated `names`, each with conditions if wanted: "+conditionsUsage)
	loads := listOf(positive, 0.5, 0.8, 1.05)
	flags.Var(loads, "load", "comma-separated `shares` of saturation")
	seeds := listOf(readSeed, 1, 2, 3, 4, 5)
	flags.Var(seeds, "seed", "comma-separated `seeds`")
	flags.IntVar(&t.requests, "requests", defaultRequests, "`number` of requests in a run")
	quick := flags.Bool("quick", false, "4,000 requests, three seeds, no policy that is known to be far behind")
	flags.StringVar(&t.format, "format", "table", "table, cells (a table of losses by cell too), or json")
	flags.StringVar(&t.plot, "plot", "", "`file` for a chart of the table, in SVG")
	given, err := parse(flags, args, stderr)
	if err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("what is %q? simulate tournament takes flags only", flags.Arg(0))
	case !slices.Contains([]string{"table", "cells", "json"}, t.format):
		return fmt.Errorf("-format %q is unknown (known: table, cells, json)", t.format)
	case t.plot != "" && t.format == "json":
		return fmt.Errorf("-plot is not for -format json")
	case t.requests < 100:
		return fmt.Errorf("-requests %d is too small", t.requests)
	}
	if *quick {
		if !given["requests"] {
			t.requests = 4000
		}
		if !given["seed"] {
			seeds.values = []uint64{1, 2, 3}
		}
		if !given["policies"] {
			policies.values = []string{"load-prefix", "lmetric", "preble", "sglang", "predicted-latency", "marginal-delay"}
		}
	}
	t.policies, t.loads, t.seeds = policies.values, loads.values, seeds.values
	for _, c := range all {
		if len(names.values) == 0 || slices.Contains(names.values, c.name) ||
			slices.Contains(names.values, c.set) {
			t.contests = append(t.contests, c)
		}
	}
	scores, err := t.play(stderr)
	if err != nil {
		return err
	}
	if t.format == "json" {
		return indented(stdout, scores)
	}
	return t.write(stdout, scores)
}

func contestNames(all []contest) (names []string) {
	for _, c := range all {
		names = append(names, c.name)
	}
	return names
}

// tournamentPolicies are all presets except the one meant to be the worst.
func tournamentPolicies() []string {
	return slices.DeleteFunc(all.Names(), func(name string) bool { return name == "always-busiest" })
}

// probes are the policies with which saturation is determined.
var probes = []string{"lmetric", "load-prefix"}

// saturations returns the rates at which the contests' fleets are full.
func (t *tournament) saturations(stderr io.Writer) (map[string]float64, error) {
	var find []score
	saturation := map[string]float64{}
	for _, c := range t.contests {
		if saturation[c.name] = c.saturation; c.saturation > 0 {
			continue
		}
		for _, p := range probes {
			find = append(find, score{Contest: c.name, Policy: p, Seed: 1, Requests: t.requests, Rate: 3 * c.guess})
		}
	}
	err := t.runAll(find, stderr)
	for _, s := range find {
		saturation[s.Contest] = max(saturation[s.Contest], s.Done)
	}
	return saturation, err
}

// play makes all runs.
func (t *tournament) play(stderr io.Writer) ([]score, error) {
	saturation, err := t.saturations(stderr)
	if err != nil {
		return nil, err
	}
	var runs []score
	for _, c := range t.contests {
		for _, load := range t.loads {
			for _, p := range t.policies {
				for _, seed := range t.seeds {
					runs = append(runs, score{Contest: c.name, Load: load, Policy: p, Seed: seed, Requests: t.requests, Rate: load * saturation[c.name]})
				}
			}
		}
	}
	return runs, t.runAll(runs, stderr)
}

// runAll makes the runs, on all cores. The error is the first in their order.
func (t *tournament) runAll(runs []score, stderr io.Writer) error {
	return inParallel(len(runs), stderr, func(i int) error {
		if err := t.run(&runs[i]); err != nil {
			return fmt.Errorf("%s, %s: %w", runs[i].Contest, runs[i].Policy, err)
		}
		return nil
	})
}

func (t *tournament) run(s *score) error {
	i := slices.IndexFunc(t.contests, func(c contest) bool { return c.name == s.Contest })
	c := &t.contests[i]
	fleet, err := c.fleet()
	if err != nil {
		return err
	}
	work, err := c.work(s.Rate, s.Requests)
	if err != nil {
		return err
	}
	config := sim.Config{
		Fleet: fleet, Workload: work, Seed: s.Seed, Router: func() (endpick.Config, error) { return newPolicy(s.Policy) },
	}
	if err := configure(&config, s.Policy); err != nil {
		return err
	}
	if c.config != nil {
		c.config(&config)
	}
	report, err := sim.Run(config)
	if err != nil {
		return err
	}
	s.TTFTMean, s.TTFT50, s.TTFT95 = report.TTFT.Mean, report.TTFT.P50, report.TTFT.P95
	s.TPOT50, s.TPOT95 = report.TPOT.P50, report.TPOT.P95
	s.E2EMean, s.E2E95 = report.E2E.Mean, report.E2E.P95
	s.Done, s.Hits = report.ThroughputRPS, report.PrefixHitRatio
	return nil
}
