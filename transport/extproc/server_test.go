package extproc_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/transporttest"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
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

// world is a server on a real connection, over endpoints that it prefers in order.
type world struct {
	router *endpick.Router
	server *extproc.Server
	health *health.Monitor
	heard  *rig.Heard
	conn   *grpc.ClientConn
	drain  func()
	stop   func() // waits
	warned rig.List[error]
}

func newWorld(t testing.TB, config extproc.Config, endpoints ...endpick.Endpoint) *world {
	w := &world{heard: &rig.Heard{Order: "abcd"}}
	if endpoints == nil {
		endpoints = []endpick.Endpoint{
			{ID: "a", Address: "10.0.0.1:8000", Models: []string{"m"}},
			{ID: "b", Address: "http://10.0.0.2:8000", Models: []string{"m"}},
			{ID: "c", Address: "[fd00::3]:8000", Models: []string{"m"}},
		}
	}
	w.router = rig.Must(endpick.New(endpick.Config{
		Policy:    endpick.Policy{Admitters: []endpick.Admitter{w.heard}, Scorers: []endpick.Weighted{{Scorer: w.heard, Weight: 1}}},
		Endpoints: endpoints,
	}))
	w.health = rig.Must(health.New(health.Config{Router: w.router}))
	config.Dispatcher.Router, config.Dispatcher.Health = w.router, w.health
	if config.Dispatcher.Pass == nil {
		config.Dispatcher.Pass = []string{"/"}
	}
	config.Warn = w.warned.Add
	w.server = rig.Must(extproc.New(config))
	var at string
	at, w.drain, w.stop = listen(t, w.server, "127.0.0.1:0")
	w.conn = connect(t, at, noTLS)
	return w
}

// listen serves a picker at an address. stop drains it, and waits until it has ended.
func listen(t testing.TB, server *extproc.Server, address string, options ...grpc.ServerOption) (at string, drain, stop func()) {
	l := rig.Must(net.Listen("tcp", address))
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

// idle waits until nothing is open: a stream may end after its client has gone.
func (w *world) idle(t testing.TB) {
	t.Helper()
	rig.Idle(t, w.router)
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
	require.EqualError(c.t, rig.Err(c.stream.Recv()), "EOF")
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
	v := rig.Must(structpb.NewValue(value))
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
	assert.True(t, common(m).GetClearRouteCache())
}

func mutation(m *extprocv3.ProcessingResponse, name string) string {
	for _, h := range common(m).GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == name && h.GetAppendAction() == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}

func TestConfig(t *testing.T) {
	router := func(address string) *endpick.Router {
		return rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "x", Address: address}}}))
	}
	good := router("10.0.0.1:80")
	for field, c := range map[string]extproc.Config{
		"transport.Config.Router":          {},
		"transport.Config.MaxBodyBytes":    {Dispatcher: transport.Config{Router: good, MaxBodyBytes: -1}},
		"extproc.Config.DrainTimeout":      {Dispatcher: transport.Config{Router: good}, DrainTimeout: -1},
		"extproc.Config.Dispatcher.Router": {Dispatcher: transport.Config{Router: router("gpu-0:8000")}},
	} {
		assert.Equal(t, field, rig.Field(extproc.New(c)))
	}
	for _, address := range []string{"10.0.0.1:80", "[fd00::1]:80", "http://10.0.0.1", "https://user:secret@10.0.0.1/base", "h2c://10.0.0.1:8000"} {
		assert.NoError(t, rig.Err(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router(address)}})), address)
	}
	for _, address := range []string{"10.0.0.1", "10.0.0.1:http", "http://gpu-0:8000", "fd00::1", "10.0.0.1:99999"} {
		assert.Error(t, rig.Err(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router(address)}})), address)
	}
}

