package main

import (
	"net/http"
	"runtime"
	"runtime/debug"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/endpick/endpick/transport/prometheus"
)

// version is this program's, as Go knows it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "(unknown)"
}

// metricsPages are /metrics, with the process's own metrics and those of replicas, and
// the page of GIE's names.
func metricsPages(m *prometheus.Metrics, s *sharing) (ours, gie http.Handler) {
	page := func(all ...prom.Collector) http.Handler {
		registry := prom.NewRegistry()
		registry.MustRegister(all...)
		return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	}
	info := prom.NewGauge(prom.GaugeOpts{Name: "endpick_build_info", Help: "Always 1; the labels say which version runs.",
		ConstLabels: prom.Labels{"version": version(), "goversion": runtime.Version()}})
	info.Set(1)
	return page(m, info, sharingMetrics{s}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), page(m.GIE())
}
