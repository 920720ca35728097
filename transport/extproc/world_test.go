package extproc_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/health"
)

var noTLS = insecure.NewCredentials()

const (
	chatPath = "/v1/chat/completions"
	chatBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi!"}]}`
	asked    = `{"stream_options":{"include_usage":true},` + `"model":"m","stream":true,"messages":[{"role":"user","content":"Hi!"}]}`
	events   = `data: {"choices":[{"delta":{"content":"Hello!"}}]}` + "\n\n" +
		`data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

// heard is a stage that records how requests ended and prefers endpoints in order.
type heard struct {
	mu      sync.Mutex
	order   string
	refuse  error
	lines   []string
	outcome endpick.Outcome // the last one
	request endpick.Request
	ttfts   int
}

func (o *heard) Admit(*endpick.Request, []endpick.Candidate) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refuse
}

func (o *heard) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i, c := range candidates {
		dst[i] = 1 / float64(2+strings.Index(o.order, c.Endpoint.ID))
	}
}

func (o *heard) FirstToken(*endpick.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ttfts++
}

func (o *heard) Done(e *endpick.Event, outcome *endpick.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, e.Candidate.Endpoint.ID+" "+outcome.Status.String())
	o.outcome, o.request = *outcome, *e.Request
}

func (o *heard) said() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines, ", ")
}

// world is a server on a real connection, over endpoints that it prefers in order.
type world struct {
	router *endpick.Router
	server *extproc.Server
	health *health.Monitor
	heard  *heard
	conn   *grpc.ClientConn
	drain  func()
	stop   func() // waits
	mu     sync.Mutex
	warned []error
}

func newWorld(t testing.TB, config extproc.Config, endpoints ...endpick.Endpoint) *world {
	w := &world{heard: &heard{order: "abcd"}}
	if endpoints == nil {
		endpoints = []endpick.Endpoint{
			{ID: "a", Address: "10.0.0.1:8000", Models: []string{"m"}},
			{ID: "b", Address: "http://10.0.0.2:8000", Models: []string{"m"}},
			{ID: "c", Address: "[fd00::3]:8000", Models: []string{"m"}},
		}
	}
	var err error
	w.router, err = endpick.New(endpick.Config{
		Policy:    endpick.Policy{Admitters: []endpick.Admitter{w.heard}, Scorers: []endpick.Weighted{{Scorer: w.heard, Weight: 1}}},
		Endpoints: endpoints,
	})
	require.NoError(t, err)
	w.health = rig.Must(health.New(health.Config{Router: w.router}))
	config.Dispatcher.Router, config.Dispatcher.Health = w.router, w.health
	if config.Dispatcher.Pass == nil {
		config.Dispatcher.Pass = []string{"/"}
	}
	config.Warn = func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.warned = append(w.warned, err)
	}
	w.server = rig.Must(extproc.New(config))
	var at string
	at, w.drain, w.stop = listen(t, w.server, "127.0.0.1:0")
	w.conn = connect(t, at, noTLS)
	return w
}

func listener(t testing.TB, address string) net.Listener {
	return rig.Must(net.Listen("tcp", address))
}

// listen serves a picker at an address. stop drains it, and waits until it has ended.
func listen(t testing.TB, server *extproc.Server, address string, options ...grpc.ServerOption) (at string, drain, stop func()) {
	l := listener(t, address)
	ctx, drain := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, options...) }()
	stop = sync.OnceFunc(func() { drain(); assert.NoError(t, <-ended) })
	t.Cleanup(stop)
	return l.Addr().String(), drain, stop
}

func connect(t testing.TB, at string, secured credentials.TransportCredentials, options ...grpc.DialOption) *grpc.ClientConn {
	options = append(options, grpc.WithTransportCredentials(secured), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	conn := rig.Must(grpc.NewClient(at, options...))
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (w *world) warnings() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.warned
}

// idle waits until nothing is open: a stream may end after its client has gone.
func (w *world) idle(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return w.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
	for _, e := range w.router.Endpoints() {
		assert.Zero(t, e.Candidate.InFlight, e.Candidate.Endpoint.ID)
	}
}

// talk is one stream, message by message.
type talk struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	mode   filterv3.ProcessingMode_BodySendMode
	first  bool
}

const (
	inPieces = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	atOnce   = filterv3.ProcessingMode_BUFFERED
)

func (w *world) talk(t testing.TB, mode filterv3.ProcessingMode_BodySendMode) *talk {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	stream := rig.Must(extprocv3.NewExternalProcessorClient(w.conn).Process(ctx))
	return &talk{t: t, stream: stream, cancel: cancel, mode: mode, first: true}
}

func (c *talk) send(m *extprocv3.ProcessingRequest) {
	c.t.Helper()
	if c.first {
		c.first = false
		m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: c.mode, ResponseBodyMode: c.mode}
	}
	require.NoError(c.t, c.stream.Send(m))
}

func (c *talk) recv() *extprocv3.ProcessingResponse {
	c.t.Helper()
	m, err := c.stream.Recv()
	require.NoError(c.t, err)
	return m
}

// ends waits for the end of the stream.
func (c *talk) ends() {
	c.t.Helper()
	require.NoError(c.t, c.stream.CloseSend())
	_, err := c.stream.Recv()
	require.EqualError(c.t, err, "EOF")
}

func headers(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestHeaders(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	pairs = append([]string{":method", "POST", ":path", chatPath, "content-type", "application/json"}, pairs...)
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers(pairs...), EndOfStream: end}}}
}

func requestBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

func requestTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
}

func responseHeaders(status string, end bool, pairs ...string) *extprocv3.ProcessingRequest {
	pairs = append([]string{":status", status}, pairs...)
	if !slices.Contains(pairs, "content-type") {
		pairs = append(pairs, "content-type", "text/event-stream")
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headers(pairs...), EndOfStream: end}}}
}

func responseBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

func responseTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

func withMetadata(m *extprocv3.ProcessingRequest, namespace, key string, value any) *extprocv3.ProcessingRequest {
	v, err := structpb.NewValue(value)
	if err != nil {
		panic(err)
	}
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: v}}}}
	return m
}

func subset(m *extprocv3.ProcessingRequest, value any) *extprocv3.ProcessingRequest {
	return withMetadata(m, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
}

func served(m *extprocv3.ProcessingRequest, by string) *extprocv3.ProcessingRequest {
	return withMetadata(m, "envoy.lb", "x-gateway-destination-endpoint-served", by)
}

// head sends the head of a request with a body. In mode BUFFERED, that is answered at once.
func (c *talk) head(m *extprocv3.ProcessingRequest) {
	c.t.Helper()
	c.send(m)
	if c.mode == atOnce {
		require.NotNil(c.t, c.recv().GetRequestHeaders())
	}
}

// respond sends the head of a response with a body, and returns what the picker makes of it.
func (c *talk) respond(status string, pairs ...string) *extprocv3.CommonResponse {
	c.t.Helper()
	c.send(responseHeaders(status, false, pairs...))
	m := c.recv().GetResponseHeaders()
	require.NotNil(c.t, m)
	return m.GetResponse()
}

// bodyResponse is a request's or a response's.
type bodyResponse interface {
	GetResponse() *extprocv3.CommonResponse
}

// piece takes a piece of a body apart.
func (c *talk) piece(m bodyResponse) (body string, last bool) {
	c.t.Helper()
	piece := m.GetResponse().GetBodyMutation().GetStreamedResponse()
	require.NotNil(c.t, piece)
	return string(piece.GetBody()), piece.GetEndOfStream()
}

// isPiece checks a piece of a body.
func (c *talk) isPiece(m bodyResponse, want string, end bool) {
	c.t.Helper()
	body, last := c.piece(m)
	assert.Equal(c.t, want, body)
	assert.Equal(c.t, end, last)
}

// fails waits for the end of a stream that has broken the protocol.
func (c *talk) fails() {
	c.t.Helper()
	_, err := c.stream.Recv()
	assert.Equal(c.t, codes.InvalidArgument, status.Code(err))
}

// request sends a request and returns the message that names a server, and the body
// that the server gets.
func (c *talk) request(body string, pairs ...string) (*extprocv3.ProcessingResponse, string) {
	c.t.Helper()
	c.head(requestHeaders(false, pairs...))
	if c.mode == atOnce {
		c.send(requestBody(body, true))
		m := c.recv()
		if b, ok := m.GetRequestBody().GetResponse().GetBodyMutation().GetMutation().(*extprocv3.BodyMutation_Body); ok {
			body = string(b.Body)
		}
		return m, body
	}
	c.send(requestBody(body, true))
	m := c.recv()
	if m.GetRequestHeaders() == nil {
		return m, ""
	}
	body = ""
	for last := false; !last; {
		var piece string
		piece, last = c.piece(c.recv().GetRequestBody())
		body += piece
	}
	return m, body
}

// common is the part of the answer that names a server.
func common(m *extprocv3.ProcessingResponse) *extprocv3.CommonResponse {
	if h := m.GetRequestHeaders(); h != nil {
		return h.GetResponse()
	}
	return m.GetRequestBody().GetResponse()
}

// destination returns the header that names servers, and the metadata.
func destination(m *extprocv3.ProcessingResponse) (header, metadata string) {
	header = mutation(m, extproc.DestinationHeader)
	return header, m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[extproc.DestinationHeader].GetStringValue()
}

// names checks which servers a message names, in header and metadata alike.
func names(t testing.TB, want string, m *extprocv3.ProcessingResponse) {
	t.Helper()
	header, metadata := destination(m)
	assert.Equal(t, want, header)
	assert.Equal(t, want, metadata)
}

func mutation(m *extprocv3.ProcessingResponse, name string) string {
	for _, h := range common(m).GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == name && h.GetAppendAction() == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}