func TestAddressesAsTheyAreTold(t *testing.T) {
	for address, want := range map[string]string{
		"http://10.0.0.1": "10.0.0.1:80", "https://user:secret@10.0.0.1/base": "10.0.0.1:443", "[::ffff:10.0.0.1]:9": "10.0.0.1:9", "http://[fd00::1]": "[fd00::1]:80",
	} {
		w := newWorld(t, extproc.Config{}, endpick.Endpoint{ID: "a", Address: address})
		names(t, want, first(w.talk(t, inPieces).request(chatBody)))
	}
}

// An endpoint added later with an unusable address is passed over and logged.
func TestAnEndpointWithABadAddressIsPassedOver(t *testing.T) {
	w := newWorld(t, extproc.Config{}, endpick.Endpoint{ID: "b", Address: "10.0.0.2:8000"})
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "a", Address: "gpu-0:8000"}))
	names(t, "10.0.0.2:8000", first(w.talk(t, inPieces).request(chatBody)))
	assert.Len(t, w.warned.Take(), 1)
	require.NoError(t, w.router.Remove("b"))
	refused(t, first(w.talk(t, inPieces).request(chatBody)), 503, "no server is available")
}

func TestHealthServices(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	client := healthv1.NewHealthClient(w.conn)
	check := func(service string) string {
		answer, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil {
			return status.Code(err).String()
		}
		return answer.GetStatus().String()
	}
	const processor = "envoy.service.ext_proc.v3.ExternalProcessor"
	for _, ready := range []bool{true, false, true} {
		w.server.SetReady(ready)
		want := map[bool]string{true: "SERVING", false: "NOT_SERVING"}[ready]
		assert.Equal(t, []string{"SERVING", want, want, want}, []string{check("liveness"), check("readiness"), check(processor), check("")})
	}
	assert.Equal(t, codes.NotFound.String(), check("unheard-of"))
}

func TestDescribe(t *testing.T) {
	w := newWorld(t, extproc.Config{Describe: func(header http.Header, body []byte, req *endpick.Request) {
		if header.Get("X-Team") == "panic" {
			panic("oh")
		}
		assert.Equal(t, chatBody, string(body))
		req.Tenant = header.Get("X-Team")
	}})
	c := w.talk(t, inPieces)
	c.request(chatBody, "x-team", "blue", "x-slo-ttft-ms", "250", "x-endpick-priority", "high")
	c.ends()
	assert.Equal(t, "blue", w.heard.Last().Request.Tenant)
	assert.Equal(t, 250*time.Millisecond, w.heard.Last().Request.SLO.TTFT)
	assert.Len(t, w.warned.Take(), 1, "of the priority")
	refused(t, first(w.talk(t, inPieces).request(chatBody, "x-team", "panic")), 500, "Internal Server Error")
	header, _ := destination(first(w.talk(t, inPieces).request(chatBody, "x-team", "blue")))
	assert.NotEmpty(t, header, "it goes on")
}

// Without bodies, requests are routed by load, and a response ends with its header.
func TestModesWithoutBodies(t *testing.T) {
	for name, mode := range map[string]filterv3.ProcessingMode_BodySendMode{"none": filterv3.ProcessingMode_NONE, "streamed": filterv3.ProcessingMode_STREAMED} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extproc.Config{})
			c := w.talk(t, mode)
			c.send(requestHeaders(false))
			names(t, "10.0.0.1:8000", c.recv())
			if mode != filterv3.ProcessingMode_NONE {
				c.send(requestBody(chatBody, true))
				assert.Nil(t, c.recv().GetRequestBody().GetResponse().GetBodyMutation(), "too late to change anything")
			}
			c.respond("200")
			if mode != filterv3.ProcessingMode_NONE {
				c.send(responseBody(events, true))
				assert.Nil(t, c.recv().GetResponseBody().GetResponse().GetBodyMutation())
			}
			c.ends()
			assert.Equal(t, "a completed", w.heard.Said())
		})
	}
}

