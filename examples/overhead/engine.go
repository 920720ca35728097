package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
)

// The headers with which a request says how to answer it.
const (
	eventsHeader   = "X-Events"   // how many; 0: no stream
	togetherHeader = "X-Together" // events per write
	rateHeader     = "X-Rate"     // events per second; 0: at once
)

const oneEvent = `data: {"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m","choices":[{"index":0,"delta":{"content":" work"},"finish_reason":null}]}` + "\n\n"

const lastEvents = `data: {"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

const oneAnswer = `{"id":"x","object":"chat.completion","created":1732153200,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"work"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}`

// engine answers as requested, and computes nothing.
type engine struct{ pacer pacer }

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	number := func(header string) int {
		n, _ := strconv.Atoi(r.Header.Get(header))
		return n
	}
	events, together, rate := number(eventsHeader), number(togetherHeader), number(rateHeader)
	if events == 0 {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, oneAnswer)
		return
	}
	if rate > 0 {
		e.pacer.begin(w, events, rate)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	together = max(together, 1)
	piece := strings.Repeat(oneEvent, together)
	for range events / together {
		if _, err := io.WriteString(w, piece); err != nil {
			return
		}
		_ = control.Flush()
	}
	_, _ = io.WriteString(w, lastEvents)
}

// bench is an engine and the two proxies in front of it.
type bench struct {
	ctx            context.Context
	server         *httptest.Server // of the engine
	plain, endpick *process
}

func newBench(ctx context.Context, record bool) (b *bench, err error) {
	b = &bench{ctx: ctx, server: httptest.NewServer(new(engine))}
	if b.plain, err = startProxy(ctx, "plain", b.server.URL, record); err == nil {
		b.endpick, err = startProxy(ctx, "endpick", b.server.URL, record)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	for _, p := range []*process{b.plain, b.endpick} {
		if p != nil {
			_ = p.stop()
		}
	}
	b.server.Close()
}
