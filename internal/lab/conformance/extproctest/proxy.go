package extproctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// MaxPiece is the length of the longest piece of a body that a picker may send, in bytes.
const MaxPiece = 62_000

// Proxy sends requests to the server that a picker names. It has no goroutines beyond
// its requests, and is safe for concurrent use.
type Proxy struct {
	// Picker is the connection to the picker. It is required.
	Picker grpc.ClientConnInterface
	// Buffered sends bodies in mode BUFFERED. By default they go in pieces, in mode
	// FULL_DUPLEX_STREAMED.
	Buffered bool
	// Silent does not announce the body mode, like older proxies.
	Silent bool
	// Piece is the length of the pieces in which bodies are sent. Zero: 16 KiB.
	Piece int
	// Subset are the servers that the picker may choose from. Nil: any. It is sent
	// as a list, or as one string if SubsetText is set.
	Subset     []string
	SubsetText bool
	// RetryOn are the statuses after which the next server is asked, if there is
	// one. A server that can't be reached is always followed by the next.
	RetryOn []int
	// Base sends the requests to the servers. Nil: http.DefaultTransport.
	Base http.RoundTripper
}

// ProtocolError says how a picker has violated the protocol.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "extproctest: " + e.Reason }

func broken(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}

// RoundTrip sends the request to the first server that the picker names and that can
// be reached, and returns its response as modified by the picker. If none can be
// reached, the response is a 503 of the proxy's own, which the picker sees as well.
func (p *Proxy) RoundTrip(in *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(in.Context())
	stream, err := extprocv3.NewExternalProcessorClient(p.Picker).Process(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	x := &exchange{p: p, stream: stream, cancel: cancel, in: in}
	out, err := x.run(ctx)
	if err != nil {
		cancel()
	}
	return out, err
}

// exchange is one request and its response.
type exchange struct {
	p       *Proxy
	stream  extprocv3.ExternalProcessor_ProcessClient
	cancel  context.CancelFunc
	in      *http.Request
	servers []string
	header  http.Header // of the request
	upgrade bool        // it has no end if the server agrees
	body    []byte
}

func (x *exchange) run(ctx context.Context) (*http.Response, error) {
	// An Envoy has answered 100 by now, and sends Expect to nobody.
	x.header = x.in.Header.Clone()
	if x.header == nil {
		x.header = http.Header{}
	}
	x.header.Del("Expect")
	x.upgrade = x.in.Method == http.MethodGet && x.header.Get("Upgrade") != ""
	if x.upgrade && x.p.Buffered {
		x.cancel()
		return nil, errEndless
	}
	refused, err := x.ask()
	if err != nil || refused != nil {
		x.cancel()
		return refused, err
	}
	response, served := x.send(ctx)
	return x.pass(response, served)
}

func (x *exchange) mode() filterv3.ProcessingMode_BodySendMode {
	if x.p.Buffered {
		return filterv3.ProcessingMode_BUFFERED
	}
	return filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
}

// ask sends the request to the picker, and reads where it should go. The response is
// the picker's own, if it gives one.
func (x *exchange) ask() (*http.Response, error) {
	var body []byte
	if x.in.Body != nil {
		var err error
		body, err = io.ReadAll(x.in.Body)
		x.in.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	empty, trailers := len(body) == 0 && x.in.Body == nil && !x.upgrade, len(x.in.Trailer) > 0
	head := &extprocv3.ProcessingRequest{
		Request:         &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: x.requestHeader(), EndOfStream: empty}},
		MetadataContext: x.subset(),
	}
	if !x.p.Silent {
		head.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: x.mode(), ResponseBodyMode: x.mode()}
	}
	if err := x.stream.Send(head); err != nil {
		return nil, x.why(err)
	}
	if empty || x.upgrade {
		m, err := x.recv()
		if err != nil || m.GetImmediateResponse() != nil {
			return x.refused(m), err
		}
		return nil, x.take(m, m.GetRequestHeaders().GetResponse())
	}
	if x.p.Buffered {
		return x.askBuffered(body, trailers)
	}
	return x.askInPieces(body, trailers)
}