// If response bodies are not sent, it is unknown whether there was one.
func TestRequestsWithAndResponsesWithoutBodies(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	c := w.talk(t, atOnce)
	c.first = false
	m := requestHeaders(false)
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: atOnce, ResponseBodyMode: filterv3.ProcessingMode_NONE}
	c.send(m)
	c.recv()
	c.send(requestBody(chatBody, true))
	assert.Nil(t, common(c.recv()).GetBodyMutation(), "nobody would remove usage from the response")
	c.respond("200")
	c.ends()
	assert.Equal(t, "a completed", w.heard.Said())
}

func TestAProxyThatDoesNotTellItsMode(t *testing.T) {
	c := newWorld(t, extproc.Config{Buffered: true}).talk(t, atOnce)
	c.first = false // the message is sent without its configuration
	_, body := c.request(chatBody)
	assert.Equal(t, asked, body)
	c.respond("200")
	c.send(responseBody(events+usage+done, true))
	answer, ok := c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetMutation().(*extprocv3.BodyMutation_Body)
	require.True(t, ok, "responses come in one message too")
	assert.Equal(t, events+done, string(answer.Body))

	c = newWorld(t, extproc.Config{}).talk(t, inPieces) // unless the picker is told otherwise
	c.first = false
	_, body = c.request(chatBody)
	assert.Equal(t, asked, body)
}

// Of a body that is too long for a proxy in mode BUFFERED_PARTIAL, only the beginning is sent to the picker: a
// request is routed by load, and a response goes on, unchanged, which is no failure of the server.
func TestPartialBodies(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	c := w.talk(t, filterv3.ProcessingMode_BUFFERED_PARTIAL)
	c.send(requestHeaders(false))
	c.recv()
	c.send(requestBody(chatBody[:60], false))
	m := c.recv()
	names(t, "10.0.0.1:8000", m)
	assert.Nil(t, common(m).GetBodyMutation())
	c.respond("200")
	c.send(responseBody(events[:60], false))
	assert.Nil(t, c.recv().GetResponseBody().GetResponse().GetBodyMutation())
	c.ends()
	assert.Equal(t, "a canceled", w.heard.Said())
}

// A limit that is none adds up with what a message has besides; a body as long as the limit is within it.
func TestBodiesWithoutALimit(t *testing.T) {
	for _, limit := range []int64{math.MaxInt64, int64(len(chatBody))} {
		w := newWorld(t, extproc.Config{Dispatcher: transport.Config{MaxBodyBytes: limit}})
		names(t, "10.0.0.1:8000", first(w.talk(t, inPieces).request(chatBody)))
		if c := w.talk(t, inPieces); limit < math.MaxInt64 {
			c.send(requestHeaders(false))
			c.send(requestBody(chatBody, false))
			c.send(requestBody(" ", false)) // nothing more is read
			refused(t, c.recv(), 413, "longer than")
		}
	}
}

// A watcher of the server's health learns of draining before its connection ends.
func TestDrainingIsTold(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	watching, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := rig.Must(healthv1.NewHealthClient(w.conn).Watch(watching, &healthv1.HealthCheckRequest{Service: "readiness"}))
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING} {
		assert.Equal(t, want, rig.Must(watch.Recv()).GetStatus())
		w.drain()
	}
	cancel()
}

// A lease is kept as long as its stream is open, however long the server is
// silent.
func TestLeasesOfOpenStreamsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{Address: "10.0.0.1:1"}}, LeaseTimeout: time.Minute}))
		stream := &played{in: []*extprocv3.ProcessingRequest{requestHeaders(true)}, end: make(chan struct{})}
		go rig.Must(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router}})).Process(stream)
		for range 30 {
			time.Sleep(20*time.Second + time.Millisecond)
			require.Zero(t, router.Sweep(router.Now().Add(time.Minute/3)), "it is heard of in time")
		}
		assert.Equal(t, 1, router.Endpoints()[0].Candidate.InFlight.Prefilling, "but no token has arrived")
		close(stream.end)
		synctest.Wait()
		assert.Zero(t, router.Stats().OpenLeases)
		assert.Zero(t, router.Stats().Reaped)
	})
}

