package main

import (
	"net/http"
	"runtime/debug"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/endpick/endpick/transport/prometheus"
)

// build is a version of this program, and what it was made from.
type build struct{ Version, Revision, Go string }

func version() build {
	b := build{Version: "(unknown)"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version, b.Go = info.Main.Version, info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// metricsPages are /metrics, with the process's own metrics and those of replicas, and
// the page of GIE's names.
func metricsPages(m *prometheus.Metrics, s *sharing) (ours, gie http.Handler) {
	page := func(all ...prom.Collector) http.Handler {
		registry := prom.NewRegistry()
		registry.MustRegister(all...)
		return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	}
	b := version()
	info := prom.NewGauge(prom.GaugeOpts{Name: "endpick_build_info", Help: "Always 1; the labels say which version runs.",
		ConstLabels: prom.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go}})
	info.Set(1)
	return page(m, info, sharingMetrics{s}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), page(m.GIE())
}