func (x *exchange) askBuffered(body []byte, trailers bool) (*http.Response, error) {
	m, err := x.recv()
	if err != nil || m.GetImmediateResponse() != nil {
		return x.refused(m), err
	}
	if m.GetRequestHeaders() == nil {
		return nil, broken("%T answers the header of a request", m.GetResponse())
	}
	if m.GetDynamicMetadata() != nil {
		return nil, broken("a server is named before the body is known")
	}
	x.apply(m.GetRequestHeaders().GetResponse())
	if err := x.stream.Send(requestBody(body, !trailers)); err != nil {
		return nil, x.why(err)
	}
	if m, err = x.recv(); err != nil || m.GetImmediateResponse() != nil {
		return x.refused(m), err
	}
	common := m.GetRequestBody().GetResponse()
	if common == nil {
		return nil, broken("%T answers the body of a request", m.GetResponse())
	}
	x.body = body
	switch b := common.GetBodyMutation().GetMutation().(type) {
	case nil:
	case *extprocv3.BodyMutation_Body:
		x.body = b.Body
		if n := x.headerOf(common, "content-length"); n != fmt.Sprint(len(x.body)) {
			return nil, broken("a body of %d bytes has a content-length of %q", len(x.body), n)
		}
	default:
		return nil, broken("a body that was buffered is changed by %T", b)
	}
	if err := x.take(m, common); err != nil || !trailers {
		return nil, err
	}
	return nil, x.trailers(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(x.in.Trailer)}}},
		func(m *extprocv3.ProcessingResponse) bool { return m.GetRequestTrailers() != nil })
}

func (x *exchange) askInPieces(body []byte, trailers bool) (*http.Response, error) {
	piece := x.p.Piece
	if piece == 0 {
		piece = 16 << 10
	}
	rest := body
	for first := true; first || len(rest) > 0; first = false {
		n := min(piece, len(rest))
		err := x.stream.Send(requestBody(rest[:n], n == len(rest) && !trailers))
		if rest = rest[n:]; err == io.EOF {
			break // the picker has answered before the end; see Recv
		} else if err != nil {
			return nil, x.why(err)
		}
	}
	if trailers {
		m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(x.in.Trailer)}}}
		if err := x.stream.Send(m); err != nil && err != io.EOF {
			return nil, x.why(err)
		}
	}
	m, err := x.recv()
	if err != nil || m.GetImmediateResponse() != nil {
		return x.refused(m), err
	}
	if err := x.take(m, m.GetRequestHeaders().GetResponse()); err != nil {
		return nil, err
	}
	for ended := false; !ended; {
		if m, err = x.recv(); err != nil {
			return nil, err
		}
		if trailers && m.GetRequestTrailers() != nil {
			break
		}
		b, err := streamedPiece(m.GetRequestBody().GetResponse(), m)
		if err != nil {
			return nil, err
		}
		x.body = append(x.body, b.GetBody()...)
		if ended = b.GetEndOfStream(); ended && trailers {
			return nil, broken("a body with trailers after it ends the request")
		}
	}
	if n := x.header.Get("Content-Length"); n != "" && n != fmt.Sprint(len(x.body)) {
		return nil, broken("a body of %d bytes has a content-length of %q", len(x.body), n)
	}
	return nil, nil
}

// take reads where the request should go.
func (x *exchange) take(m *extprocv3.ProcessingResponse, common *extprocv3.CommonResponse) error {
	if common == nil {
		return broken("%T comes where a server should be named", m.GetResponse())
	}
	if !common.GetClearRouteCache() {
		return broken("the route cache is not cleared")
	}
	header := x.headerOf(common, "x-gateway-destination-endpoint")
	metadata := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
	if header == "" || header != metadata {
		return broken("the header names %q, the metadata %q", header, metadata)
	}
	x.servers = strings.Split(header, ",")
	x.apply(common)
	return nil
}

// headerOf is the value that a header is set to; it must overwrite.
func (x *exchange) headerOf(common *extprocv3.CommonResponse, name string) string {
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if strings.EqualFold(h.GetHeader().GetKey(), name) && h.GetAppendAction() == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}

func (x *exchange) apply(common *extprocv3.CommonResponse) {
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		x.header.Set(h.GetHeader().GetKey(), string(h.GetHeader().GetRawValue()))
	}
	for _, name := range common.GetHeaderMutation().GetRemoveHeaders() {
		x.header.Del(name)
	}
}

