package transport

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
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

	call *Call
	ctx  context.Context // of the client

	lease  endpick.Lease
	ref    endpick.EndpointRef
	meter  *dialect.Meter
	health health.Attempt
	sent   time.Time   // to this endpoint
	forget func() bool // stops watching the context, when nobody else would end the attempt
	wait   deadline

	stage   stage
	filters bool // the meter may hold back or remove what it is fed
	arrived bool // some of the response has
	empty   bool // nothing has arrived of what should be a stream
	unread  bool // nothing will be fed
	queued  bool // requests waited at the endpoint when it was chosen
	paid    bool // the next attempt is paid for, because this one was given up

	// Of asking for usage.
	asking    asking // before this attempt
	overasked bool   // it may be why the endpoint has refused the request
	without   bool   // the same endpoint is asked without

	// How it has ended, or what is known so far.
	http   int // status; 0: no response
	client int // the status that the client gets, if it is a higher one; 0: it is not
	result Result
	err    error // what went wrong
	status endpick.Status
	// Of a Transport.
	unended  bool             // the call goes on, perhaps at another endpoint
	endedAt  time.Time        // zero: not yet
	observed *ObservedAttempt // nil: nobody observes
}

// A stage is how far an attempt has come:
//
//	          the client has  a failure makes it             its end makes it
//	waiting   nothing         failed; whose fault it is,     over: completed
//	                          shows later
//	serving   the beginning   over: failed, and counts       over: completed
//	failed    nothing         –                              over, when Again was asked
//	over      what there was  –                              –
//	astray    what is fed     –                              –
//
// If the client leaves while it is waiting or serving, it is over: canceled, or completed if the
// response was whole. What fails while it is waiting may be repeated elsewhere: a Transport holds what
// the client would not miss until then (hold.go).
// An attempt that is astray is at an endpoint that takes no requests: its response is filtered, but
// does not count.
type stage uint8

const (
	waiting stage = iota
	serving
	failed
	over
	astray
)

func (c *Call) begin(ctx context.Context, lease endpick.Lease) *Attempt {
	candidate, _ := lease.Candidate()
	a := &Attempt{call: c, ctx: ctx, Fallbacks: c.alternatives(lease.Endpoint().ID), ref: candidate.Ref}
	a.askForUsage(c.latest)
	c.attempts++
	c.latest = a
	a.open(lease)
	if c.attempts == 1 && c.chosen != nil {
		close(c.chosen)
	}
	return a
}

// open takes over a lease. The previous one has ended.
func (a *Attempt) open(lease endpick.Lease) {
	c, d := a.call, a.call.d
	candidate, _ := lease.Candidate()
	a.lease, a.ref = lease, candidate.Ref
	a.sent, a.stage = d.now(), waiting
	a.meter = c.parsed.Meter(lease, d.now)
	a.queued = candidate.Reported&endpick.WaitingSignal != 0 && candidate.Waiting >= 1
	c.sentTo(a, lease.Endpoint(), candidate)
	a.health = d.health.Sent(lease.Endpoint().ID, candidate.Ref)
	a.startWaiting()
	a.forget = context.AfterFunc(a.ctx, func() {
		defer d.guard(c.in, "Attempt")
		c.mu.Lock()
		defer c.unlock()
		a.leave()
	})
}

// Endpoint returns where the request goes, or went.
func (a *Attempt) Endpoint() *endpick.Endpoint { return a.Lease().Endpoint() }

// Lease returns the request's lease at the endpoint. The attempt closes it.
func (a *Attempt) Lease() endpick.Lease {
	a.call.mu.Lock()
	defer a.call.unlock()
	return a.lease
}

// SetHeader sets in the header of the request what the endpoint needs beside
// the body: that the body has no coding any more, that a response which is metered must
// come without one, and its data-parallel rank, if it has one. An upgrade to another version of HTTP is
// dropped.
func (a *Attempt) SetHeader(h http.Header) { a.call.setHeader(h, a.Endpoint()) }

func (c *Call) setHeader(h http.Header, e *endpick.Endpoint) {
	if c.unpacked {
		h.Del("Content-Encoding")
	}
	if c.metered {
		h.Set("Accept-Encoding", "identity")
	}
	h.Del("Http2-Settings")
	switch upgrade := upgradeOf(h); {
	case upgrade != "":
		h.Set("Upgrade", upgrade)
	case h["Upgrade"] != nil:
		h.Del("Upgrade")
		h.Del("Connection")
	}
	h.Del("X-Data-Parallel-Rank") // the client's
	if e.Ranked {
		h.Set("X-Data-Parallel-Rank", strconv.Itoa(e.Rank))
	}
}

