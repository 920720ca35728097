package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/sim"
)

const oracleUsage = `simulate oracle [flags]: what is left to gain

For each workload at each load, the first policy is compared with the others and with an
oracle: a policy that tries each server for each request with the true future, and takes
the one with the lowest mean E2E over all requests. All get the same requests at the
same times.`

func playOracle(args []string, stdout, stderr io.Writer) error {
	var t tournament
	flags := flag.NewFlagSet(oracleUsage, flag.ContinueOnError)
	all := contests()
	names := listOf(func(s string) (string, error) {
		if slices.ContainsFunc(all, func(c contest) bool { return c.name == s }) {
			return s, nil
		}
		return "", fmt.Errorf("%q is not a contest (known: %s)", s, contestNames(all))
	}, "A-qwe", "C-qwe", "zipf", "mixed")
	flags.Var(names, "contests", "comma-separated `names`: "+contestNames(all))
	policies := listOf(readPolicy, "marginal-delay", "predicted-latency", "lmetric", "sglang", "load-prefix")
	flags.Var(policies, "policies", "comma-separated `names`; the oracle begins with what the first one does")
	loads := listOf(positive, 0.5, 0.8, 1.05)
	flags.Var(loads, "load", "comma-separated `shares` of saturation")
	seed := flags.Uint64("seed", 1, "`number` that all chance depends on")
	requests := flags.Int("requests", 300, "`number` of requests in a run")
	flags.StringVar(&t.state, "state", "", "the `file` of a tournament with the rates of saturation (default: they are looked for)")
	path := flags.String("out", "", "write to this `file` (default: standard output)")
	if _, err := parse(flags, args, stderr); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return usage("what is %q? simulate oracle takes flags only", flags.Arg(0))
	case *requests < 10 || *requests > 2000:
		return usage("-requests %d is not within [10, 2000]: there is a run for each request and server", *requests)
	}
	t.requests, t.loads, t.policies = 4000, loads.values, policies.values
	for _, c := range all {
		if slices.Contains(names.values, c.name) {
			t.contests = append(t.contests, c)
		}
	}
	out, err := openOutput(*path, stdout)
	if err != nil {
		return err
	}
	_, saturation, err := t.saturations(stderr)
	if err != nil {
		return err
	}
	progress := newProgress(stderr, len(t.contests)*len(t.loads)*(*requests))
	defer progress.end()
	var page bytes.Buffer
	tw := tabwriter.NewWriter(&page, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "contest\tload\treq/s\t")
	for _, p := range t.policies {
		fmt.Fprintf(tw, "%s\t", p)
	}
	fmt.Fprint(tw, "oracle\tshare of the way\tTTFT p95\toracle\t\n\t\t\t")
	for range len(t.policies) + 1 {
		fmt.Fprint(tw, "E2E, s\t")
	}
	fmt.Fprintln(tw, "%\tms\tms\t")
	for i := range t.contests {
		for _, load := range t.loads {
			rate := load * saturation[t.contests[i].name]
			if err := t.contests[i].compareWithOracle(tw, t.policies, load, rate, *requests, *seed, progress.add); err != nil {
				return fmt.Errorf("%s: %w", t.contests[i].name, err)
			}
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&page, "\n%d requests, seed %d. The share of the way is how far %s goes from the best of the other policies to the oracle.\n", *requests, *seed, t.policies[0])
	return out.write(&page)
}

// compareWithOracle writes a row.
func (c *contest) compareWithOracle(w io.Writer, policies []string, load, rate float64, requests int, seed uint64, progress func()) error {
	config := func(policy string, work sim.Workload) (sim.Config, error) {
		fleet, err := c.fleet()
		return sim.Config{Fleet: fleet, Workload: work, Seed: seed, Router: func() (endpick.Config, error) { return newPolicy(policy) }}, err
	}
	work, err := c.work(rate, requests)
	if err != nil {
		return err
	}
	cfg, err := config(policies[0], work)
	if err != nil {
		return err
	}
	if cfg.Workload, err = sim.Fix(cfg); err != nil {
		return err
	}
	plain, best, err := sim.Oracle(cfg, progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\t%g %%\t%.2f\t%.2f\t", c.name, math.Round(1000*load)/10, rate, plain.E2E.Mean/1000)
	other := math.Inf(1)
	for _, p := range policies[1:] {
		cfg, err := config(p, cfg.Workload)
		if err != nil {
			return err
		}
		report, err := sim.Run(cfg)
		if err != nil {
			return err
		}
		other = min(other, report.E2E.Mean)
		fmt.Fprintf(w, "%.2f\t", report.E2E.Mean/1000)
	}
	fmt.Fprintf(w, "%.2f\t", best.E2E.Mean/1000)
	if share := (other - plain.E2E.Mean) / (other - best.E2E.Mean); other > best.E2E.Mean {
		fmt.Fprintf(w, "%.0f\t", 100*share)
	} else {
		fmt.Fprint(w, "–\t") // nothing to gain, or nothing to compare with
	}
	fmt.Fprintf(w, "%.0f\t%.0f\t\n", plain.TTFT.P95, best.TTFT.P95)
	return nil
}
