package extproc_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

// played is a stream with prepared messages.
type played struct {
	grpc.ServerStream
	in  []*extprocv3.ProcessingRequest
	out []*extprocv3.ProcessingResponse
}

func (p *played) Context() context.Context { return context.Background() }

func (p *played) Recv() (*extprocv3.ProcessingRequest, error) {
	if len(p.in) == 0 {
		return nil, io.EOF
	}
	m := p.in[0]
	p.in = p.in[1:]
	return m, nil
}

func (p *played) Send(m *extprocv3.ProcessingResponse) error {
	p.out = append(p.out, m)
	return nil
}

// script turns bytes into messages: the low bits of each choose the kind, the others its
// contents.
func script(steps []byte, request, response, header, value string) (all []*extprocv3.ProcessingRequest) {
	modes := []filterv3.ProcessingMode_BodySendMode{inPieces, atOnce, filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_BUFFERED_PARTIAL}
	take := func(from *string, some bool) string {
		n := len(*from)
		if some {
			n /= 2
		}
		piece := (*from)[:n]
		*from = (*from)[n:]
		return piece
	}
	for i, s := range steps {
		kind, how := s&7, s>>3
		end := how&1 != 0
		var m *extprocv3.ProcessingRequest
		switch kind {
		case 0:
			m = requestHeaders(end, header, value)
			if how&2 != 0 {
				m.GetRequestHeaders().Headers = headers(header, value)
			}
		case 1:
			m = requestBody(take(&request, how&2 != 0), end)
		case 2:
			m = requestTrailers()
		case 3:
			m = responseHeaders([]string{"200", "503", "", "9e9", value}[int(how>>1)%5], end, header, value)
		case 4:
			m = responseBody(take(&response, how&2 != 0), end)
		case 5:
			m = responseTrailers()
		case 6:
			m = subset(requestHeaders(end), strings.ToValidUTF8(value, "?"))
			if how&2 != 0 {
				m = served(responseHeaders("200", end), strings.ToValidUTF8(value, "?"))
			}
		default:
			m = &extprocv3.ProcessingRequest{}
		}
		if i == 0 {
			m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: modes[len(value)%5], ResponseBodyMode: modes[len(header)%5]}
		}
		all = append(all, m)
	}
	return all
}

// Whatever a proxy sends, in whatever order, nothing panics, each message gets at
// most one answer (but for pieces of bodies) or a status, and no lease stays open.
func FuzzProcess(f *testing.F) {
	usual := []byte{0, 1 | 1<<3, 3, 4 | 2<<3, 4 | 1<<3}
	for _, value := range []string{"", "a", "ab", "abc", "abcd"} { // all modes
		f.Add(usual, chatBody, events+usage+done, "x-mode", value)
		f.Add(usual, chatBody, events+usage+done, "x", value)
	}
	f.Add([]byte{0 | 1<<3, 3 | 1<<3}, "", "", "content-length", "-1")
	f.Add([]byte{0, 1, 1, 2, 3, 4, 5}, chatBody, events, "content-encoding", "gzip")
	f.Add([]byte{3, 0, 0, 4, 1, 7}, "{}", "", "x-slo-ttft-ms", "1e300")
	f.Add([]byte{6, 1 | 1<<3, 6 | 2<<3, 4 | 1<<3}, chatBody, events, "host", "10.0.0.2:8000")
	f.Add([]byte{0 | 2<<3, 1 | 1<<3}, chatBody, events, ":path", "/v1/messages")
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: &heard{order: "ab"}, Weight: 1}}},
		Endpoints: []endpick.Endpoint{{ID: "a", Address: "10.0.0.1:8000", Models: []string{"m"}}, {ID: "b", Address: "10.0.0.2:8000"}},
	})
	require.NoError(f, err)
	var mu sync.Mutex
	var panicked error
	server, err := extproc.New(extproc.Config{
		Dispatcher: transport.Config{Router: router, MaxBodyBytes: 1 << 16, Fallbacks: 1},
		Warn: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if p := (*endpick.PanicError)(nil); errors.As(err, &p) {
				panicked = err
			}
		},
	})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, steps []byte, request, response, header, value string) {
		if len(steps) > 64 || len(request)+len(response) > 1<<17 {
			return
		}
		stream := &played{in: script(steps, request, response, header, value)}
		err := server.Process(stream)
		mu.Lock()
		defer mu.Unlock()
		require.NoError(t, panicked)
		if err != nil {
			_, ok := status.FromError(err)
			require.True(t, ok, "%v", err)
		}
		others := 0
		for _, m := range stream.out {
			if m.GetRequestBody() == nil && m.GetResponseBody() == nil {
				others++
			}
		}
		require.LessOrEqual(t, others, len(steps))
		require.Zero(t, router.Stats().OpenLeases)
		for _, e := range router.Endpoints() {
			require.Zero(t, e.Candidate.InFlight)
		}
	})
}
