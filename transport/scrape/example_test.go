package scrape_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/scrape"
)

func discovered(ctx context.Context, router *endpick.Router, source discover.Source) error {
	inspector, err := scrape.NewInspector(scrape.InspectorConfig{Router: router})
	if err != nil {
		return err
	}
	go inspector.Run(ctx)
	watcher, err := discover.New(discover.Config{
		Router: router, Source: source,
		Fill: inspector.Fill, // a new list keeps the inspected facts
	})
	if err != nil {
		return err
	}
	go watcher.Run(ctx)
	return nil
}

var _ = discovered // in docs/fleet.md

// vllm is a server with vLLM's metrics.
func vllm() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		switch in.URL.Path {
		case "/metrics":
			io.WriteString(w, `vllm:num_requests_running{model_name="llama"} 5
vllm:num_requests_waiting{model_name="llama"} 2
vllm:kv_cache_usage_perc{model_name="llama"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="30000"} 1
`)
		case "/v1/models":
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"object":"list","data":[{"id":"llama","object":"model"},{"id":"support","object":"model","parent":"llama"}]}`)
		default:
			http.NotFound(w, in)
		}
	}))
}

// An inspector fills in the fields of an endpoint that the host has left unset.
func ExampleInspector() {
	engine := vllm()
	defer engine.Close()
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}}})
	if err != nil {
		panic(err)
	}
	inspector, err := scrape.NewInspector(scrape.InspectorConfig{Router: router})
	if err != nil {
		panic(err)
	}
	inspector.Poll(context.Background())
	e := router.Endpoints()[0].Candidate.Endpoint
	fmt.Println(e.Models, e.Adapters, e.KVTokens)
	// Output: [llama] [support] 480000
}
