// Shortlist measures how often predicted-latency chooses another server because it predicts
// only a shortlist of them, and what that costs.
//
//	go run ./examples/shortlist -servers 100,1000
//
// It simulates each scenario with all servers predicted and asks in each decision what the
// shortlist would have chosen, and then runs it with and without the shortlist. The models
// have learned from the same work on 20 servers. Decisions on which the shortlist has no
// opinion are not counted. Those of the first 40 requests per server, while all servers are
// nearly empty and nearly equal, are counted separately; "lighter" are those different
// choices among them that take a server with no more load than the best, in any respect.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "shortlist:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("shortlist", flag.ContinueOnError)
	workloads := flags.String("workload", "A,B,C,D", "comma-separated `scenarios`")
	loads := flags.String("load", "middle,high", "comma-separated `loads`: low, middle, high")
	servers := flags.String("servers", "100", "comma-separated `numbers` of servers")
	each := flags.Int("requests", 100, "`requests` for each server")
	seeds := flags.Int("seeds", 1, "how many `seeds` the change of the mean latency is taken over, ± its standard error; 0 leaves it out")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *each < 1 || *seeds < 0 {
		return fmt.Errorf("there are %d arguments too many, or a number is below its least", flags.NArg())
	}
	fmt.Fprintf(out, "%8s %6s %7s  %7s %7s %8s %9s  %7s %7s %8s %6s  %10s\n", "workload", "load", "servers",
		"filling", "same %", "regret %", "lighter", "then", "same %", "regret %", "list", "E2E mean %")
	for workload := range strings.SplitSeq(*workloads, ",") {
		for load := range strings.SplitSeq(*loads, ",") {
			for n := range strings.SplitSeq(*servers, ",") {
				count, err := strconv.Atoi(n)
				if err != nil || count < 1 {
					return fmt.Errorf("-servers has %q, which is not a number above 0", n)
				}
				if err := row(out, cell{scenario: workload, servers: count, load: load, requests: *each * count, seed: 1}, *seeds); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func row(out io.Writer, c cell, seeds int) error {
	learned, err := c.learned()
	if err != nil {
		return err
	}
	a, err := c.audit(learned)
	if err != nil {
		return err
	}
	first, then := &a.counts[0], &a.counts[1]
	fmt.Fprintf(out, "%8s %6s %7d  %7d %7.2f %8.4f %9s  %7d %7.2f %8.4f %6.1f", c.scenario, c.load, c.servers,
		first.Narrowed, 100*first.same(), 100*first.regret(), first.others(), then.Narrowed, 100*then.same(), 100*then.regret(), then.listed())
	var changes []float64
	for range seeds {
		with, err := c.latency(learned, false)
		if err != nil {
			return err
		}
		without, err := c.latency(learned, true)
		if err != nil {
			return err
		}
		changes = append(changes, 100*(with/without-1))
		c.seed++
	}
	if seeds > 0 {
		mean, deviation := meanAndDeviation(changes)
		fmt.Fprintf(out, "  %+6.2f", mean)
		if seeds > 1 {
			fmt.Fprintf(out, " ±%.2f", deviation/math.Sqrt(float64(seeds)))
		}
	}
	fmt.Fprintln(out)
	return nil
}

// meanAndDeviation returns the mean of values and their standard deviation.
func meanAndDeviation(values []float64) (mean, deviation float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean) / max(n-1, 1)
	}
	return mean, math.Sqrt(deviation)
}
