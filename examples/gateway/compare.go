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
	"time"

	"github.com/endpick/endpick/internal/lab/traffic"
)

// alone is the row of a single server with which a fleet is compared.
const alone = "one server"

// compare runs the same workload under each policy, in turn and as often as
// requested, and prints what it measured. Embedded servers are new each time;
// existing servers get new conversations, which they have not cached.
func compare(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	if len(o.backends) > 0 && o.model == "" {
		var err error
		if o.model, err = traffic.ModelOf(ctx, o.backends[0]); err != nil {
			return err
		}
	}
	contenders := o.policies
	if o.single != "" {
		contenders = append(slices.Clone(contenders), alone)
	}
	samples := make([][]traffic.Sample, len(contenders))
	for again := range o.repeat {
		w := o.Workload
		w.Seed += uint64(again)
		conversations := w.Conversations()
		for i, name := range contenders {
			if len(o.backends) > 0 {
				conversations = traffic.Cold(conversations)
			}
			label := name
			if o.repeat > 1 {
				label = fmt.Sprintf("%s, %d of %d", name, again+1, o.repeat)
			}
			bar := newBar(stderr, label, len(conversations)*o.Turns)
			more, err := measure(ctx, o, name, conversations, bar.step)
			bar.end()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			samples[i] = append(samples[i], more...)
		}
	}
	var results []traffic.Result
	for i, name := range contenders {
		results = append(results, traffic.Summarise(name, samples[i], o.slo))
	}
	write := traffic.WriteTable
	if o.format == "json" {
		write = traffic.WriteJSON
	}
	if err := write(stdout, results); err != nil {
		return err
	}
	var failures []error
	for _, r := range results {
		if r.Failed > 0 {
			failures = append(failures, fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.FirstErr))
		}
	}
	return errors.Join(failures...)
}

// measure puts a gateway in front of the servers, plays the conversations and
// shuts everything down. It calls step after each request.
func measure(ctx context.Context, o *options, policy string, conversations []traffic.Conversation, step func()) (samples []traffic.Sample, err error) {
	if policy == alone {
		return drive(ctx, o, o.single, conversations, step)
	}
	endpoints, stop, err := backends(o.settings(), o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	g, err := newGateway(gatewayConfig{
		policy: policy, endpoints: endpoints, seed: o.Seed, queue: o.settings().hold(), log: slog.New(slog.DiscardHandler),
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
func drive(ctx context.Context, o *options, url string, conversations []traffic.Conversation, step func()) ([]traffic.Sample, error) {
	c := traffic.NewClient(url)
	defer c.Close()
	c.SLO, c.API = o.slo, traffic.APIs[o.api]
	if len(o.backends) > 0 {
		c.Model, c.Exact = o.model, false
	}
	return c.Play(ctx, conversations, step), ctx.Err()
}
