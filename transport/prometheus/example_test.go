package prometheus_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/prometheus"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func measured(config endpick.Config, registry *prom.Registry) (*transport.Transport, error) {
	metrics, err := prometheus.New(prometheus.Config{})
	if err != nil {
		return nil, err
	}
	config.Policy.Predictor = metrics.Predictor(config.Policy.Predictor) // measures the time of predictions
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	routed, err := transport.New(transport.Config{Router: router, Observe: metrics.Observe})
	if err != nil {
		return nil, err
	}
	metrics.Watch(prometheus.Sources{Router: router, Transport: routed})
	registry.MustRegister(metrics)
	return routed, nil
}

// A gateway with metrics.
func Example() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"text":"Hello!"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	}))
	defer engine.Close()
	config := preset.Default()
	config.Endpoints = []endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}}
	registry := prom.NewRegistry()
	routed, err := measured(config, registry)
	if err != nil {
		panic(err)
	}
	defer routed.CloseIdleConnections()
	client := &http.Client{Transport: routed}
	resp, err := client.Post("http://gateway/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"Hi!"}`))
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "endpick_requests_total") || strings.HasPrefix(line, "endpick_routed_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// endpick_requests_total{code="200",model="llama",reason="",status="completed"} 1
	// endpick_routed_total 1
}
