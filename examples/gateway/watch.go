package main

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/observed"
	"github.com/endpick/endpick/transport/prometheus"
)

// keptRequests is how many requests the debug page shows.
const keptRequests = 20

// watch keeps what came of requests and of predictions. It is safe for concurrent
// use.
type watch struct {
	metrics *prometheus.Metrics
	// sources are whom metrics and page ask; they change with a reload.
	sources atomic.Pointer[prometheus.Sources]

	mu       sync.Mutex
	ended    []measured // the newest last
	attained attainment
}

func newWatch() *watch {
	metrics, err := prometheus.New(prometheus.Config{})
	if err != nil {
		panic(err) // the defaults are valid
	}
	w := &watch{metrics: metrics}
	w.sources.Store(&prometheus.Sources{})
	return w
}

// follow says whom to ask from now on.
func (w *watch) follow(s prometheus.Sources) {
	w.sources.Store(&s)
	w.metrics.Watch(s)
}

// measured is a request that has ended, as its endpoint served it: the times
// count from its routing, as predictions do.
type measured struct {
	At                        time.Time
	Model, Endpoint, Status   string
	InputTokens, OutputTokens int
	TTFT, TPOT, E2E           latency
}

// latency is what was predicted and what came. Zero: nothing was.
type latency observed.Latency

// Error is predicted less actual, as a share of the latter; NaN if either is
// not known.
func (l latency) Error() float64 {
	if l.Predicted == 0 || l.Actual == 0 {
		return math.NaN()
	}
	return float64(l.Predicted-l.Actual) / float64(l.Actual)
}

// Latencies are TTFT, TPOT and E2E.
func (m measured) Latencies() []latency { return []latency{m.TTFT, m.TPOT, m.E2E} }

// attainment counts how latency targets were kept; see observed.Request.Target.
type attainment struct{ TTFT, TPOT kept }

type kept struct{ Asked, Met int }

// Share is met of asked; NaN if none was asked for.
func (k kept) Share() float64 { return float64(k.Met) / float64(k.Asked) }

func (k *kept) count(asked, met bool) {
	if asked {
		k.Asked++
	}
	if met {
		k.Met++
	}
}

// observe takes in how a request has ended.
func (w *watch) observe(r *observed.Request) {
	w.metrics.Observe(r)
	ttft, tpot, e2e := r.Latencies()
	m := measured{
		At: r.Time.Add(time.Duration(r.E2EMillis * float64(time.Millisecond))), Model: r.Model, Endpoint: r.Endpoint, Status: r.Status,
		InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, TTFT: latency(ttft), TPOT: latency(tpot), E2E: latency(e2e),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attained.TTFT.count(r.Target(endpick.TTFT))
	w.attained.TPOT.count(r.Target(endpick.TPOT))
	if len(r.Attempts) == 0 {
		return
	}
	if len(w.ended) == keptRequests {
		w.ended = slices.Delete(w.ended, 0, 1)
	}
	w.ended = append(w.ended, m)
}

// expected is a predicted latency; zero: it was not predicted.
func expected(p *endpick.Prediction, t endpick.Latencies, d time.Duration) time.Duration {
	if p.Has&t == 0 {
		return 0
	}
	return max(d, 1)
}

// newest returns the requests that ended last, the newest first.
func (w *watch) newest() ([]measured, attainment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.ended)
	slices.Reverse(all)
	return all, w.attained
}
