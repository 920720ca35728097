package transport

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
)

// RoundTrip sends the request to an endpoint and returns its response. The error is
// that of [endpick.Router.Route], the queue's ([queue.Error]), a [BodyError], [ErrRead],
// [ErrCoding], [ErrUnknownPath], an [UpstreamError], an [endpick.PanicError] of a callback,
// or that of a context that is done; [StatusOf] turns them into statuses. If the endpoint
// breaks off later, reading the body ends in an UpstreamError.
func (t *Transport) RoundTrip(in *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	path, err := t.d.reader.Allow(in.Method, in.URL.EscapedPath())
	if list, ok := dialect.ListOf(in.Method, path); ok {
		return t.models(in, list, "")
	}
	if model, ok := dialect.ModelOf(in.Method, path); ok {
		list, _ := dialect.ListOf(in.Method, "/v1/models")
		return t.models(in, list, model)
	}
	c := &Call{d: t.d, t: t, in: in, single: t.config.MaxAttempts == 1, story: story{start: t.d.now()}}
	t.d.budget.Request(c.story.start)
	if err == nil {
		err = t.read(c, path)
	} else if in.Body != nil {
		in.Body.Close()
	}
	switch {
	case err != nil:
		c.fail(nil, err)
		return nil, err
	case t.config.KeepAlive > 0 && c.parsed.HasEvents() && upgradeOf(in.Header) == "":
		return t.askMeanwhile(c)
	}
	return t.ask(c)
}

// ask sends a request that was read to endpoints, until one has answered it or no other is to be
// asked.
func (t *Transport) ask(c *Call) (*http.Response, error) {
	defer c.giveUp()
	payload := newPayload(nil)
	defer func() { payload.release() }()
	var best reply
	defer c.abort()
	for {
		a, err := t.route(c)
		switch {
		case err != nil && best.a == nil:
			c.fail(nil, err)
			return nil, err
		case err != nil:
			return t.answer(c, best)
		case best.a != nil:
			t.retries.Add(1)
			if best.a.result != Refused {
				best.discard()
			}
		}
		payload.release()
		payload = newPayload(c.Body())
		r := t.send(c, a, payload)
		more := r.err != nil && a.Again()
		if best.a != nil && best.a.result == Refused && !best.a.overasked && r.err != nil && r.a.result != Refused {
			r.discard() // the client should see the first refusal
		} else {
			best.discard()
			best = r
		}
		if !more {
			return t.answer(c, best)
		}
	}
}

// reply is what has come of a request: a response, an error, or a response that is one.
type reply struct {
	a        *Attempt // at one endpoint; nil: at all that were asked
	response *http.Response
	err      error
}

// discard drops a response that another one replaces.
func (r reply) discard() {
	if r.response != nil {
		r.response.Body.Close()
	}
}

// route is Call.Route, but the request may wait in the queue.
func (t *Transport) route(c *Call) (*Attempt, error) {
	c.mu.Lock()
	c.failLatest()
	c.unlock()
	lease, err := t.queue.lease(c)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.unlock()
	return c.begin(c.in.Context(), lease), nil
}

// send sends the request to the endpoint of an attempt and waits for the first
// byte of the response.
func (t *Transport) send(c *Call, a *Attempt, p *payload) reply {
	response, err := t.exchange(c, a, p)
	first, whole := []byte(nil), false
	if err == nil {
		first, whole, err = a.awaitBody(response)
	}
	if err != nil {
		failure := a.Fail(err)
		if errors.Is(err, ErrAddress) {
			t.d.warn(c.in, failure)
		}
		a.release()
		return reply{a: a, err: failure}
	}
	var open func(io.Reader) (io.Reader, error)
	if h := response.Header; c.metered && response.StatusCode < http.StatusBadRequest && !readable(h) {
		if open = decoders(nil).of(h.Get("Content-Encoding")); open != nil { // otherwise its tokens are unknown
			h.Del("Content-Encoding")
			h.Del("Content-Length")
			response.Uncompressed, first = true, nil
		}
	}
	failure := a.Header(response.StatusCode, response.Header, first)
	if errors.Is(failure, ErrTimeout) {
		response.Body.Close()
		a.release()
		return reply{a: a, err: failure}
	}
	if failure != nil && a.result == Full && response.StatusCode < http.StatusBadRequest { // it says so in an event, which clients don't ask again for
		response.Body.Close()
		a.client = http.StatusServiceUnavailable
		body := dialect.Problem{Status: http.StatusServiceUnavailable, Message: "all model servers are full"}.Body(c.in.URL.Path)
		response = respond(c.in, http.StatusServiceUnavailable, http.Header{
			"Content-Type": {"application/json"}, "Retry-After": response.Header["Retry-After"],
		}, body)
	}
	if t.config.EnableEndpointHeader {
		response.Header.Set(EndpointHeader, a.lease.Endpoint().ID)
	}
	if c.metered && failure == nil && response.Header.Get("Content-Length") == "" {
		response.ContentLength = -1
	}
	a.pass(response, open)
	if whole && failure == nil {
		// The client has the whole response with the header, and may leave before anybody reads.
		_, _ = response.Body.Read(make([]byte, 1))
	}
	return reply{a, response, failure}
}