// ServedBy reports that a proxy has sent the request to another endpoint after this one
// failed it. Call it before Header, or after one that has reported why the first has failed; it
// moves the attempt to the other endpoint. The error is an [endpick.NoEndpointError] if the
// endpoint is unknown or takes no requests. Then the attempt has ended, but the response must
// still be fed, because it may contain what the client has not asked for.
func (a *Attempt) ServedBy(id string) error {
	c := a.call
	c.mu.Lock()
	defer c.unlock()
	if id == a.lease.Endpoint().ID || a != c.latest { // or the request is at another one already
		return nil
	}
	_ = a.fail(Erred, errors.New("a proxy has sent the request to another endpoint"))
	if a.stage != failed { // the client has left, or has seen a beginning
		return nil
	}
	lease, err := c.adopt(id)
	if err != nil {
		a.stage = astray
		a.meter = c.parsed.Meter(a.lease, c.d.now) // to filter the response as usual
		return err
	}
	a.open(lease)
	return nil
}

// Header takes the header of the response, and the part of its body that has arrived,
// which may be empty and must be fed too. The error, an [UpstreamError], says
// why the endpoint has failed the request: because of its status, or of an event in its
// stream. The attempt has then ended, but the response may still be passed on.
//
// Header removes the length from the header if what is passed on may be shorter than
// what is fed.
func (a *Attempt) Header(status int, header http.Header, first []byte) error {
	c := a.call
	c.mu.Lock()
	defer c.unlock()
	switch {
	case a.stage == astray:
		a.readHeader(status, header)
		return nil
	case a.stage != waiting:
		return nil
	case a.wait.late: // the rest would never come, but there may be time to ask another endpoint
		return a.fail(Broken, ErrTimeout)
	}
	a.http = status
	c.d.answered(a.lease.Endpoint(), true)
	a.wait.pause()
	back := a.ownLocation(header)
	if bytes.HasPrefix(first, []byte(`{"error":"Unexpected endpoint or method`)) {
		status = http.StatusNotFound // LM Studio says 200
	}
	switch {
	case status/100 == 3 && back: // it takes requests in another way only, as with TLS
		return a.refused(status, header, first, Erred, statusError(status))
	case status >= http.StatusBadRequest:
		a.overasked = a.overasks(status, first)
		return a.refused(status, header, first, resultOf(status), statusError(status))
	case readable(header) && c.parsed.Fails(dialect.ContentType(header), first):
		return a.refused(status, header, first, Erred, errFirstEvent)
	}
	a.arrives()
	a.asked()
	a.health.Ended(Served)
	a.readHeader(status, header)
	a.stage, a.result, a.empty = serving, Served, c.Request.Stream && status == http.StatusOK && !a.unread
	c.suspects.Served()
	if a := c.alias; a != nil && a.key != 0 {
		c.d.conversations.put(a.key, c.story.model)
	}
	if a.save() {
		a.meter.HoldFaults()
	} else {
		c.forget()
	}
	return nil
}

// arrives records that something has come of a response that may still be held.
func (a *Attempt) arrives() {
	if !a.arrived {
		a.arrived = true
		a.health.Waited(a.call.Request.Stream, a.call.d.now().Sub(a.sent))
	}
	a.health.Heard()
}

// readHeader passes a header to the meter, unless the meter can't read what follows.
func (a *Attempt) readHeader(status int, header http.Header) {
	if readable(header) {
		a.filters = a.meter.Header(status, header)
	}
}

// readable reports whether a body has no coding.
func readable(header http.Header) bool {
	coding := header.Get("Content-Encoding")
	return coding == "" || strings.EqualFold(coding, "identity")
}

// Unread reports that the body of the response will not be fed, so that End considers
// it complete. Otherwise a stream that ends without a byte has failed. Called before Body, usage is
// not asked for unless the client does: nobody would remove it from the response.
func (a *Attempt) Unread() {
	c := a.call
	c.mu.Lock()
	defer c.unlock()
	a.unread, a.empty = true, false
	if a.stage == waiting {
		c.unasking, c.body = true, c.parsed.Body(false)
	}
}

// Feed takes the next piece of the response's body, and appends to dst what is to be
// passed on: whole events of a stream, everything of other responses.
func (a *Attempt) Feed(dst, piece []byte) []byte {
	a.call.mu.Lock()
	defer a.call.unlock()
	switch {
	case a.stage == astray:
		return a.meter.Feed(dst, piece)
	case a.stage != serving || len(piece) == 0:
		return append(dst, piece...)
	}
	a.empty = false
	a.health.Heard()
	a.lease.Tokens(0) // keeps the lease alive, even if nothing is counted
	dst = a.meter.Feed(dst, piece)
	if stall := a.call.d.config.StallTimeout; a.wait.limit > stall && !a.meter.Seen().FirstToken.IsZero() {
		a.wait.set(stall, false)
	}
	return dst
}

// End reports that the response has ended cleanly, and appends to dst what was held
// back. If the stream was incomplete or empty, the error matches io.ErrUnexpectedEOF
// and the endpoint has failed; dst then ends in an error event of the API.
func (a *Attempt) End(dst []byte) ([]byte, error) {
	dst, err := a.ended(dst)
	if err != nil {
		dst = a.broken(dst)
	}
	return dst, err
}