// Streams that are open when draining starts go on; new ones are refused.
func TestDraining(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	c := w.talk(t, inPieces)
	c.request(chatBody)
	ended := make(chan struct{})
	go func() { w.stop(); close(ended) }()
	require.Eventually(t, func() bool {
		_, err := healthv1.NewHealthClient(w.conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
		return err != nil
	}, 30*time.Second, time.Millisecond, "nothing new is taken")
	c.respond("200")
	assert.Equal(t, events+done, c.response(events+usage+done))
	select {
	case <-ended:
		t.Fatal("ended before its streams")
	default:
	}
	c.ends()
	<-ended
	assert.Equal(t, "a completed", w.heard.Said())
	assert.Zero(t, w.router.Stats().OpenLeases)
}

// A stream that never ends does not keep a server from stopping.
func TestDrainingEnds(t *testing.T) {
	w := newWorld(t, extproc.Config{DrainTimeout: 50 * time.Millisecond})
	w.talk(t, inPieces).request(chatBody)
	w.stop()
	w.idle(t)

	gone, cancel := context.WithCancel(context.Background())
	cancel()
	assert.NoError(t, w.server.Serve(gone, rig.Must(net.Listen("tcp", "127.0.0.1:0"))), "done before it began")
}

// A listener that fails ends the streams, too.
func TestServingEndsWithItsListener(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	l, ended := rig.Must(net.Listen("tcp", "127.0.0.1:0")), make(chan error, 1)
	go func() { ended <- w.server.Serve(t.Context(), l) }()
	w.conn = connect(t, l.Addr().String(), noTLS)
	w.talk(t, inPieces).request(chatBody)
	require.NoError(t, l.Close())
	assert.ErrorContains(t, <-ended, "closed")
	w.idle(t)
}

func TestTLSAndKeepAlive(t *testing.T) {
	w := newWorld(t, extproc.Config{Dispatcher: transport.Config{MaxBodyBytes: int64(len(chatBody))}}) // a header may be longer
	conn := rig.Must(net.Dial("tcp", w.conn.Target()))
	defer conn.Close()
	at, _, _ := listen(t, w.server, "127.0.0.1:0", secured())
	w.conn = connect(t, at, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))
	names(t, "10.0.0.1:8000", first(w.talk(t, inPieces).request(chatBody)))

	// Envoy pings as often as it is told to. A stricter server would close the connection, with all its streams.
	_ = rig.Must(io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+strings.Repeat("\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping", 9)))
	for heard, b := "", make([]byte, 512); strings.Count(heard, "pingping") < 9; {
		n, err := conn.Read(b)
		require.NoError(t, err, heard)
		heard += string(b[:n])
	}
}

// pickers are many behind one Envoy, by the host that the client asks for.
type pickers struct {
	extprocv3.UnimplementedExternalProcessorServer
	of sync.Map // *extproc.Server
}

func (p *pickers) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	header, _ := metadata.FromIncomingContext(stream.Context())
	if server, ok := p.of.Load(header.Get("x-client-host")[0]); ok {
		return server.(*extproc.Server).Process(stream)
	}
	return io.ErrUnexpectedEOF
}

