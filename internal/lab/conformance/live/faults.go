package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// fault is how a server answers an attempt.
type fault int

const (
	none fault = iota
	slowly
	longEvent
	anError
	overloaded
	tooMany
	reset
	closed
	noHTTP
	errorEvent
	hangs
	cutWhole
	cutStream
	cutEvent
	unfinished
	nothing
	faults
)

// about describes each fault, and how many of a thousand attempts have it. The rest go
// well.
var about = [faults]struct {
	name     string
	thousand int
	good     bool // the response is complete
}{
	none:       {name: "answers", good: true},
	slowly:     {name: "answers slowly", thousand: 10, good: true},
	longEvent:  {name: "has an event of 100 KB", thousand: 2, good: true},
	anError:    {name: "answers 500", thousand: 6},
	overloaded: {name: "answers 503", thousand: 8},
	tooMany:    {name: "answers 429", thousand: 6},
	reset:      {name: "resets the connection", thousand: 6},
	closed:     {name: "closes the connection", thousand: 6},
	noHTTP:     {name: "does not speak HTTP", thousand: 4},
	errorEvent: {name: "begins with an error", thousand: 4},
	hangs:      {name: "hangs, then resets", thousand: 2},
	cutWhole:   {name: "breaks off", thousand: 6},
	cutStream:  {name: "breaks off after some tokens", thousand: 4},
	cutEvent:   {name: "breaks off in the middle of an event", thousand: 4},
	unfinished: {name: "ends a stream unfinished", thousand: 4},
	nothing:    {name: "answers with nothing", thousand: 4},
}

// draw returns the fault for a random number.
func draw(chance uint64) fault {
	at := int(chance % 1000)
	for f := slowly; f < faults; f++ {
		if at -= about[f].thousand; at < 0 {
			return f
		}
	}
	return none
}

const (
	event    = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" work"},"finish_reason":null}]}` + "\n\n"
	finish   = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage    = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":8,"total_tokens":108}}` + "\n\n"
	done     = "data: [DONE]\n\n"
	answer   = `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"All work and no play makes Jack a dull boy."},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":8,"total_tokens":108}}`
	tokens   = 8
	problem  = `{"error":{"message":"the engine is in trouble","type":"server_error","param":null,"code":null}}`
	hangsFor = 300 * time.Millisecond
)

// reply is a response being sent.
type reply struct {
	w      http.ResponseWriter
	r      *http.Request
	flush  func() error
	stream bool
	usage  bool          // requested
	pace   time.Duration // between events
	err    error
}

func (a *reply) say(s string) {
	if a.err != nil {
		return
	}
	if _, a.err = io.WriteString(a.w, s); a.err == nil {
		a.err = a.flush()
	}
}

func (a *reply) wait(d time.Duration) {
	if d > 0 && a.err == nil && !sleep(a.r.Context(), d) {
		a.err = a.r.Context().Err()
	}
}

// give responds according to a fault, and reports whether a complete good response was sent.
func (a *reply) give(f fault) bool {
	switch f {
	case anError, overloaded, tooMany:
		status := map[fault]int{anError: 500, overloaded: 503, tooMany: 429}[f]
		a.w.Header().Set("Content-Type", "application/json")
		a.w.Header().Set("Content-Length", fmt.Sprint(len(problem)))
		a.w.WriteHeader(status)
		a.say(problem)
		return false
	case hangs:
		a.wait(hangsFor)
		a.hijack("", true)
		return false
	case reset, closed:
		a.hijack("", f == reset)
		return false
	case noHTTP:
		a.hijack("hello\r\n\r\n", false)
		return false
	}
	if !a.stream {
		a.w.Header().Set("Content-Type", "application/json")
		switch f {
		case cutWhole, cutStream, cutEvent, unfinished:
			a.w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
			a.say(answer[:80])
			panic(http.ErrAbortHandler)
		case nothing:
			return false
		case errorEvent:
			a.say(problem)
			return false
		case slowly:
			a.wait(20 * time.Millisecond)
		}
		a.say(answer)
		return a.err == nil
	}
	a.w.Header().Set("Content-Type", "text/event-stream")
	switch f {
	case nothing:
		return false
	case errorEvent:
		a.say("data: " + problem + "\n\n")
		return false
	}
	text := event
	if f == longEvent {
		text = strings.Replace(event, " work", strings.Repeat(" work", 20_000), 1)
	}
	for i := range tokens {
		if i > 0 {
			a.wait(a.pace)
		}
		if f == slowly {
			a.wait(3 * time.Millisecond)
		}
		switch {
		case f == cutWhole && i == 1, f == cutStream && i == tokens/2:
			panic(http.ErrAbortHandler)
		case f == cutEvent && i == 3:
			a.say(event[:40])
			panic(http.ErrAbortHandler)
		case f == unfinished && i == 5:
			return false
		}
		a.say(text)
	}
	last := finish
	if a.usage {
		last += usage
	}
	a.say(last + done)
	return a.err == nil
}

// hijack takes over the connection.
func (a *reply) hijack(say string, hard bool) {
	conn, _, err := http.NewResponseController(a.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(conn, say)
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok && hard {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
