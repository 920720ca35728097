package main

import (
	"log/slog"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/prometheus"
	prom "github.com/prometheus/client_golang/prometheus"
)

// watch collects the results of requests and predictions, for the metrics and the
// debug page. It is safe for concurrent use.
type watch struct {
	metrics   *prometheus.Metrics
	decisions *prom.CounterVec
	stories   stories
	traces    *traces // nil: no traces
	// sources are those of the metrics and the page; they change with a reload.
	sources atomic.Pointer[prometheus.Sources]

	mu       sync.Mutex
	attained attainment
	history  history
}

// newWatch returns a watch; see newTraces for trusted.
func newWatch(trusted bool, logger *slog.Logger) (*watch, error) {
	metrics, err := prometheus.New(prometheus.Config{})
	if err != nil {
		return nil, err
	}
	traces, err := newTraces(trusted, logger)
	if err != nil {
		return nil, err
	}
	w := &watch{metrics: metrics, traces: traces, stories: stories{most: keptRequests}, decisions: prom.NewCounterVec(prom.CounterOpts{
		Name: "endpick_decisions_total", Help: "Requests that were sent to a server, by what set it apart from the next best: queue, only, limit, context, health, tier, room, prefix, load or chance; and by the name for a model that was asked for, if it was one.",
	}, []string{"by", "name"})}
	w.sources.Store(&prometheus.Sources{})
	return w, nil
}

// around wraps the transport to watch its requests.
func (w *watch) around(t *transport.Transport) http.RoundTripper {
	if w.traces != nil {
		return w.stories.keep(w.traces.RoundTripper(t))
	}
	return w.stories.keep(t)
}

// describe requests receipts.
func (w *watch) describe(in *http.Request, body []byte, req *endpick.Request) {
	if one := storyOf(in.Context()); one != nil {
		req.Receipt, one.tenant, one.described = one.asked, req.Tenant, true
	}
	if w.traces != nil {
		w.traces.Describe(in, body, req)
	}
}

// close sends the remaining spans.
func (w *watch) close() error {
	if w.traces == nil {
		return nil
	}
	return w.traces.close()
}

func (w *watch) follow(s prometheus.Sources) {
	w.sources.Store(&s)
	w.metrics.Watch(s)
}

// latency is a predicted and a measured latency. Zero: none.
type latency transport.Latency

// Error is (predicted − actual)/actual; NaN if either is unknown.
func (l latency) Error() float64 {
	if l.Predicted == 0 || l.Actual == 0 {
		return math.NaN()
	}
	return float64(l.Predicted-l.Actual) / float64(l.Actual)
}

// attainment counts how often latency targets were met; see transport.Observation.Target.
type attainment struct{ TTFT, TPOT targets }

type targets struct{ Asked, Met int }

// Share is met/asked; NaN if none was asked for.
func (t targets) Share() float64 { return float64(t.Met) / float64(t.Asked) }

func (t *targets) count(asked, met bool) {
	if asked {
		t.Asked++
	}
	if met {
		t.Met++
	}
}

// observe records how a request has ended.
func (w *watch) observe(r *transport.Observation) {
	w.metrics.Observe(r)
	if one := w.stories.observe(r); one != nil && len(r.Attempts) > 0 {
		w.decisions.WithLabelValues(decidedBy(&one.receipt, r.Held), r.Named).Inc()
	}
	if w.traces != nil {
		w.traces.Observe(r)
	}
	now := time.Now()
	w.sample(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attained.TTFT.count(r.Target(endpick.TTFT))
	w.attained.TPOT.count(r.Target(endpick.TPOT))
	w.history.observe(now, r)
}

// sample records what is in flight, once in each slot.
func (w *watch) sample(now time.Time) {
	w.mu.Lock()
	_, fresh := w.history.all.at(now)
	w.mu.Unlock()
	s := w.sources.Load()
	if !fresh || s.Transport == nil {
		return
	}
	inFlight := s.Router.Stats().OpenLeases
	q, _ := s.Transport.Queue()
	w.mu.Lock()
	defer w.mu.Unlock()
	at, _ := w.history.all.at(now)
	at.inFlight, at.held = inFlight, q.Requests
}
