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
	"github.com/endpick/endpick/transport/internal/choose"
	"github.com/endpick/endpick/transport/internal/dialect"
)

// attempt is the result of sending a request to one endpoint.
type attempt struct {
	x *exchange
	// response is nil if there was none. failure says why another endpoint should
	// be tried; there may be a response as well.
	response *http.Response
	failure  error
	kind     choose.Kind // only meaningful with a failure
}

// discard drops a response that another attempt replaces.
func (a attempt) discard() {
	if a.response != nil {
		a.response.Body.Close()
	}
}

// send sends the request to the endpoint of the lease and waits for the first
// byte of the response. It always closes the lease, now or when the response
// ends.
func (tr *trip) send(lease endpick.Lease) (a attempt) {
	t, e := tr.t, lease.Endpoint()
	number := tr.Attempts
	tr.Attempts++
	ctx, cancel := context.WithCancelCause(tr.in.Context())
	x := &exchange{trip: tr, number: number, lease: lease, ctx: ctx, cancel: cancel}
	x.meter = tr.call.Meter(lease, t.now)
	a.x = x
	handed := false
	defer func() { // even if Base panics
		if !handed {
			x.end(tr.failure(a.kind))
		}
		if a.response == nil {
			x.watch.stop()
			cancel(context.Canceled)
		}
	}()
	c, _ := lease.Candidate()
	if tr.seen != nil {
		tr.seen.sent(e, c)
	}
	x.visit = t.desk.Health.Sent(e.ID, c.Ref)
	x.follow(tr.in.Context())
	x.watchFirstByte()

	response, err := tr.roundTrip(x)
	if err == nil {
		err = tr.awaitBody(response)
	}
	if err == nil && !x.watch.heard() {
		// The rest would never come, but there may be time to ask another endpoint.
		response.Body.Close()
		err = ErrTimeout
	}
	if err != nil {
		a.failure, a.kind = x.cause(err), choose.Broken
		if choose.IsDial(err) || errors.Is(err, ErrAddress) {
			a.kind = choose.Unreachable
		}
		if errors.Is(err, ErrAddress) {
			tr.warn(&UpstreamError{Endpoint: e.ID, Attempts: tr.Attempts, Err: err})
		}
		return a
	}
	if response.StatusCode >= http.StatusBadRequest {
		a.failure, a.kind = choose.StatusError(response.StatusCode), choose.KindOf(response.StatusCode)
	} else if tr.firstFails(response) {
		a.failure, a.kind = choose.ErrFirstEvent, choose.Erred
	}
	if t.config.EnableEndpointHeader {
		response.Header.Set(EndpointHeader, e.ID)
	}
	t.desk.Health.Heard(x.visit)
	if a.failure == nil {
		t.desk.Health.Served(x.visit, tr.Request.Stream, time.Since(x.watch.from))
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
func (tr *trip) roundTrip(x *exchange) (*http.Response, error) {
	repeatable := tr.Repeatable()
	own := !repeatable
	for again := 3; ; again-- {
		var c connection
		out, err := tr.outgoing(httptrace.WithClientTrace(x.ctx, c.trace()), x.lease.Endpoint())
		if err != nil {
			return nil, err
		}
		out.Close = own && out.Header.Get("Upgrade") == ""
		response, err := tr.t.wire.RoundTrip(out)
		if err == nil || again == 0 || x.ctx.Err() != nil || !c.stale(err) || !(repeatable || closedIdle(err)) {
			return response, err
		}
		own = true
	}
}

// outgoing builds the request for an endpoint.
func (tr *trip) outgoing(ctx context.Context, e *endpick.Endpoint) (*http.Request, error) {
	to, err := Target(e, tr.in.URL)
	if err != nil {
		return nil, err
	}
	if _, ours := tr.t.config.Base.(*base); !ours && to.Scheme == "h2c" {
		to.Scheme = "http"
	}
	out := tr.in.Clone(ctx)
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
	if tr.unpacked {
		out.Header.Del("Content-Encoding")
	}
	out.Body, out.GetBody, out.ContentLength = http.NoBody, nil, tr.payload.size
	if out.ContentLength > 0 {
		out.GetBody = tr.payload.open
		if out.Body, err = tr.payload.open(); err != nil {
			return nil, err
		}
	}
	if _, given := out.Header["X-Idempotency-Key"]; !given && tr.Repeatable() {
		// A nil value sends no header, but tells net/http that it may use a new
		// connection if the idle one turns out to be closed.
		out.Header["X-Idempotency-Key"] = nil
	}
	choose.SetHeader(out.Header, tr.call != nil && tr.call.Metered(), e)
	return out, nil
}

var errUnaskedUpgrade = errors.New("the server has switched to a protocol that it was not asked for")

// maxFirst bounds how much of a stream's first event is read to check it for an error.
const maxFirst = 8 << 10

// awaitBody waits for the first byte of the body and, if that begins an event, for the
// event's first line of data, so that another endpoint can be tried if this one fails
// before that.
func (tr *trip) awaitBody(response *http.Response) error {
	if response.StatusCode == http.StatusSwitchingProtocols {
		if !strings.EqualFold(response.Header.Get("Upgrade"), tr.in.Header.Get("Upgrade")) {
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
	cut := tr.judgesFirst(response) && tr.call.FirstIsCut(first[:n])
	for cut && err == nil && n < maxFirst {
		var k int
		first = slices.Grow(first[:n], 512)
		k, err = response.Body.Read(first[n:cap(first)])
		n, first = n+k, first[:n+k]
		cut = tr.call.FirstIsCut(first)
	}
	if cut && err != nil && err != io.EOF {
		n = 0 // a partial event is not a response
	}
	if err == io.EOF && n == 0 && tr.Request.Stream && response.StatusCode == http.StatusOK {
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
func (tr *trip) firstFails(response *http.Response) bool {
	b, ok := response.Body.(*begun)
	return ok && tr.judgesFirst(response) && tr.call.FirstFails(b.first)
}

// judgesFirst reports whether the response is a stream that can be parsed.
func (tr *trip) judgesFirst(response *http.Response) bool {
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
