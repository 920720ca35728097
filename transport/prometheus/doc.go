// Package prometheus turns what a router, a transport and their policy know of
// themselves into metrics for Prometheus.
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
// docs/watching.md lists the metrics and what to do about them. Latencies, their
// predictions and missed targets go by the names that the Gateway API inference
// extension gives them (GIE, "Monitoring"), everything else by names of ours,
// which begin with endpick_. Of GIE's names, six end in _gauge, to which promlint
// objects: they are in [Metrics.GIE] alone, with the others of that list.
//
// # Labels
//
// What clients make up takes no label: a model or a tenant gets one when a
// request for it has succeeded; with all taken, the one whose last success is the
// longest ago gives up its own, with all that was counted under it. The others are
// counted together as "other". Endpoints have labels while the router has them.
//
// # Cost
//
// Most is counted when a request has ended, and the rest when somebody asks. A
// decision pays for nothing but the timing of predictions, if there is one: two
// calls of the clock and one of a map.
package prometheus
