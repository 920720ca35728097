package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/replica"
)

// run is one way to serve the same conversations.
type run struct {
	name     string
	gateways int
	how      sharing
	kill     bool // kill NATS after a third of the time, and restart it after two thirds
}

// result is the result of a run.
type result struct {
	traffic.Result
	imbalance float64
	status    []replica.Status
	outage    time.Duration // as noticed by the gateways
}

// play starts servers, gateways and NATS, plays the conversations and shuts
// everything down. Everything is new, so that runs can be compared.
func (r *run) play(ctx context.Context, o *replicasOptions, conversations []traffic.Conversation) (res result, err error) {
	config, err := traffic.ServerConfig(kvTokens)
	if err != nil {
		return res, err
	}
	fleet, err := traffic.StartFleet(o.servers, config)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	b, err := startBroker()
	if err != nil {
		return res, err
	}
	defer b.close()
	key := prefix.NewKey()
	var gateways []*gateway
	defer func() {
		for _, g := range gateways {
			err = errors.Join(err, g.stop())
		}
	}()
	for i := range r.gateways {
		g, err := startGateway(fmt.Sprintf("gateway-%d", i+1), fleet, key, r.how, b)
		if err != nil {
			return res, err
		}
		gateways = append(gateways, g)
	}
	if r.how != nobody {
		if err := meet(gateways); err != nil {
			return res, err
		}
	}

	var turn atomic.Uint64
	client := traffic.NewClient("http://gateways")
	client.HTTP = &http.Client{Transport: &inTurn{
		base: &http.Transport{MaxIdleConnsPerHost: 256},
		next: func() string { return gateways[turn.Add(1)%uint64(len(gateways))].url },
	}}
	defer client.Close()
	watch, stop := context.WithCancel(ctx)
	defer stop()
	balance := make(chan float64, 1)
	go func() { balance <- imbalance(watch, fleet) }()
	outage := make(chan error, 1)
	go func() {
		var err error
		if r.kill {
			res.outage, err = interrupt(watch, o.Duration, b, gateways)
		}
		outage <- err
	}()
	samples := client.Play(ctx, conversations, func() {})
	stop()
	res.imbalance = <-balance
	err = errors.Join(ctx.Err(), <-outage)
	res.Result = traffic.Summarise(r.name, samples, endpick.SLO{})
	return res, errors.Join(err, r.check(gateways, &res))
}

// check checks that nothing was left behind or lost.
func (r *run) check(gateways []*gateway, res *result) error {
	if res.Failed > 0 {
		return fmt.Errorf("%d requests failed, the first: %w", res.Failed, res.FirstErr)
	}
	if res.Requests == 0 || res.TTFT == nil || res.PrefixHitRatio == nil {
		return errors.New("nothing was measured")
	}
	// The last ends are sent a moment after the clients have received everything.
	open := 0
	if !within(patience, func() bool {
		open = 0
		for _, g := range gateways {
			open += g.router.Stats().OpenLeases
		}
		return open == 0
	}) {
		return fmt.Errorf("%d leases are left open", open)
	}
	if r.how == nobody {
		return nil
	}
	if err := meet(gateways); err != nil {
		return err
	}
	var shared uint64
	for _, g := range gateways {
		s := g.shared.Status()
		res.status = append(res.status, s)
		shared += s.Shared
		if s.Refused+s.Malformed+s.Missed+s.Restarts+s.Unmirrored+s.Unshared > 0 {
			return fmt.Errorf("a replica is in trouble: %+v", s)
		}
	}
	if int(shared) < res.Requests {
		return fmt.Errorf("%d of %d requests were told", shared, res.Requests)
	}
	return nil
}

// interrupt kills NATS for a third of the time.
func interrupt(ctx context.Context, d time.Duration, b *broker, gateways []*gateway) (noticed time.Duration, err error) {
	if !sleep(ctx, d/3) {
		return 0, errors.New("the run has ended before NATS was killed")
	}
	b.kill()
	from := time.Now()
	for _, g := range gateways { // each notices, and continues
		for {
			if s := g.shared.Status(); !s.Connected && s.Alone() {
				break
			}
			if !sleep(ctx, 10*time.Millisecond) {
				return 0, errors.New("nobody has noticed that NATS is gone")
			}
		}
	}
	noticed = time.Since(from)
	sleep(ctx, d/3-noticed)
	return noticed, errors.Join(b.start(), meet(gateways))
}

// within waits until something holds; false: it takes longer than patience.
func within(patience time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// imbalance is how unevenly requests are spread over servers, until ctx is done: the
// standard deviation of their batches and queues as a share of the mean, averaged over
// time.
func imbalance(ctx context.Context, fleet *traffic.Fleet) float64 {
	sum, n := 0.0, 0
	for sleep(ctx, 50*time.Millisecond) {
		var mean, square float64
		for _, m := range fleet.Members {
			l := m.Server.Load()
			batch := float64(l.Running + l.Waiting)
			mean += batch / float64(len(fleet.Members))
			square += batch * batch / float64(len(fleet.Members))
		}
		if mean > 0 {
			sum += math.Sqrt(max(square-mean*mean, 0)) / mean
			n++
		}
	}
	return sum / float64(max(n, 1))
}
