package main

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics go by the names that the Gateway API inference extension has for them
// (GIE, "Monitoring"). Latencies are those of streamed responses, from routing
// to the first token and from there to the last; violations count from the
// arrival of the request. The gateway sends requests to the model that they
// name, so that model and target model are one. Models that are not known yet,
// or no more, are counted together; see [labels].
type metrics struct {
	http.Handler
	ttft, tpot *target

	// mu guards models and is held while a series is written: a model that has
	// given up its label must not come back with an old one.
	mu     sync.Mutex
	models labels
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

// forget removes the series of a model.
func (t *target) forget(model string) {
	for _, s := range []series{t.actual, t.predicted, t.duration} {
		s.all.DeleteLabelValues(model, model)
		s.newest.DeleteLabelValues(model, model)
	}
	t.violated.DeleteLabelValues(model, model)
	t.violations.DeleteLabelValues(model, model)
}

// succeeded says that a request for a model was served.
func (m *metrics) succeeded(model string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if gone := m.models.succeeded(model); gone != "" {
		m.ttft.forget(gone)
		m.tpot.forget(gone)
	}
}

// predicted says how long a prediction took.
func (m *metrics) predicted(model string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	model = m.models.of(model)
	m.ttft.duration.observe(model, d)
	m.tpot.duration.observe(model, d)
}

// measured says what came of a request for a model. What it does not know it leaves out.
func (m *metrics) measured(model string, r *measured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	model = m.models.of(model)
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
	m.mu.Lock()
	defer m.mu.Unlock()
	model = m.models.of(model)
	violations := t.violations.WithLabelValues(model, model)
	if met {
		t.violated.WithLabelValues(model, model).Set(0)
		return
	}
	t.violated.WithLabelValues(model, model).Set(1)
	violations.Inc()
}
