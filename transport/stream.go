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
	"github.com/endpick/endpick/transport/internal/choose"
	"github.com/endpick/endpick/transport/internal/coding"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// exchange is one request at one endpoint: the lease, and what the response has
// said so far. It ends exactly once.
type exchange struct {
	trip   *trip
	number int // index of the attempt
	lease  endpick.Lease
	ctx    context.Context // of the outgoing request
	cancel context.CancelCauseFunc
	meter  *dialect.Meter
	visit  health.Visit
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
		defer x.trip.t.guard(x.trip.in, "exchange")
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
	c, stream := &x.trip.t.config, x.trip.Request.Stream
	limit := c.ResponseTimeout
	if stream {
		limit = c.FirstByteTimeout
	}
	patience := x.trip.t.desk.Health.Patience(stream)
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
	tr := x.trip
	if tr.gaveUp || tr.Attempts >= tr.t.config.MaxAttempts || !tr.Repeatable() ||
		!tr.t.desk.Health.Stuck(x.visit) || !tr.HasOthers(x.lease.Endpoint().ID) {
		return false
	}
	tr.gaveUp = tr.t.desk.Budget.Retry(tr.t.now())
	x.paid = tr.gaveUp
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
	config := &x.trip.t.config
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
	if !x.trip.call.Metered() || response.StatusCode >= http.StatusBadRequest {
		return
	}
	if packed := response.Header.Get("Content-Encoding"); packed != "" && !strings.EqualFold(packed, "identity") {
		open := coding.Decoder(packed)
		if open == nil {
			return // passed on as it is; its tokens are unknown
		}
		passed.Reader = &coding.Reader{Src: body, Open: open}
		response.Header.Del("Content-Encoding")
		response.Header.Del("Content-Length")
		response.Uncompressed = true
	}
	filters := x.meter.Header(response.StatusCode, response.Header)
	if response.Header.Get("Content-Length") == "" {
		response.ContentLength = -1
	}
	passed.Reader = &metered{src: passed.Reader, x: x, filters: filters}
}

// metered is a body that is metered while it is read.
type metered struct {
	src     io.Reader
	x       *exchange
	filters bool   // the meter may hold bytes back
	out     []byte // what it has passed on
	at      int    // in out
	started bool
	err     error
}

func (r *metered) Read(p []byte) (int, error) {
	if !r.filters {
		n, err := r.src.Read(p)
		r.x.meter.Feed(p[:0], p[:n])
		return n, err
	}
	for len(p) > 0 && r.at == len(r.out) {
		if r.err != nil {
			return 0, r.err
		}
		r.fill(p)
	}
	n := copy(p, r.out[r.at:])
	r.at += n
	return n, nil
}

// fill reads once, into p, when nothing is ready.
func (r *metered) fill(p []byte) {
	m := r.x.meter
	n, err := r.src.Read(p)
	r.out, r.at, r.err = m.Feed(r.out[:0], p[:n]), 0, err
	switch {
	case err == io.EOF:
		var cut error
		if r.out, cut = m.End(r.out); cut != nil {
			r.err = cut
		}
	case err != nil:
		r.out = m.Rest(r.out)
	}
	if !r.started && m.Started() {
		r.started = true
		r.x.watch.bound(r.x.trip.t.config.StallTimeout)
	}
}

// end closes the lease, once. Each step is done even if another one panics in
// the host's code.
func (x *exchange) end(status endpick.Status) {
	t, at := x.trip.t, x.trip.t.now()
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

	if handed && x.trip.charged {
		x.trip.settle(x, status) // before others get their turns
	}
	x.lease.Done(outcome)
	stop()
	if t.hold != nil {
		t.hold.ended()
	}
	if !handed {
		return
	}
	if status == endpick.Failed { // broken off: no other endpoint can be asked
		t.desk.Health.Failed(x.visit, false)
	}
	x.trip.record(x, status, x.http)
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
		x.trip.record(x, status, x.http)
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
		status := b.x.trip.failure(choose.Broken)
		b.x.end(status)
		if status == endpick.Failed {
			err = &UpstreamError{Endpoint: b.x.lease.Endpoint().ID, Attempts: b.x.trip.Attempts, Err: err}
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
