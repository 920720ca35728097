package transport

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/endpick/endpick/transport/internal/dialect"
)

// With Config.KeepAlive, another goroutine asks the endpoints for a stream and passes on what comes.
// While nothing comes, the client gets comments, which no endpoint has sent: others may still be
// asked.

var keepAlive = []byte(": keep-alive\n\n")

// askMeanwhile is ask for a stream whose client gets comments.
func (t *Transport) askMeanwhile(c *Call) (*http.Response, error) {
	in := c.in
	ctx, cancel := context.WithCancel(in.Context())
	c.in, c.chosen = in.WithContext(ctx), make(chan struct{})
	reader, writer := io.Pipe()
	k := &comments{call: c, to: writer}
	came, early := make(chan reply), make(chan struct{})
	go func() {
		r := k.ask()
		select {
		case came <- r:
		case <-early:
			k.pass(r)
		}
	}()
	body := &canceling{reader, cancel}
	var r reply
	select {
	case r = <-came:
	case <-c.chosen: // until then, the queue may refuse the request with a status of its own
		timer := time.NewTimer(t.config.KeepAlive)
		defer timer.Stop()
		select {
		case r = <-came:
		case <-timer.C:
			c.reading.Lock()
			k.start(0)
			close(early)
			response := respond(in, http.StatusOK, nil, nil)
			response.Header = http.Header{"Content-Type": {dialect.EventStream}}
			response.Body, response.ContentLength = body, -1
			return response, nil
		}
	}
	if r.err != nil {
		cancel()
		return nil, r.err
	}
	response := *r.response
	response.Header = response.Header.Clone() // r's is read while a proxy changes this one
	if response.Request = in; r.streams() {
		k.start(t.config.KeepAlive)
		go k.pass(r)
	} else {
		body.ReadCloser = response.Body
	}
	response.Body = body
	return &response, nil
}

// streams reports whether there may be comments in the response.
func (r reply) streams() bool {
	return r.err == nil && r.response.StatusCode < http.StatusBadRequest &&
		dialect.ContentType(r.response.Header) == dialect.EventStream && readable(r.response.Header)
}

// problem says what has come instead of a stream.
func (r reply) problem() dialect.Problem {
	if r.err != nil {
		return problemFor(r.err)
	}
	defer r.response.Body.Close()
	if r.response.StatusCode < http.StatusBadRequest {
		return dialect.Problem{Status: http.StatusBadGateway, Message: "the model server has not answered with a stream"}
	}
	const most = 64 << 10 // of an error
	text, _ := io.ReadAll(io.LimitReader(r.response.Body, most))
	return dialect.ProblemOf(r.response.StatusCode, text)
}

// canceling is the body of a response that needs its context no longer than its reader needs it.
type canceling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *canceling) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}

// comments writes a stream to its client, and comments between its events.
type comments struct {
	call *Call

	mu    sync.Mutex // guards the fields below, and is held while the client reads
	to    *io.PipeWriter
	timer *time.Timer
	last  [3]byte // bytes of what was written
	over  bool
}

// ask asks the endpoints. Nobody would recover a panic of this goroutine, so that it becomes an error.
func (k *comments) ask() (r reply) {
	c := k.call
	defer c.d.rescue(c.in, "RoundTrip", &r.err)
	r.response, r.err = c.t.ask(c)
	return r
}

// start sends the first comment if nothing comes for so long.
func (k *comments) start(after time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(after, k.silent)
}

func (k *comments) silent() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	var err error
	if k.last == [3]byte{} || bytes.HasSuffix(k.last[:], []byte("\n\n")) || string(k.last[:]) == "\n\r\n" {
		_, err = k.to.Write(keepAlive)
	}
	if err == nil {
		k.timer.Reset(k.call.d.config.KeepAlive)
	}
}

// Write passes on a piece of the stream.
func (k *comments) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range p[max(0, len(p)-len(k.last)):] {
		k.last = [3]byte{k.last[1], k.last[2], b}
	}
	defer k.timer.Reset(k.call.d.config.KeepAlive)
	return k.to.Write(p)
}

// pass passes a response on to its end, or an error as an event.
func (k *comments) pass(r reply) {
	err := k.copy(r)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.timer.Stop()
	_ = k.to.CloseWithError(err)
}

func (k *comments) copy(r reply) (err error) {
	c := k.call
	defer c.d.rescue(c.in, "RoundTrip", &err)
	if !r.streams() {
		_, err = k.Write(r.problem().Event(c.in.URL.Path))
		return err
	}
	defer r.response.Body.Close()
	_, err = io.Copy(k, r.response.Body)
	return err
}
