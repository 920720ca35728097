package extproc

import (
	"bytes"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// conversation is the stream of messages about one request.
type conversation struct {
	server *Server
	stream extprocv3.ExternalProcessor_ProcessServer

	begun bool
	// How the proxy sends bodies.
	requestMode, responseMode filterv3.ProcessingMode_BodySendMode

	// Of the request, until an endpoint is picked.
	header   http.Header
	pseudo   map[string]string
	subset   *structpb.Value // nil: any endpoint
	body     []byte
	headed   bool // its header has arrived
	owed     bool // and waits for an answer
	picked   bool
	endless  bool // an upgrade request: its body never ends, so nothing waits for it
	answered bool // the header of its response has arrived
	upgraded bool // it has left HTTP: bodies are the data of both sides

	call    *transport.Call     // nil: not read yet
	attempt *transport.Attempt  // nil: not picked yet
	named   []*endpick.Endpoint // to the proxy, in order
	beat    *time.Timer         // keeps the lease alive
	out     []byte              // what is passed on of a piece; reused
	unsaid  *structpb.Struct    // names the servers, in the next answer
}

const (
	none       = filterv3.ProcessingMode_NONE
	pieces     = filterv3.ProcessingMode_STREAMED
	buffered   = filterv3.ProcessingMode_BUFFERED
	partial    = filterv3.ProcessingMode_BUFFERED_PARTIAL
	fullDuplex = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// begin records how the proxy sends bodies.
func (c *conversation) begin(p *extprocv3.ProtocolConfiguration) {
	c.begun = true
	switch {
	case p != nil:
		c.requestMode, c.responseMode = p.GetRequestBodyMode(), p.GetResponseBodyMode()
	case c.server.config.Buffered:
		c.requestMode, c.responseMode = buffered, buffered
	default:
		c.requestMode, c.responseMode = fullDuplex, fullDuplex
	}
}

// take handles a message and answers it; done: nothing follows.
func (c *conversation) take(in *extprocv3.ProcessingRequest) (done bool, err error) {
	if !c.begun {
		c.begin(in.GetProtocolConfig())
	}
	if hint := metadataOf(in.GetMetadataContext(), subsetNamespace, subsetKey); hint != nil {
		c.subset = hint
	}
	switch m := in.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return c.requestHeaders(m.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return c.requestBody(m.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return c.requestTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		said := func(key string) string {
			return metadataOf(in.GetMetadataContext(), balancerNamespace, key).GetStringValue()
		}
		return false, c.responseHeaders(m.ResponseHeaders, said(servedKey), said(answersKey))
	case *extprocv3.ProcessingRequest_ResponseBody:
		return false, c.responseBody(m.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return false, c.responseTrailers()
	}
	return false, status.Error(codes.InvalidArgument, "extproc: a message of no known kind")
}

func (c *conversation) requestHeaders(m *extprocv3.HttpHeaders) (done bool, err error) {
	if c.headed || c.picked {
		return false, status.Error(codes.InvalidArgument, "extproc: a second request on one stream")
	}
	c.headed = true
	c.header, c.pseudo = headerOf(m.GetHeaders())
	c.endless = upgrades(c.header, c.pseudo)
	switch {
	case m.GetEndOfStream(), c.requestMode == none, c.requestMode == pieces, c.endless: // there is no body, or none that ends
		to, failed := c.pick()
		if failed != nil {
			return true, c.stream.Send(failed)
		}
		return false, c.say(request.headers(&extprocv3.CommonResponse{HeaderMutation: to.mutation, ClearRouteCache: true}))
	case c.requestMode == fullDuplex:
		c.owed = true // until the body has arrived
		return false, nil
	}
	return false, c.say(request.headers(&extprocv3.CommonResponse{}))
}

func (c *conversation) requestBody(m *extprocv3.HttpBody) (done bool, err error) {
	if c.picked {
		switch {
		case c.requestMode == fullDuplex && c.endless:
			return false, c.sendPieces(request, m.GetBody(), m.GetEndOfStream())
		case c.requestMode == fullDuplex: // Envoy 1.35 to 1.37 repeat the end of long bodies
			return false, nil
		}
		return false, c.say(request.body(&extprocv3.CommonResponse{}))
	}
	if limit := c.server.dispatcher.MaxBodyBytes(); int64(len(c.body)+len(m.GetBody())) > limit {
		path, _ := c.path()
		return true, c.stream.Send(c.refusal(path, &transport.BodyError{Limit: limit, Length: -1}))
	}
	if c.body == nil && m.GetEndOfStream() {
		c.body = m.GetBody() // this code owns the message
	} else {
		if c.body == nil {
			c.body = make([]byte, 0, c.announced())
		}
		c.body = append(c.body, m.GetBody()...)
	}
	if c.requestMode == fullDuplex {
		if !m.GetEndOfStream() {
			return false, nil
		}
		return c.passOn(false)
	}
	if c.cut(m, c.requestMode) {
		c.body = nil
	}
	to, failed := c.pick()
	if failed != nil {
		return true, c.stream.Send(failed)
	}
	common := &extprocv3.CommonResponse{HeaderMutation: to.mutation, ClearRouteCache: true}
	if to.changed {
		common.BodyMutation = replaced(bytes.Join(to.body, nil))
	}
	return false, c.say(request.body(common))
}

// announced is the announced length of the body, capped while little of it has
// arrived.
func (c *conversation) announced() int {
	const believed = 1 << 20
	n, _ := strconv.Atoi(c.header.Get("Content-Length"))
	return max(min(n, believed), 0)
}

func (c *conversation) requestTrailers() (done bool, err error) {
	if !c.picked {
		if done, err = c.passOn(true); done || err != nil {
			return done, err
		}
	}
	return false, c.say(request.trailers())
}

// passOn answers a request whose body came in pieces, once it is complete: headers,
// then the body in pieces. If trailers follow, the body does not end the request. A
// header that has been answered, or has never come, gets no answer, because proxies
// end the stream for an answer that they did not ask for.
func (c *conversation) passOn(trailers bool) (done bool, err error) {
	to, failed := c.pick()
	if failed != nil {
		return true, c.stream.Send(failed)
	}
	if c.owed {
		if err := c.say(request.headers(&extprocv3.CommonResponse{HeaderMutation: to.mutation, ClearRouteCache: true})); err != nil {
			return false, err
		}
	}
	body := to.body
	if to.size <= maxPiece { // in one message
		body = [][]byte{bytes.Join(body, nil)}
	}
	for i, b := range body {
		if err := c.sendPieces(request, b, !trailers && i == len(body)-1); err != nil {
			return false, err
		}
	}
	return false, nil
}

// say sends an answer; the first one after a choice names the servers.
func (c *conversation) say(m *extprocv3.ProcessingResponse) error {
	m.DynamicMetadata, c.unsaid = c.unsaid, nil
	return c.stream.Send(m)
}

// sendPieces sends a body, or the current part of it, in pieces. Of an empty one, only
// the end is sent.
func (c *conversation) sendPieces(d direction, b []byte, last bool) error {
	for len(b) > maxPiece {
		if err := c.say(d.body(streamed(b[:maxPiece], false))); err != nil {
			return err
		}
		b = b[maxPiece:]
	}
	if len(b) == 0 && !last {
		return nil
	}
	return c.say(d.body(streamed(b, last)))
}

func (c *conversation) responseHeaders(m *extprocv3.HttpHeaders, served, answers string) error {
	if c.answered {
		return status.Error(codes.InvalidArgument, "extproc: a second response on one stream")
	}
	c.answered = true
	common := &extprocv3.CommonResponse{}
	if c.attempt != nil {
		c.servedBy(served, answers)
		header, pseudo := headerOf(m.GetHeaders())
		c.upgraded = c.endless && statusOf(pseudo) == http.StatusSwitchingProtocols
		long, again := header.Get("Content-Length") != "", header.Get("Retry-After")
		code := statusOf(pseudo)
		if header.Get("X-Envoy-Overloaded") != "" { // its own circuit breaker: no server has had the request
			code = http.StatusTooManyRequests
		}
		// The proxy has made its retries: this response goes to the client.
		_ = c.attempt.Header(code, header, nil)
		if long && header.Get("Content-Length") == "" {
			common.HeaderMutation = &extprocv3.HeaderMutation{RemoveHeaders: []string{"content-length"}}
		}
		if made := header.Get("Retry-After"); made != again { // by the attempt
			common.HeaderMutation = &extprocv3.HeaderMutation{}
			common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set("retry-after", made))
		}
		if m.GetEndOfStream() || c.responseMode == none {
			c.rest()
		}
	}
	return c.say(response.headers(common))
}

// rest ends the response, and returns what was held back of it.
func (c *conversation) rest() []byte {
	c.out = c.out[:0]
	if c.attempt != nil {
		c.out, _ = c.attempt.End(c.out) // a stream that broke off ends with an error event
	}
	return c.out
}

func (c *conversation) responseBody(m *extprocv3.HttpBody) error {
	piece := m.GetBody()
	out, whole := piece, m.GetEndOfStream() || c.responseMode == buffered
	if c.attempt != nil && !c.upgraded {
		c.out = c.attempt.Feed(c.out[:0], piece)
		if whole {
			c.out, _ = c.attempt.End(c.out)
		}
		out = c.out
	}
	if c.responseMode == fullDuplex {
		return c.sendPieces(response, out, m.GetEndOfStream())
	}
	common := &extprocv3.CommonResponse{}
	if !bytes.Equal(out, piece) && !c.cut(m, c.responseMode) {
		common.BodyMutation = replaced(out)
	}
	return c.say(response.body(common))
}

// cut reports whether the proxy has sent the beginning of a body, which was too long for it, and passes on
// the rest.
func (*conversation) cut(m *extprocv3.HttpBody, mode filterv3.ProcessingMode_BodySendMode) bool {
	return mode == partial && !m.GetEndOfStream()
}

func (c *conversation) responseTrailers() error {
	rest := c.rest()
	if c.responseMode == fullDuplex {
		if err := c.sendPieces(response, rest, false); err != nil {
			return err
		}
	}
	return c.say(response.trailers())
}

// end ends the request in any state.
func (c *conversation) end() {
	if c.beat != nil {
		c.beat.Stop()
	}
	if c.upgraded {
		c.rest() // this is how a connection ends
	}
	if c.call != nil {
		c.call.Close()
	}
}

// keep keeps the lease alive while the stream is open, however long the endpoint
// takes.
func (c *conversation) keep(lease func() endpick.Lease) {
	every := max(c.server.router.LeaseTimeout()/3, time.Millisecond)
	ctx := c.stream.Context()
	c.beat = time.AfterFunc(math.MaxInt64, func() {
		if ctx.Err() == nil {
			lease().Tokens(0)
			c.beat.Reset(every)
		}
	})
	c.beat.Reset(every)
}
