package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// streams prints how much later events arrive through either proxy than directly from
// the engine, with many streams at a time. Engine and client share the machine with
// the proxy: if the three use all of it, the delay is that of the whole, not what the
// proxy adds. With -beside all run at the same time, with half of the streams through
// each proxy, so that other load on the machine delays both.
func streams(b *bench, o *options, w io.Writer) error {
	fmt.Fprintf(w, "| %d streams, %d events a second each | median delay, ms | p99, ms | CPU, µs an event |\n|---|---|---|---|\n", o.streams, o.rate)
	each := o.streams
	if o.beside {
		each = max(o.streams/2, 1)
	}
	ways := []*way{
		{name: "straight", process: &process{url: b.server.URL, client: newClient()}, streams: max(each/10, 1)},
		{name: "plain", process: b.plain, streams: each},
		{name: "endpick", process: b.endpick, streams: each},
	}
	for range o.rounds {
		var wg sync.WaitGroup
		for _, v := range ways {
			if o.beside {
				wg.Go(func() { v.run(b.ctx, o) })
			} else {
				v.run(b.ctx, o)
			}
		}
		wg.Wait()
	}
	for _, v := range ways {
		if v.failed != nil {
			return fmt.Errorf("%s: %w", v.name, v.failed)
		}
		cpu := "-"
		if v.cpu > 0 {
			cpu = fmt.Sprintf("%.1f", micros(v.cpu))
		}
		fmt.Fprintf(w, "| %s | %.2f | %.2f | %s |\n", v.name, micros(v.p50)/1000, micros(v.p99)/1000, cpu)
	}
	straight, plain, endpick := ways[0], ways[1], ways[2]
	fmt.Fprintf(w, "| ratio | %s | %s | %s |\n", ratio(endpick.p50, plain.p50), ratio(endpick.p99, plain.p99), ratio(endpick.cpu, plain.cpu))
	added := func(d, straight time.Duration) time.Duration { return max(d-straight, 0) }
	fmt.Fprintf(w, "| ratio of what is added | %s | %s | |\n\n", ratio(added(endpick.p50, straight.p50), added(plain.p50, straight.p50)),
		ratio(added(endpick.p99, straight.p99), added(plain.p99, straight.p99)))
	return nil
}

// way is a way for events, with the minimum of the rounds.
type way struct {
	name string
	*process
	streams       int
	p50, p99, cpu time.Duration // zero: no round yet
	failed        error
}

func (v *way) run(ctx context.Context, o *options) {
	var delays []time.Duration
	do := func() (err error) {
		delays, err = v.process.streams(ctx, o, v.streams)
		return err
	}
	var used time.Duration
	var err error
	if v.name == "straight" { // the engine runs in this process
		err = do()
	} else {
		used, err = v.costs(do)
	}
	if err != nil {
		v.failed = err
		return
	}
	slices.Sort(delays)
	least := func(to *time.Duration, d time.Duration) {
		if *to == 0 || d < *to {
			*to = d
		}
	}
	least(&v.p50, delays[len(delays)/2])
	least(&v.p99, delays[len(delays)*99/100])
	least(&v.cpu, used/time.Duration(len(delays)))
}

func ratio(a, b time.Duration) string {
	if b <= 0 {
		return "-" // indistinguishable from noise
	}
	return fmt.Sprintf("%.2f", float64(a)/float64(b))
}

// streams runs all streams, starting one a little after the other, and returns how
// late the events arrived, without the first fifth, while connections are made.
func (p *process) streams(ctx context.Context, o *options, streams int) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed error // the first error
	failures := 0
	var wg sync.WaitGroup
	begin := time.Now().Add(o.duration / 5)
	body := chatOf(1000, flatText)
	events := int(o.duration.Seconds() * float64(o.rate))
	for i := range streams {
		time.Sleep(time.Until(begin.Add(-o.duration / 5).Add(time.Duration(i) * o.duration / 5 / time.Duration(streams))))
		wg.Go(func() {
			delays, err := p.paced(ctx, body, events, o.rate, begin)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, delays...)
			if err != nil && failed == nil {
				failed = err
			}
			if err != nil {
				failures++
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, fmt.Errorf("%d of %d streams: %w", failures, streams, failed)
	}
	if len(all) == 0 {
		return nil, errors.New("there were no events")
	}
	return all, nil
}
