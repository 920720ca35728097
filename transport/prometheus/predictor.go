package prometheus

import (
	"fmt"
	"maps"
	"sync"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/endpick/endpick"
)

// Predictor returns a predictor that passes everything on to p and times it; nil
// if p is.
func (m *Metrics) Predictor(p endpick.Predictor) endpick.Predictor {
	if p == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timings == nil {
		m.timings = map[string]*timing{}
		m.time(other)
	}
	return &predictor{Predictor: p, metrics: m}
}

type predictor struct {
	endpick.Predictor
	metrics *Metrics
}

func (p *predictor) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	began := time.Now()
	p.Predictor.Predict(req, candidates)
	p.metrics.predicted(req.Model, time.Since(began))
}

// Observer returns the predictor that is timed, which observes requests.
func (p *predictor) Observer() any { return p.Predictor }

// Name is what receipts show.
func (p *predictor) Name() string {
	if n, ok := p.Predictor.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", p.Predictor)
}

// timing has the metrics for the durations of predictions for one model. Requests
// that are being routed update it; only the first one has to lock.
type timing struct {
	all    [2]prom.Observer // TTFT and TPOT
	once   sync.Once
	newest [2]prom.Gauge // nil: the model has lost its label
	gone   bool          // guarded by Metrics.mu
}

// time adds the timing of a model; m.mu is held.
func (m *Metrics) time(model string) {
	m.timings[model] = &timing{all: [2]prom.Observer{
		m.series.ttft.duration.all.WithLabelValues(model, model), m.series.tpot.duration.all.WithLabelValues(model, model),
	}}
	m.publish()
}

// publish makes timings readable without the lock; m.mu is held.
func (m *Metrics) publish() {
	all := maps.Clone(m.timings)
	m.timed.Store(&all)
}

func (m *Metrics) predicted(model string, took time.Duration) {
	timed := *m.timed.Load()
	t := timed[model]
	if t == nil {
		model = other
		t = timed[other]
	}
	t.once.Do(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !t.gone {
			t.newest = [2]prom.Gauge{
				m.series.ttft.duration.newest.WithLabelValues(model, model), m.series.tpot.duration.newest.WithLabelValues(model, model),
			}
		}
	})
	for i := range t.all {
		t.all[i].Observe(took.Seconds())
		if t.newest[i] != nil {
			t.newest[i].Set(took.Seconds())
		}
	}
}