// An Envoy that uses the picker leaves its accounts correct, however an engine misbehaves.
func TestThePickerConforms(t *testing.T) {
	const inPieces, whole = "FULL_DUPLEX_STREAMED", "BUFFERED"
	for _, mode := range []string{inPieces, whole} {
		t.Run(mode, func(t *testing.T) {
			all := &pickers{}
			l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
			g := grpc.NewServer(secured(), grpc.MaxRecvMsgSize(64<<20))
			extprocv3.RegisterExternalProcessorServer(g, all)
			go g.Serve(l)
			t.Cleanup(g.Stop)
			at := envoy.Start(t, "../../internal/lab/envoy/original_dst.yaml", l.Addr().String(), nil, inPieces, mode,
				"    filter_chains:", "    per_connection_buffer_limit_bytes: 41943040\n    filter_chains:",
				"timeout: 10s", `timeout: 3600s, initial_metadata: [{key: x-client-host, value: "%REQ(:authority)%"}]`)
			base := &http.Transport{DisableCompression: true}
			t.Cleanup(base.CloseIdleConnections)
			transporttest.RunPicker(t, func(t *testing.T, router *endpick.Router) http.Handler {
				server := rig.Must(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router}}))
				name := router.Endpoints()[0].Candidate.Endpoint.Address
				all.of.Store(name, server)
				to := rig.Must(url.Parse(at))
				return &httputil.ReverseProxy{
					Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = name },
					Transport:     base,
					FlushInterval: -1,
					ErrorLog:      log.New(io.Discard, "", 0),
				}
			})
		})
	}
}

// Older proxies send header values as text, newer ones as raw bytes.
func TestHeadersAsText(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	c := w.talk(t, inPieces)
	text := &corev3.HeaderMap{}
	for _, h := range [][2]string{{":method", "POST"}, {":path", chatPath}, {"content-type", "application/json"}, {"x-slo-ttft-ms", "250"}, {"", "nobody"}} {
		text.Headers = append(text.Headers, &corev3.HeaderValue{Key: h[0], Value: h[1]})
	}
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: text}}})
	c.send(requestBody(chatBody, true))
	names(t, "10.0.0.1:8000", c.recv())
	for !c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
	}
	c.ends()
	assert.EqualValues(t, 250e6, w.heard.Last().Request.SLO.TTFT)
}

// ranked is a server of two ranks beside servers with the same rank, another rank and
// none.
func ranked(t *testing.T) *world {
	w := newWorld(t, extproc.Config{Dispatcher: transport.Config{Fallbacks: 5}},
		endpick.Endpoint{ID: "a", Address: "10.0.0.1:80", Ranked: true, Rank: 1},
		endpick.Endpoint{ID: "b", Address: "10.0.0.2:80", Ranked: true, Rank: 0},
		endpick.Endpoint{ID: "c", Address: "10.0.0.3:80"},
		endpick.Endpoint{ID: "d", Address: "10.0.0.1:80", Ranked: true, Rank: 0},
		endpick.Endpoint{ID: "e", Address: "10.0.0.2:80", Ranked: true, Rank: 1},
	)
	w.heard.Order = "abcde"
	return w
}

// One header carries the rank, so only servers with the same rank can be fallbacks.
func TestFallbacksHaveTheSameRank(t *testing.T) {
	for order, want := range map[string]struct{ servers, rank string }{
		"abcde": {"10.0.0.1:80,10.0.0.2:80", "1"}, "bacde": {"10.0.0.2:80,10.0.0.1:80", "0"}, "cabde": {"10.0.0.3:80", ""},
	} {
		w := ranked(t)
		w.heard.Order = order
		m := first(w.talk(t, inPieces).request(chatBody))
		names(t, want.servers, m)
		assert.Equal(t, want.rank, mutation(m, "x-data-parallel-rank"))
	}
}

