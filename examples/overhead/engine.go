package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"
)

// The headers by which a request says how it is answered.
const (
	eventsHeader   = "X-Events"   // how many; 0: no stream
	togetherHeader = "X-Together" // how many of them in one write
	rateHeader     = "X-Rate"     // how many a second; 0: at once
)

const oneEvent = `data: {"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m","choices":[{"index":0,"delta":{"content":" work"},"finish_reason":null}]}` + "\n\n"

// stampedEvent begins with when it was sent, in nanoseconds.
const stampedEvent = `data: {"created":%020d,"id":"chatcmpl-3f2a","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" work"},"finish_reason":null}]}` + "\n\n"

const lastEvents = `data: {"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

const oneAnswer = `{"id":"x","object":"chat.completion","created":1732153200,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"work"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}`

// engine answers as it is told, and computes nothing.
func engine(w http.ResponseWriter, r *http.Request) {
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
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	together = max(together, 1)
	if rate > 0 {
		paced(r.Context(), w, control, events, rate)
	} else {
		piece := strings.Repeat(oneEvent, together)
		for range events / together {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
			_ = control.Flush()
		}
	}
	_, _ = io.WriteString(w, lastEvents)
}

// paced sends events that say when they were sent.
func paced(ctx context.Context, w io.Writer, control *http.ResponseController, events, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	b := []byte(stampedEvent)
	for range events {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		b = appendStamped(b[:0], time.Now())
		if _, err := w.Write(b); err != nil {
			return
		}
		_ = control.Flush()
	}
}

const stamp = `data: {"created":`

func appendStamped(b []byte, at time.Time) []byte {
	before, after, _ := strings.Cut(stampedEvent, "%020d")
	digits := strconv.FormatInt(at.UnixNano(), 10)
	b = append(b, before...)
	b = append(b, "1"+strings.Repeat("0", 20-len(digits))+digits...)
	return append(b, after...)
}

// stampOf is when an event was sent; false: the line is none that says so.
func stampOf(line []byte) (time.Time, bool) {
	rest, ok := strings.CutPrefix(string(line), stamp)
	if !ok || len(rest) < 21 {
		return time.Time{}, false
	}
	ns, err := strconv.ParseInt(rest[1:21], 10, 64)
	return time.Unix(0, ns), err == nil
}

// bench is an engine and the two proxies before it.
type bench struct {
	engine         *httptest.Server
	plain, endpick *process
}

func newBench(ctx context.Context, record bool) (b *bench, err error) {
	b = &bench{engine: httptest.NewServer(http.HandlerFunc(engine))}
	if b.plain, err = startProxy(ctx, "plain", b.engine.URL, record); err == nil {
		b.endpick, err = startProxy(ctx, "endpick", b.engine.URL, record)
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
	b.engine.Close()
}
