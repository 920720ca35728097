package transport

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// exchange is one request at one endpoint: the lease, and what the response has
// said so far. It ends exactly once.
type exchange struct {
	trip   *trip
	lease  endpick.Lease
	ctx    context.Context // of the request as it was sent
	cancel context.CancelCauseFunc
	visit  visit
	watch  watch
	paid   bool // the next attempt is, because this one was given up
	http   int  // status; 0: no response

	mu     sync.Mutex  // guards what follows
	stop   func() bool // stops watching the client
	ended  bool
	status endpick.Status
	endAt  time.Time
	handed bool // to the client: how it ends is how the request ends

	usage        usage
	finder       *usageFinder
	contentBytes int
	estimate     float64 // tokens of the content that are not counted yet
	counted      int     // tokens that the lease was told of
	firstAt      time.Time
	chunks       bool // choices were seen
	finished     bool // a finish reason was seen
	done         bool // [DONE] was seen, or the end of a JSON object
	failed       bool // the engine reported an error in the stream
}

// follow ends the exchange when the client goes away.
func (x *exchange) follow(client context.Context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop = context.AfterFunc(client, func() {
		defer x.trip.t.guard(x.trip.in, "exchange")
		x.end(endpick.Canceled)
	})
}

// watchFirstByte bounds the wait for the first byte. A trial is to show whether
// the endpoint answers, at the cost of one client, and waits no longer than that
// takes.
func (x *exchange) watchFirstByte() {
	c, stream := &x.trip.t.config, x.trip.call.stream
	limit := c.ResponseTimeout
	if stream {
		limit = c.FirstByteTimeout
	}
	patience := x.trip.t.health.patience(stream)
	if x.visit.trial {
		limit = min(limit, max(patience, minStuck))
	}
	giveUp := time.Duration(0)
	if patience > 0 {
		giveUp = max(2*patience, minStuck)
	}
	x.watch.start(x, limit, patience, giveUp)
}

// minStuck is how long a request may wait for its first byte at the least, at an
// endpoint that sends nothing to anybody.
const minStuck = 10 * time.Second

// giveUp reports whether the request, which waits for long, is better sent to
// another endpoint, and pays for that. It is done once: a prompt may take its
// time.
func (x *exchange) giveUp() bool {
	tr := x.trip
	if tr.gaveUp || tr.attempts >= tr.t.config.MaxAttempts || !tr.repeatable() || !tr.t.health.stuck(x.visit) {
		return false
	}
	tr.gaveUp = tr.t.budget.retry(tr.t.now())
	x.paid = tr.gaveUp
	return x.paid
}

// cause tells a timeout of ours from the rest.
func (x *exchange) cause(err error) error {
	if context.Cause(x.ctx) == ErrTimeout {
		return ErrTimeout
	}
	return err
}

// meter wraps the body of the response, whose first byte is here.
func (x *exchange) meter(response *http.Response) {
	config := &x.trip.t.config
	body := io.ReadCloser(&wire{response.Body, &x.watch})
	if upgraded, ok := response.Body.(io.ReadWriteCloser); ok && response.StatusCode == http.StatusSwitchingProtocols {
		x.watch.answered(0, false, true)
		response.Body = &upgradedBody{ReadWriteCloser: upgraded, x: x}
		return
	}
	if contentType(response) == eventStream {
		x.watch.answered(max(config.StallTimeout, config.FirstByteTimeout), false, false)
	} else {
		x.watch.answered(config.ResponseTimeout, true, false)
	}
	passed := &responseBody{Reader: body, closer: body, x: x}
	response.Body = passed
	if !x.trip.metered || response.StatusCode >= http.StatusBadRequest {
		return
	}
	if coding := response.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		open := decoder(coding)
		if open == nil {
			return // passed on as it is; its tokens are not known
		}
		passed.Reader = &lazyReader{src: body, open: open}
		response.Header.Del("Content-Encoding")
		response.Uncompressed = true
		lengthUnknown(response)
	}
	switch contentType(response) {
	case eventStream:
		passed.Reader = &eventReader{src: passed.Reader, judge: x.event, end: x.eventsEnd}
		if x.trip.hideUsage {
			lengthUnknown(response)
		}
	case "application/json":
		passed.finder = new(usageFinder)
		x.mu.Lock()
		x.finder = passed.finder
		x.mu.Unlock()
	}
}

func lengthUnknown(response *http.Response) {
	response.ContentLength = -1
	response.Header.Del("Content-Length")
}

