package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/traffic"
)

// alone is the row of a single server with which a fleet is compared.
const alone = "one server"

// compare plays the same workload under each policy and prints what it measured. Embedded
// servers are new for each policy, so that all policies are played at once; servers that are
// there get one policy after the other, and new conversations, which they have not cached.
func compare(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	contenders := o.policies
	if o.single != "" {
		contenders = append(contenders[:len(contenders):len(contenders)], alone)
	}
	if len(o.backends) > 0 && o.model == "" {
		if o.model, err = traffic.ModelOf(ctx, o.backends[0]); err != nil {
			return err
		}
	}
	rounds, total := make([][]traffic.Conversation, o.repeat), 0
	for i := range rounds {
		w := o.Workload
		w.Seed += uint64(i)
		rounds[i] = w.Conversations()
		total += len(rounds[i]) * o.Turns * len(contenders)
	}
	fmt.Fprintf(stderr, "%d policies, %d requests\n", len(o.policies), total)
	var done atomic.Int64
	step := func() { traffic.Progress(stderr, int(done.Add(1)), total, "requests") }
	samples, failed := make([][]traffic.Sample, len(contenders)), make([]error, len(contenders))
	for _, conversations := range rounds {
		var playing sync.WaitGroup
		for i, name := range contenders {
			playing.Go(func() {
				own := conversations
				if len(o.backends) > 0 {
					own = traffic.Cold(conversations)
				}
				more, err := measure(ctx, o, name, own, step)
				samples[i] = append(samples[i], more...)
				if err != nil {
					failed[i] = fmt.Errorf("%s: %w", name, err)
				}
			})
			if len(o.backends) > 0 {
				playing.Wait()
			}
		}
		playing.Wait()
		if err := errors.Join(failed...); err != nil {
			return err
		}
	}
	traffic.Progress(stderr, total, total, "")
	var results []traffic.Result
	var failures []error
	for i, name := range contenders {
		r := traffic.Summarise(name, samples[i], o.slo)
		results = append(results, r)
		if r.Failed > 0 {
			failures = append(failures, fmt.Errorf("%s: %d requests failed, the first: %w", name, r.Failed, r.FirstErr))
		}
	}
	write := traffic.WriteTable
	if o.format == "json" {
		write = traffic.WriteJSON
	}
	return errors.Join(append(failures, write(stdout, results))...)
}

// measure puts a gateway in front of the servers, plays the conversations and shuts
// everything down. It calls step after each request.
func measure(ctx context.Context, o *options, policy string, conversations []traffic.Conversation, step func()) ([]traffic.Sample, error) {
	if len(o.backends) == 0 {
		open := func(f *traffic.Fleet) (*traffic.Front, error) {
			front, err := traffic.Proxy(policy, o.Seed, f.Endpoints())
			if err == nil {
				front.Client.SLO, front.Client.API = o.slo, traffic.APIs[o.api]
			}
			return front, err
		}
		return traffic.PlayBehind(ctx, o.endpoints, o.kvTokens, open, conversations, step)
	}
	client := traffic.NewClient(o.single)
	if policy != alone {
		var endpoints []endpick.Endpoint
		for _, url := range o.backends {
			endpoints = append(endpoints, endpick.Endpoint{Address: url})
		}
		front, err := traffic.Proxy(policy, o.Seed, endpoints)
		if err != nil {
			return nil, err
		}
		defer func() { _ = front.Stop() }() // what was measured counts
		client = front.Client
	}
	defer client.Close()
	client.API, client.Model = traffic.APIs[o.api], o.model
	client.SLO, client.Exact = o.slo, false
	return client.Play(ctx, conversations, step), ctx.Err()
}

// serve simulates an engine until it is interrupted.
func serve(ctx context.Context, o *options, stdout, _ io.Writer) error {
	config, err := traffic.ServerConfig(o.kvTokens)
	if err != nil {
		return err
	}
	config.Model, config.Speed = o.model, o.speed
	server := traffic.Member{Address: o.serve}
	if err := server.Start(config); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "http://%s has %s\n", server.Address, cmp.Or(o.model, modelserver.DefaultModel))
	<-ctx.Done()
	return server.Kill()
}
