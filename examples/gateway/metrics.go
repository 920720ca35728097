package main

import (
	"net/http"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/endpick/endpick/transport/prometheus"
)

// metricsPages are /metrics, with the process's own metrics and those of replicas, and
// the page of GIE's names.
func metricsPages(m *prometheus.Metrics, s *sharing) (ours, gie http.Handler) {
	page := func(all ...prom.Collector) http.Handler {
		registry := prom.NewRegistry()
		registry.MustRegister(all...)
		return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	}
	return page(m, sharingMetrics{s}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), page(m.GIE())
}
