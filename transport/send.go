package transport

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/host"
)

// answer is the result of sending a request to one endpoint.
type answer struct {
	x *exchange
	// response is nil if there was none. failure says why another endpoint should
	// be tried; there may be a response as well.
	response *http.Response
	failure  error
	result   Result // with a failure: its kind
}

// discard drops a response that another one replaces.
func (a answer) discard() {
	if a.response != nil {
		a.response.Body.Close()
	}
}

// send sends the request to the endpoint of the lease and waits for the first
// byte of the response. It always closes the lease, now or when the response
// ends.
func (rt *roundTrip) send(lease endpick.Lease) (a answer) {
	t, e := rt.t, lease.Endpoint()
	number := rt.attempts
	rt.attempts++
	ctx, cancel := context.WithCancelCause(rt.in.Context())
	x := &exchange{rt: rt, number: number, lease: lease, ctx: ctx, cancel: cancel}
	x.meter = rt.call.Meter(lease, t.d.now)
	a.x = x
	handed := false
	defer func() { // even if Base panics
		if !handed {
			x.end(rt.failure(a.result))
		}
		if a.response == nil {
			x.watch.stop()
			cancel(context.Canceled)
		}
	}()
	c, _ := lease.Candidate()
	if rt.observer != nil {
		rt.observer.sent(e, c)
	}
	x.health = t.d.health.Sent(e.ID, c.Ref)
	x.follow(rt.in.Context())
	x.watchFirstByte()

	response, err := rt.roundTrip(x)
	if err == nil {
		err = rt.awaitBody(response)
	}
	if err == nil && !x.watch.heard() {
		// The rest would never come, but there may be time to ask another endpoint.
		response.Body.Close()
		err = ErrTimeout
	}
	if err != nil {
		a.failure, a.result = x.cause(err), Broken
		if host.IsDial(err) || errors.Is(err, ErrAddress) {
			a.result = Unreachable
		}
		if errors.Is(err, ErrAddress) {
			rt.warn(&UpstreamError{Endpoint: e.ID, Attempts: rt.attempts, Err: err})
		}
		return a
	}
	if response.StatusCode >= http.StatusBadRequest {
		a.failure, a.result = statusError(response.StatusCode), resultOf(response.StatusCode)
	} else if rt.firstFails(response) {
		a.failure, a.result = errFirstEvent, Erred
	}
	if t.config.EnableEndpointHeader {
		response.Header.Set(EndpointHeader, e.ID)
	}
	t.d.health.Heard(x.health)
	if a.failure == nil {
		t.d.health.Served(x.health, rt.request.Stream, time.Since(x.watch.from))
	}
	x.http = response.StatusCode
	empty := endsAtOnce(response)
	x.pass(response)
	a.response = response
	if empty && a.failure == nil {
		// The client has the whole response with the header, and may leave before anybody reads.
		_, _ = response.Body.Read(make([]byte, 1))
	}
	// From an endpoint that has failed, only the message is passed on.
	handed = a.failure == nil
	return a
}

// roundTrip sends the request and returns the header of the response. If the
// server had closed the idle connection, it sends the request again on a new
// one, as part of the same attempt. What must not be sent twice never uses an
// idle connection.
func (rt *roundTrip) roundTrip(x *exchange) (*http.Response, error) {
	repeatable := rt.repeatable()
	own := !repeatable
	for again := 3; ; again-- {
		var c connection
		out, err := rt.outgoing(httptrace.WithClientTrace(x.ctx, c.trace()), x.lease.Endpoint())
		if err != nil {
			return nil, err
		}
		out.Close = own && out.Header.Get("Upgrade") == ""
		response, err := rt.t.wire.RoundTrip(out)
		if err == nil || again == 0 || x.ctx.Err() != nil || !c.stale(err) || !(repeatable || closedIdle(err)) {
			return response, err
		}
		own = true
	}
}

