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

func against(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(againstUsage, flag.ContinueOnError)
	all := peers()
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	works := []string{"chat", "agents", "tight"}
	routers, workloads := listOf(oneOf("router", known...), known...), listOf(oneOf("workload", works...), works...)
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
		return fmt.Errorf("what is %q?", flags.Arg(0))
	case *format != "table" && *format != "json":
		return fmt.Errorf("-format %q is unknown (known: table, json)", *format)
	case *duration <= 0:
		return fmt.Errorf("-duration %v is not above zero", *duration)
	}
	dir, err := os.MkdirTemp("", "against")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	here := findAll(all, routers.values, dir, stderr)
	if len(here) == 0 {
		return fmt.Errorf("none of the routers is there")
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
		traffic.Progress(stderr, i+1, runs, "runs")
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

// findAll finds the routers of these names. Those that are not there are skipped.
func findAll(all []peer, names []string, dir string, stderr io.Writer) (here []*peer) {
	for _, name := range names {
		p := &all[slices.IndexFunc(all, func(p peer) bool { return p.name == name })]
		if err := p.find(dir); err != nil {
			fmt.Fprintf(stderr, "%s is skipped: %v\n", name, err)
			continue
		}
		here = append(here, p)
	}
	return here
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

// times are the geometric means over the seeds of E2E's p50 and p95; NaN if nothing was served in one.
func (r *againstRow) times() (p50, p95 float64) {
	for _, s := range r.Seeds {
		if s.E2E == nil {
			return math.NaN(), math.NaN()
		}
		p50, p95 = p50+math.Log(s.E2E.P50), p95+math.Log(s.E2E.P95)
	}
	n := float64(len(r.Seeds))
	return math.Exp(p50 / n), math.Exp(p95 / n)
}

// writeAgainst prints a row for each router. The rows of a workload follow each other.
func writeAgainst(w io.Writer, rows []*againstRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head, routers := "router\tversion\t", 0
	for i, r := range rows {
		if r.Workload == rows[0].Workload {
			routers = i + 1
		}
		if i%routers == 0 {
			head += r.Workload + "\tp95\thits\tfailed\t"
		}
	}
	fmt.Fprintln(t, head)
	for i, router := range rows[:routers] {
		fmt.Fprintf(t, "%s\t%s\t", router.Router, router.Version)
		for ; i < len(rows); i += routers {
			failed, hits := 0, 0.0
			for _, s := range rows[i].Seeds {
				failed += s.Failed
				if s.PrefixHitRatio != nil {
					hits += *s.PrefixHitRatio / float64(len(rows[i].Seeds))
				}
			}
			p50, p95 := rows[i].times()
			fmt.Fprintf(t, "%.0f\t%.0f\t%.2f\t%d\t", p50, p95, hits, failed)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nE2E in ms, p50 and p95: geometric means over %d seeds.\n", len(rows[0].Seeds))
	return err
}

// againstChart has a panel for each workload and a dot for each router.
func againstChart(rows []*againstRow) (c chart) {
	for _, r := range rows {
		axis, color := r.Workload+": E2E p50 in ms", 0
		if n := len(c); n == 0 || c[n-1].x != axis {
			c, color = append(c, panel{x: axis, y: "E2E p95 in ms", log: true}), 4
		}
		p := &c[len(c)-1]
		p50, p95 := r.times()
		p.series = append(p.series, series{r.Router, color, [][2]float64{{p50, p95}}})
	}
	return c
}