// exchange sends the request and returns the header of the response. If the
// server had closed the idle connection, it sends the request again on a new
// one, as part of the same attempt. What must not be sent twice never uses an
// idle connection.
func (t *Transport) exchange(c *Call, a *Attempt, p *payload) (*http.Response, error) {
	own := !c.repeatable()
	for again := 3; ; again-- {
		var conn connection
		out, err := t.outgoing(httptrace.WithClientTrace(a.wait.ctx, conn.trace()), c, a.lease.Endpoint(), p)
		if err != nil {
			return nil, err
		}
		out.Close = own && out.Header.Get("Upgrade") == ""
		response, err := t.over(out)
		if err == nil || again == 0 || a.wait.ctx.Err() != nil || !conn.stale(err) || !(c.repeatable() || closedIdle(err)) {
			return response, err
		}
		own = true
	}
}

// over sends a request over the wire. Clients read any three digits as a status, and servers panic when
// they are to write less than 100; what comes after a 101 is not ended by any context.
func (t *Transport) over(out *http.Request) (*http.Response, error) {
	response, err := t.wire.RoundTrip(out)
	if err != nil || response == nil {
		return nil, cmp.Or(err, errors.New("transport.Config.Base has returned neither a response nor an error"))
	}
	if response.Header == nil { // a host's Base may leave out both
		response.Header = http.Header{}
	}
	response.Body = cmp.Or[io.ReadCloser](response.Body, http.NoBody)
	if response.StatusCode <= http.StatusSwitchingProtocols {
		asked := out.Header.Get("Upgrade")
		if _, open := response.Body.(io.Writer); !open || asked == "" || !strings.EqualFold(asked, response.Header.Get("Upgrade")) {
			response.Body.Close()
			return nil, errors.New("the server has answered with a status below 100, or a protocol that it was not asked for")
		}
	}
	return response, nil
}

func (t *Transport) outgoing(ctx context.Context, c *Call, e *endpick.Endpoint, p *payload) (*http.Request, error) {
	from := c.in.URL
	if c.query != "" {
		own := *from
		from, own.RawQuery = &own, c.query
	}
	to, err := Target(e, from)
	if err != nil {
		return nil, err
	}
	if _, ours := t.config.Base.(*base); !ours && to.Scheme == "h2c" {
		to.Scheme = "http"
	}
	out := c.in.Clone(ctx)
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
	out.Body, out.GetBody, out.ContentLength = http.NoBody, nil, p.size
	if out.ContentLength > 0 {
		out.GetBody = p.open
		if out.Body, err = p.open(); err != nil {
			return nil, err
		}
	}
	if _, given := out.Header["X-Idempotency-Key"]; !given && c.repeatable() {
		// A nil value sends no header, but tells net/http that it may use a new
		// connection if the idle one turns out to be closed.
		out.Header["X-Idempotency-Key"] = nil
	}
	c.setHeader(out.Header, e)
	return out, nil
}

// answer returns what an attempt has produced: a response, if there is one, even if it says that
// the endpoint failed.
func (t *Transport) answer(c *Call, r reply) (*http.Response, error) {
	if r.response != nil {
		r.response.Request = c.in // the copy holds the body
		c.answer(r.a)
		return r.response, nil
	}
	err := cmp.Or(c.in.Context().Err(), r.err)
	c.fail(r.a, err)
	return nil, err
}
