package extproctest

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// pass sends a response through the picker.
func (x *exchange) pass(response *http.Response, served string) (*http.Response, error) {
	header := headerMap(response.Header)
	header.Headers = append(header.Headers, &corev3.HeaderValue{Key: ":status", RawValue: []byte(strconv.Itoa(response.StatusCode))})
	if response.ContentLength >= 0 {
		header.Headers = append(header.Headers, &corev3.HeaderValue{Key: "content-length", RawValue: []byte(strconv.FormatInt(response.ContentLength, 10))})
	}
	upgraded := response.StatusCode == http.StatusSwitchingProtocols
	empty := response.ContentLength == 0 && !upgraded || x.in.Method == http.MethodHead
	head := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: header, EndOfStream: empty}},
	}
	if served != "" {
		head.MetadataContext = metadata("envoy.lb", "x-gateway-destination-endpoint-served", structpb.NewStringValue(served))
	}
	m, err := x.exchangeOf(head)
	if err == nil && m.GetResponseHeaders() == nil {
		err = broken("%T answers the header of a response", m.GetResponse())
	}
	if err != nil {
		response.Body.Close()
		return nil, err
	}
	response.Request = x.in
	if upgraded {
		return response, x.passUpgraded(response)
	}
	if empty {
		response.Body.Close()
		response.Body = http.NoBody
		x.cancelLater()
		return response, nil
	}
	response.Header.Del("Content-Length") // as Envoy does if a body may be changed
	response.ContentLength, response.TransferEncoding = -1, nil
	if x.p.Buffered {
		return response, x.passBuffered(response)
	}
	x.passInPieces(response)
	return response, nil
}

func (x *exchange) exchangeOf(m *extprocv3.ProcessingRequest) (*extprocv3.ProcessingResponse, error) {
	if err := x.stream.Send(m); err != nil {
		return nil, x.why(err)
	}
	return x.recv()
}

func (x *exchange) passBuffered(response *http.Response) error {
	defer response.Body.Close()
	whole, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	trailers := len(response.Trailer) > 0
	m, err := x.exchangeOf(responseBody(whole, !trailers))
	if err != nil {
		return err
	}
	common := m.GetResponseBody().GetResponse()
	if common == nil {
		return broken("%T answers the body of a response", m.GetResponse())
	}
	switch b := common.GetBodyMutation().GetMutation().(type) {
	case nil:
	case *extprocv3.BodyMutation_Body:
		whole = b.Body
	case *extprocv3.BodyMutation_ClearBody:
		whole = nil
	default:
		return broken("a body that was buffered is changed by %T", b)
	}
	if trailers {
		if err := x.trailers(responseTrailers(response.Trailer), func(m *extprocv3.ProcessingResponse) bool { return m.GetResponseTrailers() != nil }); err != nil {
			return err
		}
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(whole)), int64(len(whole))
	x.cancelLater()
	return nil
}

// passInPieces shows the response to the picker while the client reads it.
func (x *exchange) passInPieces(response *http.Response) {
	upstream, trailer := response.Body, response.Trailer
	out, in := io.Pipe()
	var cut atomic.Pointer[error] // the server's error
	response.Body = &pipeBody{PipeReader: out, close: func() { x.cancel(); upstream.Close() }}
	go func() { // to the picker
		defer upstream.Close()
		piece := make([]byte, 16<<10)
		for {
			n, err := upstream.Read(piece)
			switch {
			case err != nil && err != io.EOF: // what the picker holds is still passed on
				cut.Store(&err)
				_ = x.stream.CloseSend()
				return
			case n > 0 || err == io.EOF && len(trailer) == 0:
				if x.stream.Send(responseBody(piece[:n], err == io.EOF && len(trailer) == 0)) != nil {
					return // Recv returns the reason
				}
			}
			if err == io.EOF {
				if len(trailer) > 0 {
					_ = x.stream.Send(responseTrailers(trailer))
				}
				return
			}
		}
	}()
	go func() { // from the picker
		defer x.cancelLater()
		for {
			m, err := x.recv()
			if err == nil && m.GetResponseTrailers() != nil && len(trailer) > 0 {
				in.Close()
				return
			}
			if broken := cut.Load(); err != nil && broken != nil {
				err = *broken
			}
			if err != nil {
				in.CloseWithError(err)
				x.cancel()
				return
			}
			b, err := streamedPiece(m.GetResponseBody().GetResponse(), m)
			if err == nil {
				_, err = in.Write(b.GetBody())
			}
			if err != nil {
				in.CloseWithError(err)
				x.cancel()
				return
			}
			if b.GetEndOfStream() {
				in.Close()
				return
			}
		}
	}()
}

// cancelLater ends the stream as a proxy does that has no more to send.
func (x *exchange) cancelLater() {
	_ = x.stream.CloseSend()
	_, _ = x.stream.Recv() // the end
	x.cancel()
}

func responseBody(piece []byte, last bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: piece, EndOfStream: last}}}
}

func responseTrailers(h http.Header) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(h)}}}
}

type pipeBody struct {
	*io.PipeReader
	once  sync.Once
	close func()
}

func (b *pipeBody) Close() error {
	err := b.PipeReader.CloseWithError(errClosed)
	b.once.Do(b.close)
	return err
}
