package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
)

const againstUsage = `simulate against [flags]: the same conversations through endpick's gateway and other routers

Each run is in real time and has four new model servers. A router that is not in the PATH
is skipped. The others are compared with the first, seed by seed. An interrupt ends after the
last seed that is whole.`

// againstWork is a workload, and the tokens that a server has room for: chats, agents, and agents whose contexts do
// not fit.
func againstWork(name string) (w traffic.Workload, kvTokens int) {
	agents := traffic.Workload{Rate: 16, Groups: 4, SystemTokens: 2000, QuestionTokens: 500, OutputTokens: 48, Turns: 10, Think: 300 * time.Millisecond}
	switch name {
	case "chat":
		return traffic.ContestWorkload(0), 16384
	case "agents":
		return agents, 65536
	}
	return agents, 16384
}

// againstRow is what was measured behind a router.
type againstRow struct {
	Workload string           `json:"workload"`
	Router   string           `json:"router"`
	Version  string           `json:"version,omitempty"`
	Seeds    []traffic.Result `json:"seeds"`
	peer     *peer
}

// against is the verb.
func against(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(againstUsage, flag.ContinueOnError)
	all := peers()
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	oneOf := func(what string, known []string) *list[string] {
		return listOf(func(s string) (string, error) {
			if !slices.Contains(known, s) {
				return "", fmt.Errorf("%q is not a %s (known: %s)", s, what, strings.Join(known, ", "))
			}
			return s, nil
		}, known...)
	}
	routers, workloads := oneOf("router", known), oneOf("workload", []string{"chat", "agents", "tight"})
	flags.Var(routers, "routers", "comma-separated `names`")
	flags.Var(workloads, "workload", "comma-separated `names`")
	seeds := listOf(readSeed, 1, 2, 3)
	flags.Var(seeds, "seed", "comma-separated `seeds`")
	duration := flags.Duration("duration", 25*time.Second, "how long conversations start in each run")
	kill := flags.Bool("kill", false, "kill a server at 40 % of the duration, and start it again at 70 %")
	format := flags.String("format", "table", "table or json")
	plot := flags.String("plot", "", "`file` for a chart of the E2E latencies, in SVG")
	if _, err := parse(flags, args, stderr); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return usage("what is %q?", flags.Arg(0))
	case *format != "table" && *format != "json":
		return usage("-format %q is unknown (known: table, json)", *format)
	case *duration <= 0:
		return usage("-duration %v is not above zero", *duration)
	}
	dir, err := os.MkdirTemp("", "against")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	var here []*peer
	for _, name := range routers.values {
		p := &all[slices.Index(known, name)]
		if err := p.find(dir); err != nil {
			fmt.Fprintf(stderr, "%s is skipped: %v\n", name, err)
			continue
		}
		here = append(here, p)
	}
	if len(here) == 0 {
		return usage("none of the routers is there")
	}
	var rows []*againstRow
	for _, w := range workloads.values {
		for _, p := range here {
			rows = append(rows, &againstRow{Workload: w, Router: p.name, Version: p.version, peer: p})
		}
	}
	runs := len(rows) * len(seeds.values)
	for i := range runs { // the runs of a seed follow each other
		seed, row := seeds.values[i/len(rows)], rows[i%len(rows)]
		w, kvTokens := againstWork(row.Workload)
		w.Duration, w.Seed = *duration, seed
		open := func(f *traffic.Fleet) (*traffic.Front, error) {
			front, err := row.peer.open(dir, f)
			if err == nil && *kill {
				err = killOne(front, f, *duration, kvTokens)
			}
			return front, err
		}
		samples, err := traffic.PlayBehind(ctx, 4, kvTokens, open, w.Conversations(), func() {})
		if ctx.Err() != nil && i >= len(rows) { // interrupted: what is whole counts
			for _, r := range rows {
				r.Seeds = r.Seeds[:i/len(rows)]
			}
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", row.Router, err)
		}
		row.Seeds = append(row.Seeds, traffic.Summarise(row.Router, samples, endpick.SLO{}))
		progress(stderr, i+1, runs)
	}
	if *plot != "" {
		if err := os.WriteFile(*plot, []byte(againstChart(rows).svg()), 0o666); err != nil {
			return err
		}
	}
	if *format == "json" {
		return indented(stdout, rows)
	}
	return writeAgainst(stdout, rows)
}

// killOne kills a server while the conversations of a workload begin, and starts it again.
func killOne(front *traffic.Front, fleet *traffic.Fleet, duration time.Duration, kvTokens int) error {
	config, err := traffic.ServerConfig(kvTokens)
	if err != nil {
		return err
	}
	ended, stop := make(chan error, 1), front.Stop
	go func() {
		time.Sleep(duration * 2 / 5)
		err := fleet.Members[0].Kill()
		time.Sleep(duration * 3 / 10)
		ended <- errors.Join(err, fleet.Members[0].Start(config))
	}()
	front.Stop = func() error { return errors.Join(stop(), <-ended) }
	return nil
}

// times are p50 and p95 of TTFT and E2E in a seed; NaN if nothing was served.
func (r *againstRow) times(seed int) [4]float64 {
	s := r.Seeds[seed]
	if s.E2E == nil {
		return [4]float64{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	}
	return [4]float64{s.TTFT.P50, s.TTFT.P95, s.E2E.P50, s.E2E.P95}
}

// means are their geometric means.
func (r *againstRow) means() (all [4]float64) {
	for i := range all {
		for seed := range r.Seeds {
			all[i] += math.Log(r.times(seed)[i]) / float64(len(r.Seeds))
		}
		all[i] = math.Exp(all[i])
	}
	return all
}

// writeAgainst prints a row for each router and workload: geometric means over the seeds, and the least and the most
// of E2E's ratio to the first router's among the seeds.
func writeAgainst(w io.Writer, rows []*againstRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\trouter\tversion\trequests\tfailed\tTTFT p50\tp95\tE2E p50\tp95\thits\tp50 ratio\tp95 ratio\t")
	var first *againstRow
	for _, r := range rows {
		if first == nil || first.Workload != r.Workload {
			first = r
		}
		requests, failed, hits := 0, 0, 0.0
		for _, s := range r.Seeds {
			requests, failed = requests+s.Requests, failed+s.Failed
			if s.PrefixHitRatio != nil {
				hits += *s.PrefixHitRatio / float64(len(r.Seeds))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t", r.Workload, r.Router, r.Version, requests, failed)
		for _, ms := range r.means() {
			fmt.Fprintf(t, "%.0f\t", ms)
		}
		fmt.Fprintf(t, "%.2f\t", hits)
		for i := 2; i < 4; i++ {
			var ratios []float64
			for seed := range r.Seeds {
				ratios = append(ratios, r.times(seed)[i]/first.times(seed)[i])
			}
			fmt.Fprintf(t, "%.2f–%.2f\t", slices.Min(ratios), slices.Max(ratios))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nMilliseconds, geometric means over %d seeds; ratios are of E2E to %s's, from the least of a seed to the most.\n", len(first.Seeds), first.Router)
	return err
}

// againstChart has a panel for each workload and a dot for each router.
func againstChart(rows []*againstRow) (c chart) {
	for _, r := range rows {
		axis, color := r.Workload+": E2E p50 in ms", 0
		if n := len(c); n == 0 || c[n-1].x != axis {
			c, color = append(c, panel{x: axis, y: "E2E p95 in ms", log: true}), 4
		}
		p, at := &c[len(c)-1], r.means()
		p.series = append(p.series, series{r.Router, color, [][2]float64{{at[2], at[3]}}})
	}
	return c
}
