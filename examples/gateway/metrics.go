package main

import (
	"net/http"
	"runtime"
	"runtime/debug"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// version is this program's, as Go knows it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "(unknown)"
}

// metricsPage is /metrics, with the process's own metrics and those of decisions, settings,
// replicas and events.
func metricsPage(g *gateway) http.Handler {
	info := prom.NewGauge(prom.GaugeOpts{Name: "endpick_build_info", Help: "Always 1, with labels that say which version runs.",
		ConstLabels: prom.Labels{"version": version(), "goversion": runtime.Version()}})
	info.Set(1)
	reloaded := prom.NewGaugeFunc(prom.GaugeOpts{Name: "endpick_config_last_reload_successful",
		Help: "1, or 0 while the settings in force are older than their file, which is refused."}, func() float64 {
		if g.outdated.Load() != nil {
			return 0
		}
		return 1
	})
	registry := prom.NewRegistry()
	registry.MustRegister(g.watch.metrics, g.watch.decisions, info, reloaded, sharingMetrics{&g.sharing}, hearingMetrics{&g.hearing}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// hearingMetrics are the states of the engines' events.
type hearingMetrics struct{ of *hearing }

var (
	eventsReceived = prom.NewDesc("endpick_kv_events_total", "KV-cache events that an endpoint has published.", []string{"endpoint"}, nil)
	eventsPrompts  = prom.NewDesc("endpick_kv_events_prompts_total",
		"Prompts at an endpoint that publishes events: confirmed by one, unconfirmed, or without the token ids that one could match.", []string{"endpoint", "result"}, nil)
)

// Describe implements prom.Collector.
func (m hearingMetrics) Describe(out chan<- *prom.Desc) { prom.DescribeByCollect(m, out) }

// Collect implements prom.Collector.
func (m hearingMetrics) Collect(out chan<- prom.Metric) {
	for _, s := range m.of.status() {
		out <- prom.MustNewConstMetric(eventsReceived, prom.CounterValue, float64(s.Events), s.Endpoint)
		for result, n := range map[string]uint64{"confirmed": s.Feed.Confirmed, "unconfirmed": s.Feed.Unconfirmed, "no token ids": s.Feed.Textual} {
			out <- prom.MustNewConstMetric(eventsPrompts, prom.CounterValue, float64(n), s.Endpoint, result)
		}
	}
}
