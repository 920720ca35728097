package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/endpick/endpick"
)

// attempt is what has come of sending a request to one endpoint.
type attempt struct {
	x *exchange
	// response is nil if there was none. failure says why another endpoint
	// should be tried; there may be a response as well.
	response *http.Response
	failure  error
	// unsent says that the endpoint has not seen the request.
	unsent bool
}

// statusError is the failure of an endpoint that answered 429, 502, 503 or 504.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("answered %d %s", int(e), http.StatusText(int(e)))
}

// discard gives up a response that another attempt replaces.
func (a attempt) discard() {
	if a.response != nil {
		a.response.Body.Close()
	}
}

// send sends the request to the endpoint of the lease and waits for the first
// byte of the response. Whatever happens, the lease is closed, here or by the
// end of the response.
func (tr *trip) send(lease endpick.Lease) (a attempt) {
	t, id := tr.t, lease.Endpoint().ID
	tr.attempts++
	ctx, cancel := context.WithCancelCause(tr.in.Context())
	a.x = &exchange{trip: tr, lease: lease, cancel: cancel}
	handed := false
	defer func() { // also if Base panics
		if !handed {
			a.x.end(tr.failure())
		}
		if a.response == nil {
			cancel(context.Canceled)
		}
	}()
	a.x.watch(tr.in.Context())

	out, err := tr.outgoing(ctx, lease.Endpoint())
	if err != nil {
		a.failure, a.unsent = err, true
		t.health.failed(id, t.config.Clock())
		tr.warn(&UpstreamError{Endpoint: id, Attempts: tr.attempts, Err: err})
		return a
	}
	t.health.sent(id, t.config.Clock())
	timeout := t.config.ResponseTimeout
	if tr.call.stream {
		timeout = t.config.HeaderTimeout
	}
	timer := time.AfterFunc(timeout, func() { cancel(ErrHeaderTimeout) })
	response, err := t.config.Base.RoundTrip(out)
	if !timer.Stop() && err == nil && context.Cause(ctx) == ErrHeaderTimeout {
		response.Body.Close()
		err = ErrHeaderTimeout
	}
	if err == nil {
		err = tr.awaitBody(response)
	}
	if err != nil {
		a.failure, a.unsent = cause(ctx, err), isDial(err)
		if tr.in.Context().Err() == nil {
			t.health.failed(id, t.config.Clock())
		}
		return a
	}

	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		t.health.failed(id, t.config.Clock())
		a.failure = statusError(response.StatusCode)
	case http.StatusTooManyRequests: // this server is full, another may not be
		a.failure = statusError(response.StatusCode)
		t.health.answered(id)
	default:
		t.health.answered(id)
	}
	if t.config.EnableEndpointHeader {
		response.Header.Set(EndpointHeader, id)
	}
	a.x.http = response.StatusCode
	a.x.meter(response)
	a.response = response
	if response.StatusCode >= http.StatusBadRequest {
		return a // the endpoint is done with it; only the message is to be passed on
	}
	handed = true
	return a
}

// isDial reports whether a connection could not even be made.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// cause tells a timeout of ours from the rest.
func cause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrHeaderTimeout) {
		return ErrHeaderTimeout
	}
	return err
}

// outgoing makes the request that an endpoint gets.
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
		// The client's own are for the gateway, these for the server.
		password, _ := u.Password()
		out.SetBasicAuth(u.Username(), password)
		to.User = nil
	}
	out.URL, out.Host, out.RequestURI = to, "", ""
	out.TransferEncoding, out.Trailer, out.Close = nil, nil, false
	out.Header.Del("Expect") // the body is here already
	out.Header.Del("Content-Length")
	out.Body, out.GetBody, out.ContentLength = http.NoBody, nil, int64(len(tr.payload.bytes))
	if out.ContentLength > 0 {
		out.GetBody = tr.payload.open
		if out.Body, err = tr.payload.open(); err != nil {
			return nil, err
		}
	}
	if _, given := out.Header["X-Idempotency-Key"]; !given && tr.repeatable() {
		// Sends no header; it tells net/http that it may use a new connection
		// if the idle one that it took turns out to be closed.
		out.Header["X-Idempotency-Key"] = nil
	}
	if tr.metered {
		out.Header.Set("Accept-Encoding", "identity") // what is metered is read as text
	}
	if e.Ranked {
		out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(e.Rank))
	}
	return out, nil
}

// awaitBody waits for the first byte of the body, so that an endpoint which
// dies before that can be replaced.
func (tr *trip) awaitBody(response *http.Response) error {
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	first := make([]byte, 512)
	n := 0
	var err error
	for n == 0 && err == nil {
		n, err = response.Body.Read(first)
	}
	if err == io.EOF && n == 0 && tr.call.stream && response.StatusCode == http.StatusOK {
		err = io.ErrUnexpectedEOF // a stream of nothing is no response
	}
	if n == 0 && err != io.EOF {
		response.Body.Close()
		return err
	}
	response.Body = &begun{first: first[:n], err: err, rest: response.Body}
	return nil
}

// begun is a body whose first bytes have been read.
type begun struct {
	first []byte
	err   error // after them
	rest  io.ReadCloser
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		if b.first = b.first[n:]; len(b.first) > 0 {
			return n, nil
		}
		return n, b.err // together, for readers that stop at what they need
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.rest.Read(p)
}

func (b *begun) Close() error { return b.rest.Close() }
