package transport

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// Attempt is a request at one endpoint. Its methods are called in the order in which
// the response arrives.
type Attempt struct {
	// Fallbacks are the endpoints that could take the request if this one can't, best
	// first, at most Config.Fallbacks; none if the request must not be sent twice. Do not
	// change it.
	Fallbacks []*endpick.Endpoint

	call   *Call
	ctx    context.Context
	stream bool

	lease   endpick.Lease
	meter   *dialect.Meter
	health  health.Attempt
	since   time.Time   // when the request was sent to this endpoint
	overdue *time.Timer // reports a silent endpoint to health; nil: not silent, or unknown when
	forget  func() bool // stops watching the context, when nobody else would end the attempt
	served  bool        // the header was good
	empty   bool        // nothing has arrived of what should be a stream
	astray  bool        // it is at an endpoint that takes no requests: filtered, but not counted
	ended   bool
	failed  bool // it has ended as a failure, with this result, which Again has not considered yet
	result  Result
}

var errAnswered = errors.New("transport: the request has been answered")

// begin opens an attempt.
func (c *Call) begin(ctx context.Context, lease endpick.Lease) *Attempt {
	a := &Attempt{call: c, ctx: ctx, Fallbacks: c.alternatives(), stream: c.pending.request.Stream}
	a.open(lease)
	return a
}

// open takes over a lease. The previous one has ended.
func (a *Attempt) open(lease endpick.Lease) {
	d := a.call.d
	candidate, _ := lease.Candidate()
	a.lease, a.since, a.ended, a.failed = lease, d.now(), false, false
	a.meter = a.call.call.Meter(lease, d.now)
	attempt := d.health.Sent(lease.Endpoint().ID, candidate.Ref)
	a.health = attempt
	if patience := d.health.Patience(a.stream); patience > 0 {
		a.overdue = time.AfterFunc(patience, func() { d.health.Overdue(attempt) })
	}
	a.forget = context.AfterFunc(a.ctx, a.abandoned)
}

// abandoned ends the attempt when its context is done.
func (a *Attempt) abandoned() {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	a.close()
}

// Endpoint returns where the request goes, or went.
func (a *Attempt) Endpoint() *endpick.Endpoint { return a.Lease().Endpoint() }

// Lease returns the request's lease at the endpoint. The attempt closes it.
func (a *Attempt) Lease() endpick.Lease {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	return a.lease
}

// SetHeader sets in the header of the request what the endpoint needs beside
// the body: that the body has no coding any more, that a response which is metered must
// come without one, and its data-parallel rank.
func (a *Attempt) SetHeader(h http.Header) {
	if a.call.unpacked {
		h.Del("Content-Encoding")
	}
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	setHeader(h, a.call.metered, a.lease.Endpoint())
}

// ServedBy reports that a proxy has sent the request to another endpoint after this one
// failed it. Call it before Header; it moves the attempt to the other endpoint. The
// error is an [endpick.NoEndpointError] if the endpoint is unknown or takes no
// requests. Then the attempt has ended, but the response must still be fed, because it
// may contain what the client has not asked for.
func (a *Attempt) ServedBy(id string) error {
	c := a.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == a.lease.Endpoint().ID || !a.fail(Erred) || c.call == nil {
		return nil
	}
	a.failed = false // it has been dealt with
	lease, err := c.pending.adopt(id)
	if err != nil {
		a.astray, a.meter = true, c.call.Meter(a.lease, c.d.now) // to filter the response as usual
		return err
	}
	a.open(lease)
	return nil
}

// Header takes the header of the response, and the part of its body that has arrived,
// which may be empty and must be fed too. The error, a [UpstreamError], says
// why the endpoint has failed the request: because of its status, or of an event in its
// stream. The attempt has then ended, but the response may still be passed on.
//
// Header removes the length from the header if what is passed on may be shorter than
// what is fed.
func (a *Attempt) Header(status int, header http.Header, first []byte) error {
	c := a.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.astray {
		a.readHeader(status, header)
		return nil
	}
	if a.ended || a.served {
		return nil
	}
	a.stopWaiting()
	d := c.d
	d.health.Heard(a.health)
	switch {
	case status >= http.StatusBadRequest:
		return a.failBy(resultOf(status), statusError(status))
	case a.stream && c.call.FirstFails(first):
		return a.failBy(Erred, errFirstEvent)
	}
	a.readHeader(status, header)
	a.served, a.empty = true, a.stream && status == http.StatusOK
	d.health.Served(a.health, a.stream, d.now().Sub(a.since))
	c.answered()
	return nil
}

