package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/endpick/endpick/transport"
)

// latencies are GIE's metrics of TTFT or of TPOT. Requests are sent to the model that
// they name, so model and target model are the same.
type latencies struct {
	actual, predicted, duration series
	violated                    *prom.GaugeVec
	violations                  *prom.CounterVec
}

// series is a distribution and its latest value, in seconds.
type series struct {
	all    *prom.HistogramVec
	newest *prom.GaugeVec
}

func (s series) observe(model string, d time.Duration) {
	s.all.WithLabelValues(model, model).Observe(d.Seconds())
	s.newest.WithLabelValues(model, model).Set(d.Seconds())
}

var (
	ttftBuckets     = prom.ExponentialBuckets(0.005, 2, 14) // to 41 s
	tpotBuckets     = prom.ExponentialBuckets(0.001, 2, 12) // to 2 s
	decisionBuckets = prom.ExponentialBuckets(1e-6, 4, 10)  // to 0.26 s
	durationBuckets = prom.ExponentialBuckets(0.01, 2, 17)  // to 11 minutes
	heldBuckets     = prom.ExponentialBuckets(0.001, 4, 9)  // to 66 s
)

func newLatencies(name, what string, buckets []float64) *latencies {
	const prefix = "inference_objective_request_"
	labels := []string{"model_name", "target_model_name"}
	gauge := func(name, help string) *prom.GaugeVec {
		return prom.NewGaugeVec(prom.GaugeOpts{Name: prefix + name, Help: help}, labels)
	}
	both := func(name, help string, buckets []float64) series {
		return series{
			all:    prom.NewHistogramVec(prom.HistogramOpts{Name: prefix + name, Help: help + ".", Buckets: buckets}, labels),
			newest: gauge(name+"_gauge", help+", the newest."),
		}
	}
	return &latencies{
		actual:    both(name+"_seconds", "Measured "+what+" of streamed responses, from their routing", buckets),
		predicted: both("predicted_"+name+"_seconds", "Predicted "+what+" of streamed responses", buckets),
		duration:  both(name+"_prediction_duration_seconds", "Duration of a prediction for all endpoints; one call predicts all latencies", decisionBuckets),
		violated:  gauge(name+"_slo_violation", "Whether the newest "+what+" for which there was a target has missed it (1) or not (0)."),
		violations: prom.NewCounterVec(prom.CounterOpts{
			Name: prefix + name + "_slo_violation_total", Help: "Requests that have missed their target for the " + what + ", counted from their arrival.",
		}, labels),
	}
}

// clean are the metrics that promlint accepts.
func (l *latencies) clean() []prom.Collector {
	return []prom.Collector{l.actual.all, l.predicted.all, l.duration.all, l.violated, l.violations}
}

// newest are the others.
func (l *latencies) newest() []prom.Collector {
	return []prom.Collector{l.actual.newest, l.predicted.newest, l.duration.newest}
}

func (l *latencies) forget(model string) {
	for _, s := range []series{l.actual, l.predicted, l.duration} {
		s.all.DeleteLabelValues(model, model)
		s.newest.DeleteLabelValues(model, model)
	}
	l.violated.DeleteLabelValues(model, model)
	l.violations.DeleteLabelValues(model, model)
}

// measured records a measured latency and its prediction, as far as known.
func (l *latencies) measured(model string, seen transport.Latency) {
	if seen.Actual == 0 {
		return
	}
	l.actual.observe(model, seen.Actual)
	if seen.Predicted > 0 {
		l.predicted.observe(model, seen.Predicted)
	}
}

// compared records whether a target was met.
func (l *latencies) compared(model string, met bool) {
	violations := l.violations.WithLabelValues(model, model) // creates the series, because 0 is information, too
	if met {
		l.violated.WithLabelValues(model, model).Set(0)
		return
	}
	l.violated.WithLabelValues(model, model).Set(1)
	violations.Inc()
}
