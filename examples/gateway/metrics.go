package main

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxModelLabels bounds the models that metrics tell apart: clients name them.
// Others are counted together.
const (
	maxModelLabels = 64
	otherModels    = "other"
)

// metrics are those of GIE, "Monitoring", under
// their names. Latencies are those of streamed responses, from routing to the
// first token and from there to the last; violations count from the arrival of
// the request. The gateway sends requests to the model that they name, so that
// model and target model are one.
type metrics struct {
	http.Handler
	ttft, tpot *target

	mu     sync.Mutex
	models map[string]bool
}

// target are the metrics of TTFT or of TPOT.
type target struct {
	actual, predicted, duration series
	violated                    *prometheus.GaugeVec
	violations                  *prometheus.CounterVec
}

// series is a distribution and its newest value, in seconds.
type series struct {
	all    *prometheus.HistogramVec
	newest *prometheus.GaugeVec
}

func (s series) observe(model string, d time.Duration) {
	s.all.WithLabelValues(model, model).Observe(d.Seconds())
	s.newest.WithLabelValues(model, model).Set(d.Seconds())
}

func newMetrics() *metrics {
	registry := prometheus.NewRegistry()
	return &metrics{
		Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		ttft:    newTarget(registry, "ttft", "time to first token", prometheus.ExponentialBuckets(0.005, 2, 14)),
		tpot:    newTarget(registry, "tpot", "time per output token", prometheus.ExponentialBuckets(0.001, 2, 12)),
		models:  map[string]bool{},
	}
}

func newTarget(registry *prometheus.Registry, name, what string, buckets []float64) *target {
	const prefix = "inference_objective_request_"
	labels := []string{"model_name", "target_model_name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
		registry.MustRegister(v)
		return v
	}
	both := func(name, help string, buckets []float64) series {
		s := series{
			all:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, labels),
			newest: gauge(name+"_gauge", help+" (newest)"),
		}
		registry.MustRegister(s.all)
		return s
	}
	t := &target{
		actual:    both(name+"_seconds", "Measured "+what+".", buckets),
		predicted: both("predicted_"+name+"_seconds", "Predicted "+what+".", buckets),
		duration: both(name+"_prediction_duration_seconds", "Duration of a prediction for all endpoints; one call predicts all targets.",
			prometheus.ExponentialBuckets(1e-6, 4, 10)),
		violated:   gauge(name+"_slo_violation", "Whether the newest "+what+" missed its target."),
		violations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name + "_slo_violation_total", Help: "Missed targets for the " + what + "."}, labels),
	}
	registry.MustRegister(t.violations)
	return t
}

// label is the name under which a model is counted.
func (m *metrics) label(model string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.models[model]:
	case len(m.models) < maxModelLabels:
		m.models[model] = true
	default:
		return otherModels
	}
	return model
}

// predicted says how long a prediction took.
func (m *metrics) predicted(model string, d time.Duration) {
	model = m.label(model)
	m.ttft.duration.observe(model, d)
	m.tpot.duration.observe(model, d)
}

// measured says what came of a request. What it does not know it leaves out.
func (m *metrics) measured(r *measured) {
	model := m.label(r.Model)
	for _, x := range []struct {
		t *target
		l latency
	}{{m.ttft, r.TTFT}, {m.tpot, r.TPOT}} {
		if x.l.Actual == 0 {
			continue
		}
		x.t.actual.observe(model, x.l.Actual)
		if x.l.Predicted > 0 {
			x.t.predicted.observe(model, x.l.Predicted)
		}
	}
}

// held says whether a target was met.
func (m *metrics) held(t *target, model string, met bool) {
	model = m.label(model)
	violations := t.violations.WithLabelValues(model, model)
	if met {
		t.violated.WithLabelValues(model, model).Set(0)
		return
	}
	t.violated.WithLabelValues(model, model).Set(1)
	violations.Inc()
}
