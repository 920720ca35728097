package transport

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// exchange is one request at one endpoint: the lease, and what the response has
// said so far. It ends exactly once.
type exchange struct {
	rt     *roundTrip
	number int // index of the attempt
	lease  endpick.Lease
	ctx    context.Context // of the outgoing request
	cancel context.CancelCauseFunc
	meter  *dialect.Meter
	health health.Attempt
	watch  watch
	paid   bool // the next attempt is paid for, because this one was given up
	http   int  // status; 0: no response

	mu     sync.Mutex  // guards the fields below
	stop   func() bool // stops watching the client
	ended  bool
	cut    error // why the response broke off; nil: it did not, or says so itself
	status endpick.Status
	endAt  time.Time
	handed bool // to the client: how it ends is how the request ends
}

// follow ends the exchange when the client disconnects.
func (x *exchange) follow(client context.Context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop = context.AfterFunc(client, func() {
		defer x.rt.t.d.guard(x.rt.in, "exchange")
		x.left()
	})
}

// left ends the exchange because the client wants no more: as canceled, unless it
// may have received everything.
func (x *exchange) left() {
	if x.meter.Whole() {
		x.end(endpick.Completed)
	} else {
		x.end(endpick.Canceled)
	}
}

// watchFirstByte limits the wait for the first byte.
func (x *exchange) watchFirstByte() {
	c, stream := x.rt.t.config, x.rt.request.Stream
	limit := c.ResponseTimeout
	if stream {
		limit = c.FirstByteTimeout
	}
	patience := x.rt.t.d.health.Patience(stream)
	giveUp := time.Duration(0)
	if patience > 0 {
		giveUp = max(2*patience, minStuck)
	}
	x.watch.start(x, limit, patience, giveUp)
}

// minStuck is how long a request waits for its first byte at least, at an
// endpoint that sends nothing to anybody.
const minStuck = 10 * time.Second

// giveUp reports whether a request that has waited for long should go to
// another endpoint, and pays for that. It does so once, because a prompt may
// simply take its time.
func (x *exchange) giveUp() bool {
	rt := x.rt
	if rt.gaveUp || rt.attempts >= rt.t.config.MaxAttempts || !rt.repeatable() ||
		!rt.t.d.health.Stuck(x.health) || !rt.hasOthers(x.lease.Endpoint().ID) {
		return false
	}
	rt.gaveUp = rt.t.d.budget.Retry(rt.t.d.now())
	x.paid = rt.gaveUp
	return x.paid
}

// cause tells our timeouts from other errors.
func (x *exchange) cause(err error) error {
	if context.Cause(x.ctx) == ErrTimeout {
		return ErrTimeout
	}
	return err
}

// pass wraps the body of a response, of which the first byte is here, to meter
// it.
func (x *exchange) pass(response *http.Response) {
	config := x.rt.t.config
	body := io.ReadCloser(&wire{response.Body, &x.watch})
	if upgraded, ok := response.Body.(io.ReadWriteCloser); ok && response.StatusCode == http.StatusSwitchingProtocols {
		x.watch.left(config.UpgradeTimeout, upgraded)
		response.Body = &upgradedBody{ReadWriteCloser: upgraded, x: x}
		return
	}
	if contentType(response) == dialect.EventStream {
		x.watch.answered(max(config.StallTimeout, config.FirstByteTimeout), false)
	} else {
		x.watch.answered(config.ResponseTimeout, true)
	}
	passed := &responseBody{Reader: body, closer: body, x: x}
	response.Body = passed
	if !x.rt.call.Metered() || response.StatusCode >= http.StatusBadRequest {
		return
	}
	if packed := response.Header.Get("Content-Encoding"); packed != "" && !strings.EqualFold(packed, "identity") {
		open := decoder(packed)
		if open == nil {
			return // passed on as it is; its tokens are unknown
		}
		passed.Reader = &decoding{src: body, open: open}
		response.Header.Del("Content-Encoding")
		response.Header.Del("Content-Length")
		response.Uncompressed = true
	}
	filters := x.meter.Header(response.StatusCode, response.Header)
	if response.Header.Get("Content-Length") == "" {
		response.ContentLength = -1
	}
	if !filters {
		passed.Reader = &metered{passed.Reader, x.meter}
		return
	}
	passed.Reader = &filtered{
		src: passed.Reader, filter: &streamMeter{Meter: x.meter, x: x}, failed: func(err error) error { return err },
	}
}