// The address reported by the proxy identifies the server: the one with the rank that
// was asked for. An unknown address changes nothing.
func TestServedByTheSameRank(t *testing.T) {
	for by, want := range map[string]string{
		"10.0.0.1:80": "a completed", "10.0.0.2:80": "a failed, e completed", "10.0.0.3:80": "a failed, c completed", "10.9.9.9:80": "a completed", "": "a completed",
		"[::ffff:10.0.0.2]:80": "a failed, e completed", " 10.0.0.3:80 ": "a failed, c completed", "[::ffff:10.0.0.1]:80": "a completed",
	} {
		w := ranked(t)
		w.talk(t, inPieces).exchange(served(responseHeaders("200", false), by), events)
		assert.Equal(t, want, w.heard.Said(), by)
		if by == "10.9.9.9:80" {
			warned := w.warned.Take()
			require.Len(t, warned, 1)
			var failed *transport.UpstreamError
			require.ErrorAs(t, warned[0], &failed)
			assert.Equal(t, by, failed.Endpoint)
			assert.ErrorIs(t, failed, endpick.ErrUnknownEndpoint)
		} else {
			assert.Empty(t, w.warned.Take())
		}
	}
}

// An announced length is used only as far as that costs nothing.
func TestAnnouncedLengths(t *testing.T) {
	for _, length := range []string{"4611686018427387904", "-5", "many", "1", "0"} {
		c := newWorld(t, extproc.Config{}).talk(t, inPieces)
		c.send(requestHeaders(false, "content-length", length))
		c.send(requestBody(chatBody[:20], false))
		c.send(requestBody(chatBody[20:], true))
		names(t, "10.0.0.1:8000", c.recv())
	}
}

// Two endpoints may be one server. It is named once, and what it serves counts for
// the chosen endpoint.
func TestOneServerTwice(t *testing.T) {
	exclude := []string(nil)
	w := newWorld(t, extproc.Config{
		Dispatcher: transport.Config{Fallbacks: 2},
		Describe:   func(_ http.Header, _ []byte, req *endpick.Request) { req.Exclude = exclude },
	}, endpick.Endpoint{ID: "a", Address: "10.0.0.1:8000"}, endpick.Endpoint{ID: "b", Address: "http://10.0.0.1:8000"}, endpick.Endpoint{ID: "c", Address: "10.0.0.3:8000"})
	names(t, "10.0.0.1:8000,10.0.0.3:8000", first(w.talk(t, inPieces).request(chatBody)))

	exclude = []string{"a"}
	w.talk(t, inPieces).exchange(served(responseHeaders("200", false), "10.0.0.1:8000"), events+done)
	require.Eventually(t, func() bool { return strings.Contains(w.heard.Said(), "completed") }, 30*time.Second, time.Millisecond)
	assert.Contains(t, w.heard.Said(), "b completed")
}

// A client or the proxy may disappear after any message.
func TestVanishing(t *testing.T) {
	script := []*extprocv3.ProcessingRequest{
		requestHeaders(false), requestBody(chatBody[:10], false), requestBody(chatBody[10:], true),
		responseHeaders("200", false), responseBody(events[:20], false), responseBody(events[20:], false), responseBody(usage, false), responseBody(done, true),
	}
	want := map[int]string{0: "", 1: "", 2: "", 3: "a canceled", 4: "a canceled", 5: "a canceled", 6: "a canceled", 7: "a canceled", 8: "a completed"}
	for n := range len(script) + 1 {
		for name, leave := range map[string]func(*talk){
			"reset":       func(c *talk) { c.cancel() },
			"half closed": func(c *talk) { c.stream.CloseSend() },
			"unread":      func(c *talk) { c.stream.CloseSend(); c.cancel() },
		} {
			t.Run(fmt.Sprintf("after %d/%s", n, name), func(t *testing.T) {
				w := newWorld(t, extproc.Config{})
				c := w.talk(t, inPieces)
				for _, m := range script[:n] {
					c.send(m)
				}
				if n >= 3 { // a reset may overtake what was sent
					for range min(n-1, 3) {
						c.recv()
					}
				}
				if n == len(script) {
					for !c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
					}
				}
				leave(c)
				w.idle(t)
				if n >= 3 {
					require.Eventually(t, func() bool { return w.heard.Said() != "" }, 30*time.Second, time.Millisecond)
				}
				assert.Equal(t, want[n], w.heard.Said())
			})
		}
	}
}
