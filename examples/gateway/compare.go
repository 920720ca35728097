package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// alone names what a fleet is compared with: one server that has it all.
const alone = "one server"

// compare runs the same workload under each policy, in turn and as often as asked
// for, and prints what was measured. Every time embedded servers are fresh; for
// servers that are there already the conversations are, so that they find nothing
// in the caches.
func compare(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	if len(o.backends) > 0 && o.model == "" {
		var err error
		if o.model, err = modelOf(ctx, o.backends[0]); err != nil {
			return err
		}
	}
	contenders := o.policies
	if o.single != "" {
		contenders = append(slices.Clone(contenders), alone)
	}
	samples := make([][]sample, len(contenders))
	for again := range o.repeat {
		w := o.workload
		w.seed += uint64(again)
		conversations := w.conversations()
		for i, name := range contenders {
			if len(o.backends) > 0 {
				conversations = cold(conversations)
			}
			label := name
			if o.repeat > 1 {
				label = fmt.Sprintf("%s, %d of %d", name, again+1, o.repeat)
			}
			bar := newBar(stderr, label, len(conversations)*o.turns)
			more, err := measure(ctx, o, name, conversations, bar.step)
			bar.end()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			samples[i] = append(samples[i], more...)
		}
	}
	var results []result
	for i, name := range contenders {
		results = append(results, summarise(name, samples[i], o.slo))
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

// measure puts a gateway before the servers, plays the conversations and takes all
// down again. step is called after each request.
func measure(ctx context.Context, o *options, policy string, conversations []conversation, step func()) (samples []sample, err error) {
	if policy == alone {
		return drive(ctx, o, o.single, conversations, step)
	}
	endpoints, stop, err := backends(o.settings(), nil, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	g, err := newGateway(gatewayConfig{
		policy: policy, endpoints: endpoints, seed: o.seed, queue: o.settings().hold(), log: slog.New(slog.DiscardHandler),
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
	return drive(ctx, o, "http://"+l.Addr().String(), conversations, step)
}

// drive plays the conversations against a gateway or a server.
func drive(ctx context.Context, o *options, url string, conversations []conversation, step func()) ([]sample, error) {
	c := newClient(url)
	defer c.close()
	c.slo, c.api = o.slo, apis[o.api]
	if len(o.backends) > 0 {
		c.model, c.exact = o.model, false
	}
	samples := play(ctx, c, conversations, step)
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