// metered is a body that is metered while it is read, and passed on as it is.
type metered struct {
	io.Reader
	meter *dialect.Meter
}

func (r *metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.meter.Feed(p[:0], p[:n])
	return n, err
}

// streamMeter filters a stream. From the first token on, no wait may be longer than
// StallTimeout.
type streamMeter struct {
	*dialect.Meter
	x       *exchange
	started bool
}

func (m *streamMeter) Feed(dst, piece []byte) []byte {
	dst = m.Meter.Feed(dst, piece)
	if !m.started && !m.Seen().FirstToken.IsZero() {
		m.started = true
		m.x.watch.bound(m.x.rt.t.config.StallTimeout)
	}
	return dst
}

// end closes the lease, once. Each step is done even if another one panics in
// the host's code.
func (x *exchange) end(status endpick.Status) {
	t, at := x.rt.t, x.rt.t.d.now()
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	x.ended = true
	outcome := x.meter.Outcome(status)
	if outcome.Status == endpick.Failed { // as the response itself says
		status = endpick.Failed
	}
	x.status, x.endAt = status, at
	handed, stop := x.handed, x.stop
	x.mu.Unlock()

	if handed && x.rt.charged {
		x.rt.settle(x, status) // before the next one is taken
	}
	x.lease.Done(outcome)
	stop()
	if t.queue != nil {
		t.queue.ended()
	}
	if !handed {
		return
	}
	if status == endpick.Failed { // broken off: no other endpoint can be asked
		t.d.health.Failed(x.health, false)
	}
	x.rt.record(x, status, x.http)
}

// errInStream is the error of a response that is complete, and reports an error in an
// event after the first.
var errInStream = errors.New("transport: the response ends in an error event")

// why is the error of a response that failed after its first byte.
func (x *exchange) why() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cut != nil {
		return x.cut
	}
	return errInStream
}

// handOver makes this response the one that the client gets.
func (x *exchange) handOver() {
	x.mu.Lock()
	x.handed = true
	ended, status := x.ended, x.status
	x.mu.Unlock()
	if ended {
		x.rt.record(x, status, x.http)
	}
}

// responseBody passes a response on, and ends the exchange at its end.
type responseBody struct {
	io.Reader
	closer io.Closer
	x      *exchange
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	switch err {
	case nil:
		return n, nil
	case io.EOF:
		b.x.end(endpick.Completed)
	default:
		err = b.x.cause(err)
		b.x.mu.Lock()
		b.x.cut = err
		b.x.mu.Unlock()
		status := b.x.rt.failure(Broken)
		b.x.end(status)
		if status == endpick.Failed {
			err = &UpstreamError{Endpoint: b.x.lease.Endpoint().ID, Attempts: b.x.rt.attempts, Err: err}
		}
	}
	b.x.watch.stop()
	b.x.cancel(context.Canceled)
	return n, err
}

// Close ends the exchange as canceled, unless the response was complete.
func (b *responseBody) Close() error {
	b.x.left()
	b.x.watch.stop()
	b.x.cancel(context.Canceled)
	return b.closer.Close()
}

// upgradedBody is a connection after an upgrade, such as a WebSocket.
type upgradedBody struct {
	io.ReadWriteCloser
	x *exchange
}

func (b *upgradedBody) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	b.x.watch.moved()
	return n, err
}

func (b *upgradedBody) Write(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Write(p)
	b.x.watch.moved()
	return n, err
}

// CloseWrite passes on that the client has closed its direction: the endpoint may
// still answer.
func (b *upgradedBody) CloseWrite() error {
	half, ok := b.ReadWriteCloser.(interface{ CloseWrite() error })
	if !ok {
		return http.ErrNotSupported
	}
	return half.CloseWrite()
}

func (b *upgradedBody) Close() error {
	b.x.end(endpick.Completed)
	b.x.watch.stop()
	err := b.ReadWriteCloser.Close()
	b.x.cancel(context.Canceled)
	return err
}
