package transport_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// A gateway in a dozen lines: a ReverseProxy with endpick's transport.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"Hello!"},"finish_reason":"stop"}]}`+"\n\n"+
			`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n"+
			"data: [DONE]\n\n")
	}))
	defer server.Close()

	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "gpu-0", Address: server.URL, Models: []string{"llama"}}},
	})
	if err != nil {
		panic(err)
	}
	t, err := transport.New(transport.Config{Router: router, EnableEndpointHeader: true})
	if err != nil {
		panic(err)
	}
	defer t.CloseIdleConnections()
	gateway := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:      func(*httputil.ProxyRequest) {},
		Transport:    t,
		ErrorHandler: transport.ErrorHandler,
	})
	defer gateway.Close()

	ask := func(model string) {
		resp, err := http.Post(gateway.URL+"/v1/chat/completions", "application/json", strings.NewReader(
			`{"model":"`+model+`","stream":true,"messages":[{"role":"user","content":"Hi!"}]}`))
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		fmt.Printf("%d from %q\n", resp.StatusCode, resp.Header.Get(transport.EndpointHeader))
		fmt.Println(strings.TrimSpace(string(body)))
	}
	ask("llama")
	ask("gpt-2")
	fmt.Println("in flight:", router.Stats().OpenLeases)

	// Output:
	// 200 from "gpu-0"
	// data: {"choices":[{"delta":{"content":"Hello!"},"finish_reason":"stop"}]}
	//
	// data: [DONE]
	// 404 from ""
	// {"error":{"message":"the model `gpt-2` does not exist; there are `llama`","type":"invalid_request_error","param":"model","code":"model_not_found"}}
	// in flight: 0
}

// The host names the tenant and asks for a receipt: the candidates, their
// scores, and the choice. Observe finds it when the response has ended.
func ExampleConfig() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"text":"Hello!"}]}`)
	}))
	defer engine.Close()
	config := all.LMetric()
	config.Endpoints = []endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}, {ID: "gpu-1", Address: engine.URL}}
	router, err := endpick.New(config)
	if err != nil {
		panic(err)
	}
	if err := router.Report("gpu-0", endpick.Load{Running: 8, KVUsage: 0.7}); err != nil {
		panic(err)
	}
	if err := router.Report("gpu-1", endpick.Load{Running: 2, KVUsage: 0.3}); err != nil {
		panic(err)
	}
	t, err := transport.New(transport.Config{
		Router: router,
		Describe: func(_ *http.Request, _ []byte, req *endpick.Request) {
			req.Tenant = "team-a" // as authenticated by the host
			req.Receipt = new(endpick.Receipt)
		},
		Observe: func(o *transport.Observation) { fmt.Print(o.Receipt) },
	})
	if err != nil {
		panic(err)
	}
	defer t.CloseIdleConnections()

	in, err := http.NewRequest("POST", "http://gateway/v1/completions", strings.NewReader(`{"model":"llama","prompt":"Hi!"}`))
	if err != nil {
		panic(err)
	}
	resp, err := t.RoundTrip(in)
	if err != nil {
		panic(err)
	}
	_, _ = io.ReadAll(resp.Body)
	resp.Body.Close()

	// Output:
	// request 1, policy lmetric, model "llama", 1 tokens
	// * gpu-1            W 0    R 2    K 0.3   Q 0       H 0       score 0.125, lmetric 0.125
	//   gpu-0            W 0    R 8    K 0.7   Q 0       H 0       score 0.05, lmetric 0.05
	// regret 0
}

// Requests wait while the servers are full, and are routed when there is room.
func ExampleQueueConfig() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"text":"Hello!"}]}`)
	}))
	defer engine.Close()
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}}})
	if err != nil {
		panic(err)
	}
	t, err := transport.New(transport.Config{
		Router: router,
		Queue:  &transport.QueueConfig{Bounds: queue.Config{MaxRequests: 500, Timeout: 50 * time.Millisecond}},
	})
	if err != nil {
		panic(err)
	}
	defer t.CloseIdleConnections()
	client := &http.Client{Transport: t}
	ask := func() {
		resp, err := client.Post("http://gateway/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"Hi!"}`))
		if err != nil {
			fmt.Println(transport.StatusOf(err), errors.Is(err, queue.ErrTimeout))
			return
		}
		fmt.Println(resp.Status)
		resp.Body.Close()
	}
	for _, waiting := range []float64{20, 1} { // as a poller of the engines would report
		if err := router.Report("gpu-0", endpick.Load{Waiting: waiting}); err != nil {
			panic(err)
		}
		ask()
	}
	q, _ := t.Queue()
	fmt.Println(q.Dispatched, "dispatched,", q.TimedOut, "timed out,", q.Requests, "held")

	// Output:
	// 503 true
	// 200 OK
	// 1 dispatched, 1 timed out, 0 held
}
