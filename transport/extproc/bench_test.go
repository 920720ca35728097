//go:build unix

package extproc_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/seam"
)

// echo is the least that a processor can do: it gives back what comes.
type echo struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (echo) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	streamed := func(b *extprocv3.HttpBody) *extprocv3.BodyResponse {
		return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b.GetBody(), EndOfStream: b.GetEndOfStream()}},
		}}}
	}
	for {
		in, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		out := &extprocv3.ProcessingResponse{}
		switch m := in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			out.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_RequestBody:
			out.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: streamed(m.RequestBody)}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			out.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: streamed(m.ResponseBody)}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// What a picker adds to a request: the time from its header to the last byte that the
// server gets (ask-us), and for a whole exchange with 50 pieces of a response (ns/op,
// and the processor's time of client and server together, cpu-us), against a processor
// that only echoes. The policy is lmetric with its index, over 100
// endpoints.
func BenchmarkExchange(b *testing.B) {
	for _, prompt := range []int{4 << 10, 64 << 10} {
		body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("All work and no play. ", prompt/22) + `"}]}`
		for _, name := range []string{"echo", "endpick"} {
			b.Run(fmt.Sprintf("%s/%dk", name, prompt>>10), func(b *testing.B) {
				config := preset.LMetric()
				for i := range 100 {
					config.Endpoints = append(config.Endpoints, endpick.Endpoint{Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Models: []string{"m"}})
				}
				router, err := endpick.New(config)
				if err != nil {
					b.Fatal(err)
				}
				server, err := extproc.New(extproc.Config{Seam: seam.Config{Router: router, Fallbacks: 2}})
				if err != nil {
					b.Fatal(err)
				}
				g := grpc.NewServer()
				if name == "echo" {
					extprocv3.RegisterExternalProcessorServer(g, echo{})
				} else {
					server.Register(g)
				}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				go g.Serve(l)
				defer g.Stop()
				conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(noTLS))
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				exchange(b, conn, body) // dials
				before := processorTime()
				var asking time.Duration
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					asking += exchange(b, conn, body)
				}
				b.ReportMetric(float64((processorTime()-before).Microseconds())/float64(b.N), "cpu-us")
				b.ReportMetric(float64(asking.Microseconds())/float64(b.N), "ask-us")
			})
		}
	}
}

// exchange is one request and its response in 50 pieces. It returns how long the
// request took.
func exchange(b *testing.B, conn *grpc.ClientConn, body string) time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		b.Fatal(err)
	}
	send := func(m *extprocv3.ProcessingRequest) {
		if err := stream.Send(m); err != nil {
			b.Fatal(err)
		}
	}
	recv := func() *extprocv3.ProcessingResponse {
		m, err := stream.Recv()
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	began := time.Now()
	send(requestHeaders(false, "content-length", strconv.Itoa(len(body))))
	for len(body) > 0 {
		n := min(len(body), 16<<10)
		send(requestBody(body[:n], n == len(body)))
		body = body[n:]
	}
	for !recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
	}
	asking := time.Since(began)
	send(responseHeaders("200", false))
	recv()
	for range 50 {
		send(responseBody(`data: {"choices":[{"delta":{"content":"Hello!"}}]}`+"\n\n", false))
		recv()
	}
	send(responseBody(done, true))
	for !recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
	}
	return asking
}

// processorTime is what this process has used, which other processes change little.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
