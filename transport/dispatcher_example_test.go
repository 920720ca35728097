package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
)

// gateway passes requests on with a client of its own.
type gateway struct {
	dispatcher *transport.Dispatcher
	client     *http.Client
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	refuse := func(err error) {
		status, header, body := transport.ErrorResponse(in.URL.Path, err)
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		w.Write(body)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, in.Body, 32<<20))
	if err != nil {
		refuse(err)
		return
	}
	call, err := g.dispatcher.Read(transport.Incoming{Method: in.Method, Path: in.URL.Path, Header: in.Header, Body: body})
	if err != nil {
		refuse(err)
		return
	}
	defer call.Close() // nothing stays open, whatever happens
	call.Request.Tenant = tenantOf(in)
	for {
		attempt, err := call.Route(in.Context())
		if err != nil {
			refuse(err)
			return
		}
		response, err := g.send(in, call, attempt)
		if err != nil {
			if err = attempt.Fail(err); attempt.Again() {
				continue
			}
			refuse(err)
			return
		}
		// A response that begins with an error can still be retried on another server.
		body := bufio.NewReader(response.Body)
		_, _ = body.Peek(1)
		first, _ := body.Peek(body.Buffered())
		if attempt.Header(response.StatusCode, response.Header, first) != nil && attempt.Again() {
			response.Body.Close()
			continue
		}
		defer response.Body.Close()
		maps.Copy(w.Header(), response.Header)
		w.WriteHeader(response.StatusCode)
		pass(w, attempt.Reader(io.NopCloser(body)))
		return
	}
}

// tenantOf returns the tenant whom the host has authenticated.
func tenantOf(in *http.Request) string {
	name, _, _ := in.BasicAuth()
	return name
}

// send sends the request to the attempt's address.
func (g *gateway) send(in *http.Request, call *transport.Call, attempt *transport.Attempt) (*http.Response, error) {
	to, err := transport.Target(attempt.Endpoint(), in.URL)
	if err != nil {
		return nil, err
	}
	out, err := http.NewRequestWithContext(in.Context(), in.Method, to.String(), bytes.NewReader(bytes.Join(call.Body(), nil)))
	if err != nil {
		return nil, err
	}
	out.Header = in.Header.Clone()
	attempt.SetHeader(out.Header)
	response, err := g.client.Do(out)
	if err == nil && response.StatusCode == http.StatusSwitchingProtocols { // it was not requested
		response.Body.Close()
		return nil, errors.New("it does not speak HTTP any more")
	}
	return response, err
}

// pass passes a body on as it arrives.
func pass(w http.ResponseWriter, body io.Reader) {
	piece := make([]byte, 16<<10)
	for {
		n, err := body.Read(piece)
		w.Write(piece[:n])
		switch err {
		case nil:
			http.NewResponseController(w).Flush()
		case io.EOF:
			return
		default:
			panic(http.ErrAbortHandler) // lets the client see that the response was cut off
		}
	}
}

// A gateway with an HTTP client of its own: one of its servers is down, the other
// streams.
func ExampleDispatcher() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, _ := io.ReadAll(in.Body)
		fmt.Printf("engine: %s %s\n", in.URL.Path, body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, `data: {"choices":[{"delta":{"content":"Hello!"}}]}`+"\n\n")
		io.WriteString(w, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n")
		io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer engine.Close()
	config := all.LMetric()
	config.Endpoints = []endpick.Endpoint{
		{ID: "gpu-0", Address: engine.Listener.Addr().String(), Models: []string{"llama"}},
		{ID: "gpu-1", Address: "127.0.0.1:1", Models: []string{"llama"}}, // nobody listens
	}
	router, err := endpick.New(config)
	if err != nil {
		panic(err)
	}
	s, err := transport.NewDispatcher(transport.Config{Router: router})
	if err != nil {
		panic(err)
	}
	front := httptest.NewServer(&gateway{dispatcher: s, client: new(http.Client)})
	defer front.Close()
	ask := func(body string) {
		response, err := http.Post(front.URL+"/v1/chat/completions", "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			panic(err)
		}
		defer response.Body.Close()
		answer, _ := io.ReadAll(response.Body)
		fmt.Printf("client: %s %s\n", response.Status, bytes.TrimSpace(answer))
	}
	ask(`{"model":"llama","stream":true,"messages":[{"role":"user","content":"Hi!"}]}`)
	ask(`{"model":"gpt","messages":[{"role":"user","content":"Hi!"}]}`)
	fmt.Println("in flight:", router.Stats().OpenLeases)

	// Output:
	// engine: /v1/chat/completions {"stream_options":{"include_usage":true},"model":"llama","stream":true,"messages":[{"role":"user","content":"Hi!"}]}
	// client: 200 OK data: {"choices":[{"delta":{"content":"Hello!"}}]}
	//
	// data: [DONE]
	// client: 404 Not Found {"error":{"message":"the model `gpt` does not exist; there are `llama`","type":"invalid_request_error","param":"model","code":"model_not_found"}}
	// in flight: 0
}

// A program that asks where a request should go, and leaves sending and retrying
// to another.
func ExampleAttempt_fallbacks() {
	router, err := endpick.New(endpick.Config{
		Policy: all.LMetric().Policy,
		Endpoints: []endpick.Endpoint{
			{ID: "gpu-0", Address: "10.0.0.1:8000"}, {ID: "gpu-1", Address: "10.0.0.2:8000"}, {ID: "gpu-2", Address: "10.0.0.3:8000"},
		},
	})
	if err != nil {
		panic(err)
	}
	for id, running := range map[string]float64{"gpu-0": 7, "gpu-1": 1, "gpu-2": 3} {
		if err := router.Report(id, endpick.Load{Running: running}); err != nil {
			panic(err)
		}
	}
	s, err := transport.NewDispatcher(transport.Config{Router: router, Fallbacks: 2})
	if err != nil {
		panic(err)
	}
	call, err := s.Read(transport.Incoming{Method: "POST", Path: "/v1/completions", Body: []byte(`{"prompt":"Hi!"}`)})
	if err != nil {
		panic(err)
	}
	defer call.Close()
	attempt, err := call.Route(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println("try", attempt.Endpoint().Address)
	for _, e := range attempt.Fallbacks {
		fmt.Println("else", e.Address)
	}
	if err := attempt.ServedBy("gpu-2"); err != nil { // gpu-1 was down
		panic(err)
	}
	attempt.Header(200, nil, nil)
	fmt.Println("served by", attempt.Endpoint().Address)
	attempt.End(nil)

	// Output:
	// try 10.0.0.2:8000
	// else 10.0.0.3:8000
	// else 10.0.0.1:8000
	// served by 10.0.0.3:8000
}