// outgoing builds the request for an endpoint.
func (rt *roundTrip) outgoing(ctx context.Context, e *endpick.Endpoint) (*http.Request, error) {
	to, err := Target(e, rt.in.URL)
	if err != nil {
		return nil, err
	}
	if _, ours := rt.t.config.Base.(*base); !ours && to.Scheme == "h2c" {
		to.Scheme = "http"
	}
	out := rt.in.Clone(ctx)
	if u := to.User; u != nil {
		// The client's credentials are for the gateway, these are for the server.
		password, _ := u.Password()
		out.SetBasicAuth(u.Username(), password)
		to.User = nil
	}
	out.URL, out.Host, out.RequestURI = to, "", ""
	out.TransferEncoding, out.Trailer, out.Close = nil, nil, false
	out.Header.Del("Expect") // the body has been read already
	out.Header.Del("Content-Length")
	if rt.unpacked {
		out.Header.Del("Content-Encoding")
	}
	out.Body, out.GetBody, out.ContentLength = http.NoBody, nil, rt.payload.size
	if out.ContentLength > 0 {
		out.GetBody = rt.payload.open
		if out.Body, err = rt.payload.open(); err != nil {
			return nil, err
		}
	}
	if _, given := out.Header["X-Idempotency-Key"]; !given && rt.repeatable() {
		// A nil value sends no header, but tells net/http that it may use a new
		// connection if the idle one turns out to be closed.
		out.Header["X-Idempotency-Key"] = nil
	}
	setHeader(out.Header, rt.call != nil && rt.call.Metered(), e)
	return out, nil
}

var errUnaskedUpgrade = errors.New("the server has switched to a protocol that it was not asked for")

// maxFirst bounds how much of a stream's first event is read to check it for an error.
const maxFirst = 8 << 10

// awaitBody waits for the first byte of the body and, if that begins an event, for the
// event's first line of data, so that another endpoint can be tried if this one fails
// before that.
func (rt *roundTrip) awaitBody(response *http.Response) error {
	if response.StatusCode == http.StatusSwitchingProtocols {
		if !strings.EqualFold(response.Header.Get("Upgrade"), rt.in.Header.Get("Upgrade")) {
			response.Body.Close()
			return errUnaskedUpgrade
		}
		return nil
	}
	first := make([]byte, 512)
	n := 0
	var err error
	for n == 0 && err == nil {
		n, err = response.Body.Read(first)
	}
	cut := rt.readsFirst(response) && rt.call.FirstIsCut(first[:n])
	for cut && err == nil && n < maxFirst {
		var k int
		first = slices.Grow(first[:n], 512)
		k, err = response.Body.Read(first[n:cap(first)])
		n, first = n+k, first[:n+k]
		cut = rt.call.FirstIsCut(first)
	}
	if cut && err != nil && err != io.EOF {
		n = 0 // a partial event is not a response
	}
	if err == io.EOF && n == 0 && rt.request.Stream && response.StatusCode == http.StatusOK {
		err = io.ErrUnexpectedEOF // an empty stream is no response
	}
	if n == 0 && err != io.EOF {
		response.Body.Close()
		return err
	}
	response.Body = &begun{first: first[:n], err: err, rest: response.Body}
	return nil
}

// endsAtOnce reports whether a response has no body, such as one to HEAD.
func endsAtOnce(response *http.Response) bool {
	b, ok := response.Body.(*begun)
	return ok && len(b.first) == 0 && b.err == io.EOF
}

// firstFails reports whether a stream begins with an error, which some engines
// send as an event under status 200.
func (rt *roundTrip) firstFails(response *http.Response) bool {
	b, ok := response.Body.(*begun)
	return ok && rt.readsFirst(response) && rt.call.FirstFails(b.first)
}

// readsFirst reports whether the response is a stream that can be parsed.
func (rt *roundTrip) readsFirst(response *http.Response) bool {
	return contentType(response) == dialect.EventStream && response.Header.Get("Content-Encoding") == ""
}

func contentType(response *http.Response) string {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return kind
}

// begun is a body whose first bytes have been read.
type begun struct {
	first []byte
	err   error // to be returned after them
	rest  io.ReadCloser
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		if b.first = b.first[n:]; len(b.first) > 0 {
			return n, nil
		}
		return n, b.err // together, for readers that stop when they have what they need
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.rest.Read(p)
}

func (b *begun) Close() error { return b.rest.Close() }
