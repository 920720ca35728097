package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// compare runs the same workload under each policy, with fresh servers, and
// prints what was measured.
func compare(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	conversations := o.conversations()
	var results []result
	for _, policy := range o.policies {
		bar := newBar(stderr, policy, len(conversations)*o.turns)
		samples, err := measure(ctx, o, policy, conversations, bar.step)
		bar.end()
		if err != nil {
			return fmt.Errorf("%s: %w", policy, err)
		}
		results = append(results, summarise(policy, samples, o.slo))
	}
	write := writeTable
	if o.format == "json" {
		write = writeJSON
	}
	if err := write(stdout, results); err != nil {
		return err
	}
	var failures []error
	for _, r := range results {
		if r.Failed > 0 {
			failures = append(failures, fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.firstErr))
		}
	}
	return errors.Join(failures...)
}

// measure starts servers and a gateway, plays the conversations and takes all
// down again. step is called after each request.
func measure(ctx context.Context, o *options, policy string, conversations []conversation, step func()) (samples []sample, err error) {
	config, err := serverConfig(o.kvTokens)
	if err != nil {
		return nil, err
	}
	f, err := startFleet(o.endpoints, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	g, err := newGateway(gatewayConfig{
		policy: policy, endpoints: f.endpoints(), seed: o.seed, queue: o.hold(), log: log.New(io.Discard, "", 0),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()

	c := newClient("http://" + l.Addr().String())
	defer c.close()
	c.slo = o.slo
	samples = play(ctx, c, conversations, step)
	return samples, ctx.Err()
}

// play plays all conversations at their times and returns when they are over.
func play(ctx context.Context, c *client, conversations []conversation, step func()) []sample {
	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		samples []sample
	)
	begin := time.Now()
	for i := range conversations {
		group.Go(func() {
			c.converse(ctx, begin, &conversations[i], func(s sample) {
				mu.Lock()
				defer mu.Unlock()
				samples = append(samples, s)
				step()
			})
		})
	}
	group.Wait()
	return samples
}
