// Package prometheus exports metrics of a router, a transport and their policy to
// Prometheus.
//
//	metrics, err := prometheus.New(prometheus.Config{})
//	…
//	config.Policy.Predictor = metrics.Predictor(config.Policy.Predictor) // times it
//	router, err := endpick.New(config)
//	…
//	routed, err := transport.New(transport.Config{Router: router, Observe: metrics.Observe})
//	…
//	metrics.Watch(prometheus.Sources{Router: router, Transport: routed})
//	registry.MustRegister(metrics)
//
// docs/watching.md lists the metrics and what to do about them. All names begin with endpick_, and
// a model is always the label model.
//
// # Labels
//
// Names that clients invent get no labels: a model or a tenant gets one when a request for
// it has succeeded, or the host has named it ([Metrics.NameTenants]). When all are taken,
// a success replaces the one whose last success is the oldest, and the series of that one are
// dropped. All others are counted together as "other". Endpoints have labels while the
// router has them.
//
// # Cost
//
// Most of the work is done when a request has ended, and the rest when Prometheus scrapes.
// A decision only pays for timing predictions, if there are any: two calls of the clock.
package prometheus