// readHeader passes a header to the meter, unless the meter can't read what follows.
func (a *Attempt) readHeader(status int, header http.Header) {
	if coding := header.Get("Content-Encoding"); coding == "" || strings.EqualFold(coding, "identity") {
		a.meter.Header(status, header)
	}
}

// Unread reports that the body of the response will not be fed, so that End considers
// it complete. Otherwise a stream that ends without a byte has failed.
func (a *Attempt) Unread() {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	a.empty = false
}

// Feed takes the next piece of the response's body, and appends to dst what is to be
// passed on: whole events of a stream, everything of other responses.
func (a *Attempt) Feed(dst, piece []byte) []byte {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	switch {
	case a.astray:
		return a.meter.Feed(dst, piece)
	case !a.served || len(piece) == 0:
		return append(dst, piece...)
	}
	a.empty = false
	a.call.d.health.Heard(a.health)
	a.lease.Tokens(0) // keeps the lease alive, even if nothing is counted
	return a.meter.Feed(dst, piece)
}

// End reports that the response has ended cleanly, and appends to dst what was held
// back. If the stream was incomplete or empty, the error matches io.ErrUnexpectedEOF
// and the endpoint has failed.
func (a *Attempt) End(dst []byte) ([]byte, error) {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	if a.astray {
		return a.meter.End(dst)
	}
	if a.served {
		var cut error
		if dst, cut = a.meter.End(dst); cut == nil && a.empty {
			cut = io.ErrUnexpectedEOF // an empty stream is no response
		}
		if cut != nil {
			return dst, a.failBy(Broken, cut)
		}
	}
	a.end(endpick.Completed)
	return dst, nil
}

// Fail reports that there was no response, or that it broke off, and returns err as a
// [UpstreamError]. An error of package net shows that the endpoint could not
// be reached. If the context of Route is done, the client has left, and the endpoint is
// not blamed.
func (a *Attempt) Fail(err error) error {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	if host.IsDial(err) {
		return a.failBy(Unreachable, err)
	}
	return a.failBy(Broken, err)
}

// Again reports whether the request should be sent to another endpoint, which Route
// then chooses; if so, it counts against the retry budget. Call it once after a
// failure, before passing on any of the response.
func (a *Attempt) Again() bool {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	if !a.failed || a.served {
		return false
	}
	a.failed, a.call.pending.single = false, false
	if a.result == Refused {
		a.call.pending.fail(a.health, a.result)
	}
	return a.call.pending.retry(a.ctx, a.health, a.result, false)
}

// failBy ends the attempt as a failure for this reason.
func (a *Attempt) failBy(result Result, err error) error {
	a.fail(result)
	return &UpstreamError{Endpoint: a.lease.Endpoint().ID, Attempts: a.call.pending.attempts, Err: err}
}

// fail ends the attempt as a failure. It returns false if it had ended before, or if
// the client has left.
func (a *Attempt) fail(result Result) bool {
	a.stopWaiting()
	if a.ctx.Err() != nil {
		a.end(endpick.Canceled)
		return false
	}
	if !a.end(result.status()) {
		return false
	}
	if !a.served { // a response that broke off in the middle is reported by end
		a.failed, a.result = true, result
		if result != Refused { // the client's fault, unless another endpoint takes the request
			a.call.pending.fail(a.health, result)
		}
	}
	return true
}

// close ends the attempt because its call or its context has ended.
func (a *Attempt) close() {
	a.stopWaiting()
	if a.meter.Whole() {
		a.end(endpick.Completed)
	} else {
		a.end(endpick.Canceled)
	}
}

// end closes the lease; false: it was closed already.
func (a *Attempt) end(status endpick.Status) bool {
	if a.ended {
		return false
	}
	a.ended = true
	a.forget()
	o := a.meter.Outcome(status)
	a.lease.Done(o)
	if a.served && o.Status == endpick.Failed { // no other endpoint can be asked
		a.call.d.health.Failed(a.health, false)
	}
	return true
}

// stopWaiting stops the timer for the header.
func (a *Attempt) stopWaiting() {
	if a.overdue != nil {
		a.overdue.Stop()
	}
}

// Reader returns a reader of the response's body that feeds it as it is read, for
// programs that have a reader, as in httputil.ReverseProxy.ModifyResponse. Call Header
// before. The attempt ends at the end of the body; a body that breaks off has failed.
// Closing it only closes body: Call.Close is still necessary.
func (a *Attempt) Reader(body io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{&filtered{src: body, filter: attemptFilter{a}, failed: a.Fail}, body}
}

// attemptFilter filters the body of a response as Attempt.Reader reads it.
type attemptFilter struct{ *Attempt }

// Rest appends to dst what was held back of a stream that has broken off.
func (a attemptFilter) Rest(dst []byte) []byte {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	return a.meter.Rest(dst)
}