// send sends the request to the servers in order.
func (x *exchange) send(ctx context.Context) (*http.Response, string) {
	base := x.p.Base
	if base == nil {
		base = http.DefaultTransport
	}
	for i, server := range x.servers {
		out := x.in.Clone(ctx)
		out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", server, "", ""
		out.Header, out.Trailer, out.TransferEncoding = x.header.Clone(), nil, nil
		out.Header.Del("Content-Length")
		out.Body, out.GetBody, out.ContentLength = http.NoBody, nil, int64(len(x.body))
		if len(x.body) > 0 {
			out.Body = io.NopCloser(bytes.NewReader(x.body))
		}
		response, err := base.RoundTrip(out)
		if err != nil {
			continue
		}
		if i == len(x.servers)-1 || !slices.Contains(x.p.RetryOn, response.StatusCode) {
			return response, server
		}
		response.Body.Close()
	}
	return &http.Response{
		StatusCode: 503, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader("upstream connect error")), ContentLength: -1,
	}, ""
}

// recv receives a message from the picker; the end of its stream is an error.
func (x *exchange) recv() (*extprocv3.ProcessingResponse, error) {
	m, err := x.stream.Recv()
	if err == io.EOF {
		return nil, broken("the stream is closed without an answer")
	}
	return m, err
}

// why is the error with which the picker has closed the stream.
func (x *exchange) why(err error) error {
	if err == io.EOF {
		if _, err := x.stream.Recv(); err != nil && err != io.EOF {
			return err
		}
	}
	return err
}

// trailers sends trailers and reads the answer.
func (x *exchange) trailers(m *extprocv3.ProcessingRequest, good func(*extprocv3.ProcessingResponse) bool) error {
	if err := x.stream.Send(m); err != nil {
		return x.why(err)
	}
	answer, err := x.recv()
	if err == nil && !good(answer) {
		err = broken("%T answers trailers", answer.GetResponse())
	}
	return err
}

// refused is the picker's own response.
func (x *exchange) refused(m *extprocv3.ProcessingResponse) *http.Response {
	i := m.GetImmediateResponse()
	if i == nil {
		return nil
	}
	header := http.Header{"Content-Type": {"text/plain"}}
	for _, h := range i.GetHeaders().GetSetHeaders() {
		header.Set(h.GetHeader().GetKey(), string(h.GetHeader().GetRawValue()))
	}
	status := int(i.GetStatus().GetCode())
	return &http.Response{
		Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(i.GetBody())), ContentLength: int64(len(i.GetBody())), Request: x.in,
	}
}

// streamedPiece is a piece of a body in mode FULL_DUPLEX_STREAMED.
func streamedPiece(common *extprocv3.CommonResponse, m *extprocv3.ProcessingResponse) (*extprocv3.StreamedBodyResponse, error) {
	b := common.GetBodyMutation().GetStreamedResponse()
	switch {
	case b == nil:
		return nil, broken("%T comes where a piece of a body should", m.GetResponse())
	case len(b.GetBody()) > MaxPiece:
		return nil, broken("a piece has %d bytes", len(b.GetBody()))
	case len(b.GetBody()) == 0 && !b.GetEndOfStream():
		return nil, broken("a piece is empty, and not the end")
	}
	return b, nil
}

func requestBody(piece []byte, last bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: piece, EndOfStream: last}}}
}

// requestHeader is the header of the request with its start line, in lower case.
func (x *exchange) requestHeader() *corev3.HeaderMap {
	m := headerMap(x.header)
	host := x.in.Host
	if host == "" {
		host = x.in.URL.Host
	}
	for _, h := range [][2]string{{":method", x.in.Method}, {":path", x.in.URL.RequestURI()}, {":authority", host}, {":scheme", "http"}} {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: h[0], RawValue: []byte(h[1])})
	}
	return m
}

func headerMap(h http.Header) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for name, values := range h {
		for _, v := range values {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: strings.ToLower(name), RawValue: []byte(v)})
		}
	}
	return m
}

func (x *exchange) subset() *corev3.Metadata {
	if x.p.Subset == nil {
		return nil
	}
	value := structpb.NewStringValue(strings.Join(x.p.Subset, ","))
	if !x.p.SubsetText {
		list := &structpb.ListValue{}
		for _, s := range x.p.Subset {
			list.Values = append(list.Values, structpb.NewStringValue(s))
		}
		value = structpb.NewListValue(list)
	}
	return metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
}

func metadata(namespace, key string, value *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: value}},
	}}
}

var (
	errClosed = errors.New("extproctest: the response was closed")
	// Envoy would wait for ever.
	errEndless = errors.New("extproctest: a request that is upgraded has no end, and cannot be buffered")
)