// ended is End without the error event.
func (a *Attempt) ended(dst []byte) ([]byte, error) {
	a.call.mu.Lock()
	defer a.call.unlock()
	var cut error
	if a.stage == astray || a.stage == serving {
		if dst, cut = a.meter.End(dst); cut == nil && a.empty {
			cut = io.ErrUnexpectedEOF // an empty stream is no response
		}
	}
	switch {
	case a.stage == astray:
		return dst, cut
	case cut != nil:
		return dst, a.fail(Broken, cut)
	}
	a.end(endpick.Completed)
	return dst, nil
}

// broken appends to dst what was held back of a response that has broken off, and an error in the
// form of its API, if it is a stream. Nothing of that is for a client that has left.
func (a *Attempt) broken(dst []byte) []byte {
	a.call.mu.Lock()
	defer a.call.unlock()
	if a.ctx.Err() != nil {
		return dst
	}
	return a.meter.Break(dst, problemOf(a.err))
}

// problemOf is what a client learns of a stream that has broken off.
func problemOf(err error) dialect.Problem {
	if errors.Is(err, ErrTimeout) {
		return dialect.Problem{Status: http.StatusGatewayTimeout, Message: messages[http.StatusGatewayTimeout]}
	}
	return dialect.Problem{Status: http.StatusBadGateway, Message: "the model server failed before the end of its answer"}
}

// Fail reports that there was no response, or that it broke off, and returns err as an
// [UpstreamError]. An error of package net shows that the endpoint could not
// be reached. If the context of Route is done, the client has left, and the endpoint is
// not blamed.
func (a *Attempt) Fail(err error) error {
	a.call.mu.Lock()
	defer a.call.unlock()
	switch {
	case a.wait.late: // whatever the connection makes of it
		err = ErrTimeout
	case host.IsDial(err), errors.Is(err, ErrAddress):
		return a.fail(Unreachable, err)
	}
	return a.fail(Broken, err)
}

// fail ends the attempt as a failure, unless the client has left.
func (a *Attempt) fail(r Result, err error) error {
	switch {
	case a.stage >= failed:
		a.err = cmp.Or(a.err, err)
	case a.ctx.Err() != nil:
		a.err = err
		a.end(endpick.Canceled)
	case a.stage == serving: // no other endpoint can be asked, unless for the rest
		a.died(r, err)
		a.err = err
		a.end(endpick.Failed)
	default:
		a.died(r, err)
		a.result, a.err = r, err
		a.call.d.answered(a.lease.Endpoint(), r != Unreachable)
		status := endpick.Refused
		// A refusal is the client's fault, unless another endpoint takes the request; being full is nobody's.
		if r != Refused && r != Full {
			status = endpick.Failed
			a.call.suspects.Add(a.health.Because(err), r)
		}
		a.end(status)
		a.stage = failed
	}
	return &UpstreamError{Endpoint: a.lease.Endpoint().ID, Attempts: a.call.attempts, Err: err}
}

// died counts an endpoint that lived, and has broken off while it had the request.
func (a *Attempt) died(r Result, err error) {
	if r == Broken && !errors.Is(err, ErrTimeout) && !a.health.Unknown() {
		a.call.deaths++
	}
}

// leave ends the attempt because nobody wants more of it: as canceled, unless the client may have
// received everything.
func (a *Attempt) leave() {
	if a.meter.Whole() {
		a.end(endpick.Completed)
	} else {
		a.end(endpick.Canceled)
	}
}

// end closes the lease, once.
func (a *Attempt) end(status endpick.Status) {
	if a.stage >= failed {
		return
	}
	begun := a.stage == serving
	a.stage = over
	c := a.call
	a.forget()
	if c.in == nil {
		a.wait.stop() // a Transport still limits the body of a failure
	} else {
		a.endedAt = c.d.now()
	}
	o := a.meter.Outcome(status)
	if o.Status == endpick.Failed { // as the response itself says
		status = endpick.Failed
	}
	a.status = status
	switch {
	case status == endpick.Canceled:
		a.result = Canceled
	case status == endpick.Failed && begun:
		a.result = Broken
		a.err = cmp.Or(a.err, errInStream)
	}
	a.unended = begun && status == endpick.Failed && c.saved > 0
	if answers := c.story.answer == a && c.in != nil; answers && !a.unended {
		c.end(a, status, nil) // its tenant is charged before the next request is taken
	}
	a.lease.Done(o)
	if c.t != nil {
		c.t.queue.ended(a.lease.Endpoint().MaxInFlight > 0)
	}
	if a.result == Canceled || a.wait.late {
		a.health.Ended(Canceled)
	}
	if a.result == Broken && begun {
		a.health.Because(a.err).Ended(Broken)
	}
}

// errInStream is the error of a response that is complete, and reports an error in an
// event after the first.
var errInStream = errors.New("transport: the response ends in an error event")
