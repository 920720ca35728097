// Shortlist tells how often predicted-latency chooses another server because it predicts
// only a shortlist of them, and what that costs.
//
//	go run ./examples/shortlist -servers 100,1000
//
// It simulates each scenario with everybody predicted and asks in each decision what the
// shortlist would have chosen, and then runs it with and without the shortlist. Decisions
// of which the shortlist has no opinion, such as all before two thousand responses, are not
// counted.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
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
	seeds := flags.Int("seeds", 1, "how many `seeds` mean latencies are taken over; 0 leaves latencies out")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *each < 1 || *seeds < 0 {
		return fmt.Errorf("there are %d arguments too many, or a number is below its least", flags.NArg())
	}
	fmt.Fprintf(out, "%8s %8s %7s  %10s %7s %9s %8s  %10s\n", "workload", "load", "servers", "decisions", "same %", "regret %", "list", "E2E mean %")
	for workload := range strings.SplitSeq(*workloads, ",") {
		for load := range strings.SplitSeq(*loads, ",") {
			for n := range strings.SplitSeq(*servers, ",") {
				count, err := strconv.Atoi(n)
				if err != nil || count < 1 {
					return fmt.Errorf("-servers has %q, which is no number above 0", n)
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
	a, err := c.audit()
	if err != nil {
		return err
	}
	n := float64(a.Narrowed)
	fmt.Fprintf(out, "%8s %8s %7d  %10d %7.2f %9.4f %8.1f", c.scenario, c.load, c.servers, a.Narrowed, 100*float64(a.Same)/n, 100*a.Regret/n, float64(a.Listed)/n)
	var with, without float64
	for range seeds {
		l, err := c.latency("predicted-latency:synchronous")
		if err != nil {
			return err
		}
		m, err := c.latency("predicted-latency:no-shortlist:synchronous")
		if err != nil {
			return err
		}
		with, without = with+l, without+m
		c.seed++
	}
	if seeds > 0 {
		fmt.Fprintf(out, "  %+10.2f", 100*(with/without-1))
	}
	fmt.Fprintln(out)
	return nil
}
