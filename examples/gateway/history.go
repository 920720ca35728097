package main

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// The plots of the debug page cover the last ten minutes, in slots.
const (
	slotTime  = 5 * time.Second
	slots     = 120
	perMinute = int(time.Minute / slotTime)
)

// slot is what happened during slotTime. The zero slot is empty.
type slot struct {
	served, failed, refused int
	limited                 int // of the refused ones, those with 429; others are mistakes of their clients
	inFlight, held          int // when it began
	ttft                    histogram
	// Tokens of prompts for which the engine reported cached tokens: their length,
	// the expectation of the index, and the report.
	prompt, expected, cached float64
}

// histogram counts latencies in buckets, each 10 % wider than the one before.
type histogram [122]int

const (
	firstBucket = 1e-3 // in seconds
	bucketRatio = 1.1
)

func (h *histogram) add(d time.Duration) {
	i := int(math.Ceil(math.Log(max(d.Seconds()/firstBucket, 1)) / math.Log(bucketRatio)))
	h[min(i, len(h)-1)]++
}

// quantile returns the quantile in seconds, interpolated within its bucket; NaN if the histogram is
// empty.
func (h *histogram) quantile(q float64) float64 {
	sum := 0
	for _, n := range h {
		sum += n
	}
	rank := q * float64(sum)
	for i, n := range h {
		if n > 0 && rank <= float64(n) {
			return firstBucket * math.Pow(bucketRatio, float64(i-1)+rank/float64(n))
		}
		rank -= float64(n)
	}
	return math.NaN()
}

// Ended counts requests, and share is a part of them; NaN if there were none.
func (s *slot) Ended() int { return s.served + s.failed + s.refused }

func (s *slot) share(n int) float64 { return float64(n) / float64(s.Ended()) }

func (s *slot) Failed() string  { return share("%.1f %%", s.share(s.failed)) }
func (s *slot) Refused() string { return share("%.1f %%", s.share(s.refused)) }

func (s *slot) add(o *slot) {
	s.served, s.failed, s.refused = s.served+o.served, s.failed+o.failed, s.refused+o.refused
	s.limited += o.limited
	s.prompt, s.expected, s.cached = s.prompt+o.prompt, s.expected+o.expected, s.cached+o.cached
	for i, n := range o.ttft {
		s.ttft[i] += n
	}
}

// serverSlot is the part of a slot for one server.
type serverSlot struct {
	served, failed int
	first          int           // first tokens with a known time
	ttft           time.Duration // sum of these
}

// history is the last ten minutes. The zero value is ready. Its owner locks.
type history struct {
	all     ring[slot]
	servers map[string]*ring[serverSlot]
	swept   int64 // number of the slot in which servers were last forgotten
}

// ring holds a slot for each slotTime.
type ring[S any] [slots]struct {
	number int64
	slot   S
}

// slotNumber is not below slots, even on a machine that takes its start for 1970 until it is told the time.
func slotNumber(now time.Time) int64 { return slots + now.UnixNano()/int64(slotTime) }

// at returns the slot of a time, and whether it is new.
func (r *ring[S]) at(now time.Time) (s *S, fresh bool) {
	n := slotNumber(now)
	e := &r[n%slots]
	if e.number != n {
		e.number, e.slot = n, *new(S)
		fresh = true
	}
	return &e.slot, fresh
}

// last returns the slots up to now, oldest first; nil for empty ones.
func (r *ring[S]) last(now time.Time) (all []*S) {
	n := slotNumber(now)
	for i := n - slots + 1; i <= n; i++ {
		if e := &r[i%slots]; e.number == i {
			s := e.slot
			all = append(all, &s)
		} else {
			all = append(all, nil)
		}
	}
	return all
}

// over reports whether all that it holds is older than the slots up to now.
func (r *ring[S]) over(now time.Time) bool {
	return !slices.ContainsFunc(r.last(now), func(s *S) bool { return s != nil })
}

// observe adds a request that has ended.
func (h *history) observe(now time.Time, r *transport.Observation) {
	h.forget(now)
	s, _ := h.all.at(now)
	switch r.Status {
	case endpick.Completed.String():
		s.served++
	case endpick.Refused.String():
		if r.Code() == http.StatusUnauthorized && r.Last() == nil {
			break // who has no key could hide failures among many such requests
		}
		s.refused++
		if r.Code() == http.StatusTooManyRequests {
			s.limited++
		}
	case endpick.Failed.String():
		s.failed++
	}
	ttft, _, _ := r.Latencies()
	if ttft.Actual > 0 {
		s.ttft.add(ttft.Actual)
	}
	if a := r.Last(); a != nil && r.CachedTokens != nil && r.Completed() {
		s.prompt += float64(r.InputTokens)
		s.expected += float64(a.Candidate.PrefixTokens)
		s.cached += float64(*r.CachedTokens)
	}
	for i := range r.Attempts {
		a := &r.Attempts[i]
		at := h.server(a.Candidate.Endpoint.ID)
		if at == nil {
			continue
		}
		s, _ := at.at(now)
		switch {
		case a.Result == transport.Served:
			s.served++
		case a.Result.Failed():
			s.failed++
		}
		if i == r.Serving && ttft.Actual > 0 {
			s.first++
			s.ttft += ttft.Actual
		}
	}
}

// mostServers limits the servers that have a history.
const mostServers = 2000

func (h *history) server(id string) *ring[serverSlot] {
	if h.servers == nil {
		h.servers = map[string]*ring[serverSlot]{}
	}
	r := h.servers[id]
	if r == nil && len(h.servers) < mostServers {
		r = new(ring[serverSlot])
		h.servers[id] = r
	}
	return r
}

// forget drops servers without requests in the last ten minutes, such as those that are
// gone, once in each slot.
func (h *history) forget(now time.Time) {
	n := slotNumber(now)
	if n == h.swept {
		return
	}
	h.swept = n
	maps.DeleteFunc(h.servers, func(_ string, r *ring[serverSlot]) bool { return r.over(now) })
}
