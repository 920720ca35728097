package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// streams is how much later events come through either proxy, with many streams at a
// time. Engine and client share the machine with the proxy: where the three take all
// of it, the delay says how much the whole is behind, and not what the proxy adds.
func streams(b *bench, o *options, w io.Writer) error {
	fmt.Fprintf(w, "| %d streams, %d events a second each | median delay, ms | p99, ms | CPU, µs an event |\n|---|---|---|---|\n", o.streams, o.rate)
	type result struct{ p50, p99, cpu time.Duration }
	proxies := []*process{b.plain, b.endpick}
	best := []result{{math.MaxInt64, math.MaxInt64, math.MaxInt64}, {math.MaxInt64, math.MaxInt64, math.MaxInt64}}
	for range o.rounds {
		for i, p := range proxies {
			var delays []time.Duration
			used, err := p.costs(func() (err error) {
				delays, err = p.streams(o)
				return err
			})
			if err != nil {
				return err
			}
			slices.Sort(delays)
			r := &best[i]
			r.p50, r.p99 = min(r.p50, delays[len(delays)/2]), min(r.p99, delays[len(delays)*99/100])
			r.cpu = min(r.cpu, used/time.Duration(len(delays)))
		}
	}
	for i, name := range []string{"plain", "endpick"} {
		r := best[i]
		fmt.Fprintf(w, "| %s | %.2f | %.2f | %.1f |\n", name, micros(r.p50)/1000, micros(r.p99)/1000, micros(r.cpu))
	}
	fmt.Fprintf(w, "| ratio | %.2f | %.2f | %.2f |\n\n", ratio(best[1].p50, best[0].p50), ratio(best[1].p99, best[0].p99), ratio(best[1].cpu, best[0].cpu))
	return nil
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// streams runs all of them, each begun a little after the one before, and returns how
// late the events came, but for those of the first fifth, while connections are made.
func (p *process) streams(o *options) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	begin := time.Now().Add(o.duration / 5)
	body := chatOf(1000, flatText)
	events := int(o.duration.Seconds() * float64(o.rate))
	for i := range o.streams {
		time.Sleep(time.Until(begin.Add(-o.duration / 5).Add(time.Duration(i) * o.duration / 5 / time.Duration(o.streams))))
		wg.Go(func() {
			delays, err := p.stream(body, events, o.rate, begin)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, delays...)
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	if len(all) == 0 && failed == nil {
		failed = errors.New("there were no events")
	}
	return all, failed
}

func (p *process) stream(body []byte, events, rate int, begin time.Time) (delays []time.Duration, err error) {
	req, err := http.NewRequest(http.MethodPost, p.url+chatPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set(eventsHeader, strconv.Itoa(events))
	req.Header.Set(rateHeader, strconv.Itoa(rate))
	response, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return delays, nil
		}
		if err != nil {
			return nil, err
		}
		if at, ok := stampOf(line); ok && at.After(begin) {
			delays = append(delays, time.Since(at))
		}
	}
}