// event takes in one event of the stream.
func (x *exchange) event(data []byte) verdict {
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		x.mu.Lock()
		x.done = true
		x.mu.Unlock()
		return verdict{}
	}
	c := readChunk(data)
	x.mu.Lock()
	x.chunks = x.chunks || c.choices
	x.finished = x.finished || c.finished
	x.failed = x.failed || c.failed
	if c.usage != nil {
		x.usage.read(c.usage)
	}
	first := c.content > 0 && x.contentBytes == 0
	x.contentBytes += c.content
	x.estimate += float64(c.content) * x.trip.rates.content()
	n := 0
	switch {
	case c.content == 0:
	case c.usage != nil && x.usage.hasCompletion: // the engine counts as it goes
		n = max(x.usage.completion-x.counted, 0)
		x.estimate = 0
	default:
		n = int(x.estimate)
	}
	if first {
		n = max(n, 1) // however short
		x.firstAt = x.trip.t.now()
	}
	x.estimate -= min(float64(n), x.estimate)
	x.counted += n
	x.mu.Unlock()

	if first {
		x.watch.bound(x.trip.t.config.StallTimeout)
	}
	if c.content > 0 {
		x.lease.Tokens(n)
	}
	if !x.trip.hideUsage {
		return verdict{}
	}
	return c.hide()
}

// eventsEnd is asked when the stream has ended without an error. One that was
// never finished was cut all the same: the connection of a server that dies may
// look as if it had been closed.
func (x *exchange) eventsEnd() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done || x.finished || x.failed || !x.chunks {
		return nil
	}
	return io.ErrUnexpectedEOF
}

// end closes the lease, once. Each step is done even if another panics in the
// host's code.
func (x *exchange) end(status endpick.Status) {
	t, at := x.trip.t, x.trip.t.now()
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	x.ended = true
	if status == endpick.Completed && x.failed {
		status = endpick.Failed
	}
	if x.finder != nil && status == endpick.Completed {
		x.usage = x.finder.usage()
	}
	x.status, x.endAt = status, at
	u, handed, contentBytes, stop := x.usage, x.handed, x.contentBytes, x.stop
	x.mu.Unlock()

	x.closeLease(endpick.Outcome{
		Status:          status,
		InputTokens:     u.prompt,
		OutputTokens:    u.completion,
		CachedTokens:    u.cached,
		HasCachedTokens: u.hasCached,
	})
	stop()
	if t.hold != nil {
		t.hold.ended()
	}
	if status == endpick.Completed {
		t.learned.learn(x.trip.model, sample{
			promptTokens: u.prompt, promptBytes: x.trip.promptBytes,
			outputTokens: u.completion, outputBytes: contentBytes,
			responses: x.trip.responses,
		})
	}
	if !handed {
		return
	}
	if status == endpick.Failed { // in the middle: nobody else can be asked
		t.health.failed(x.visit, false)
	}
	x.trip.record(x, status, x.http)
}

func (x *exchange) closeLease(o endpick.Outcome) {
	defer x.trip.t.guard(x.trip.in, "Lease.Done") // the router's clock
	x.lease.Done(o)
}

// handOver says that this response is the one that the client gets.
func (x *exchange) handOver() {
	x.mu.Lock()
	x.handed = true
	ended, status := x.ended, x.status
	x.mu.Unlock()
	if ended {
		x.trip.record(x, status, x.http)
	}
}

// responseBody passes a response on, and ends the exchange with it.
type responseBody struct {
	io.Reader
	closer io.Closer
	x      *exchange
	finder *usageFinder // of x; nil if the response is not searched
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.finder != nil && n > 0 {
		b.x.mu.Lock()
		b.finder.write(p[:n])
		b.x.done = b.finder.whole
		b.x.mu.Unlock()
	}
	switch err {
	case nil:
		return n, nil
	case io.EOF:
		b.x.end(endpick.Completed)
	default:
		err = b.x.cause(err)
		b.x.end(b.x.trip.failure())
	}
	b.x.watch.stop()
	b.x.cancel(context.Canceled)
	return n, err
}

// Close ends the exchange as canceled, unless the response was complete.
func (b *responseBody) Close() error {
	b.x.mu.Lock()
	done := b.x.done
	b.x.mu.Unlock()
	if done {
		b.x.end(endpick.Completed)
	} else {
		b.x.end(endpick.Canceled)
	}
	b.x.watch.stop()
	b.x.cancel(context.Canceled)
	return b.closer.Close()
}

// upgradedBody is a connection that has left HTTP, such as a WebSocket. It may
// be silent for as long as it likes.
type upgradedBody struct {
	io.ReadWriteCloser
	x *exchange
}

func (b *upgradedBody) Close() error {
	b.x.end(endpick.Completed)
	b.x.watch.stop()
	err := b.ReadWriteCloser.Close()
	b.x.cancel(context.Canceled)
	return err
}
