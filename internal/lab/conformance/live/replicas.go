package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/endpick/endpick/internal/lab/traffic"
)

// replicasOptions are the flags of replicas: requests go to gateways in turn.
type replicasOptions struct {
	traffic.Workload
	servers int
}

const (
	policy   = "marginal-delay"
	kvTokens = 16384                   // of each server
	delay    = 2500 * time.Microsecond // of the way between a gateway and NATS; a message takes two of them
)

func replicasFlags(f *flag.FlagSet) verb {
	o := &replicasOptions{servers: 6}
	f.DurationVar(&o.Duration, "duration", 18*time.Second, "how long conversations start, each time")
	f.Float64Var(&o.Rate, "rate", 40, "mean `requests` per second")
	o.Groups, o.SystemTokens, o.QuestionTokens, o.OutputTokens, o.Turns, o.Think, o.Seed = 24, 2000, 60, 32, 3, 400*time.Millisecond, 1
	return o
}

func (o *replicasOptions) check() error {
	if o.Duration < 6*time.Second || o.Rate <= 0 {
		return errors.New("-rate is above 0, -duration at least 6s")
	}
	return nil
}

// run plays the same conversations with each number of gateways and prints the results.
func (o *replicasOptions) run(ctx context.Context, stdout, _ io.Writer) error {
	conversations := o.Conversations()
	runs := []run{
		{name: "one gateway", gateways: 1},
		{name: "3, nothing shared", gateways: 3},
		{name: "3, load shared", gateways: 3, how: loads},
		{name: "3, load and index", gateways: 3, how: everything},
		{name: "3, NATS killed", gateways: 3, how: everything, kill: true},
	}
	var results []result
	for _, r := range runs {
		res, err := r.play(ctx, o, conversations)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		results = append(results, res)
		fmt.Fprintf(stdout, "%s: done\n", r.name)
	}
	if err := table(stdout, results); err != nil {
		return err
	}
	return summary(stdout, results)
}

func table(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\t\tTTFT ms\t\t\tE2E ms\t\tprefix\tim-\tmessages\tbytes\tnew blocks\t")
	fmt.Fprintln(t, "gateways\trequests\tfailed\tp50\tp95\tp99\tp50\tp95\thits\tbalance\teach\teach\teach\t")
	for i := range results {
		r := &results[i]
		c, shared := cost(r), "–\t–\t–"
		if len(r.status) > 0 {
			shared = fmt.Sprintf("%.2f\t%.0f\t%.1f", c.messages, c.bytes, c.blocks)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.3f\t%.2f\t%s\t\n", r.Policy, r.Requests, r.Failed,
			r.TTFT.P50, r.TTFT.P95, r.TTFT.P99, r.E2E.P50, r.E2E.P95, *r.PrefixHitRatio, r.imbalance, shared)
	}
	return t.Flush()
}

// costs is the mean cost of a request on the bus.
type costs struct{ messages, bytes, blocks float64 }

// beside is the cost without new blocks, of 8 bytes each.
func (c *costs) beside() float64 { return c.bytes - 8*c.blocks }

func cost(r *result) (c costs) {
	var shared float64
	for _, s := range r.status {
		shared += float64(s.Shared)
		c.messages += float64(s.Sent)
		c.bytes += float64(s.SentBytes - s.SnapshotBytes)
		c.blocks += float64(s.Blocks)
	}
	if shared == 0 {
		return costs{}
	}
	return costs{c.messages / shared, c.bytes / shared, c.blocks / shared}
}

// mostBytes is the most that a request may cost besides its new blocks. The goal is
// 64; with few requests per second there is nothing to share a message with.
const mostBytes = 128

// summary says in one line whether everything went well.
func summary(w io.Writer, results []result) error {
	requests := 0
	for i := range results {
		requests += results[i].Requests
		if c := cost(&results[i]); c.beside() > mostBytes {
			return fmt.Errorf("%s: a request costs %.0f bytes, more than %d and 8 for each new block", results[i].Policy, c.bytes, mostBytes)
		}
	}
	alone, shared, killed := &results[1], &results[3], &results[4]
	c := cost(shared)
	_, err := fmt.Fprintf(w, "ok: %d requests, none lost; hit ratio %.3f shared, %.3f alone; imbalance %.2f shared, %.2f alone; "+
		"TTFT p95 %.2f of alone's; a request costs %.0f bytes and 8 for each of %.1f new blocks; "+
		"NATS killed: noticed in %.1f s, no request lost; no lease left\n",
		requests, *shared.PrefixHitRatio, *alone.PrefixHitRatio, shared.imbalance, alone.imbalance,
		shared.TTFT.P95/alone.TTFT.P95, c.beside(), c.blocks, killed.outage.Seconds())
	return err
}
