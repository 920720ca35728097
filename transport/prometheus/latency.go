package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/endpick/endpick/transport"
)

var (
	ttftBuckets     = prom.ExponentialBuckets(0.005, 2, 14) // to 41 s
	tpotBuckets     = prom.ExponentialBuckets(0.001, 2, 12) // to 2 s
	decisionBuckets = prom.ExponentialBuckets(1e-6, 4, 10)  // to 0.26 s
	durationBuckets = prom.ExponentialBuckets(0.01, 2, 17)  // to 11 minutes
	heldBuckets     = prom.ExponentialBuckets(0.001, 4, 9)  // to 66 s
)

func histogram(name, help string, buckets []float64) prom.HistogramOpts {
	return prom.HistogramOpts{Name: "endpick_" + name, Help: help, Buckets: buckets}
}

// latencies are the metrics of TTFT or of TPOT, in seconds. Models and endpoints have series of
// their own: one for each pair would be many.
type latencies struct{ actual, predicted, perEndpoint *prom.HistogramVec }

func newLatencies(name, what string, buckets []float64) latencies {
	vector := func(name, help, label string) *prom.HistogramVec {
		return prom.NewHistogramVec(histogram(name+"_seconds", help, buckets), []string{label})
	}
	return latencies{
		actual:      vector(name, what+" of streamed responses, measured from their routing.", "model"),
		predicted:   vector("predicted_"+name, what+" of streamed responses, as it was predicted.", "model"),
		perEndpoint: vector("endpoint_"+name, what+" of streamed responses of an endpoint, measured from their routing.", "endpoint"),
	}
}

func (l *latencies) all() []prom.Collector {
	return []prom.Collector{l.actual, l.predicted, l.perEndpoint}
}

// observe records a measured latency and its prediction, as far as known.
func (l *latencies) observe(model string, seen transport.Latency) {
	if seen.Actual == 0 {
		return
	}
	l.actual.WithLabelValues(model).Observe(seen.Actual.Seconds())
	if seen.Predicted > 0 {
		l.predicted.WithLabelValues(model).Observe(seen.Predicted.Seconds())
	}
}

// at records a latency at an endpoint.
func (l *latencies) at(endpoint string, seen transport.Latency) {
	if seen.Actual > 0 {
		l.perEndpoint.WithLabelValues(endpoint).Observe(seen.Actual.Seconds())
	}
}
