package extproc_test

import (
	"fmt"
	"io"
	"net"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// echo is the cheapest possible processor: it returns what it receives, in mode
// FULL_DUPLEX_STREAMED, or says that nothing changes.
type echo struct {
	extprocv3.UnimplementedExternalProcessorServer
	buffered bool
}

func (e echo) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	back := func(b *extprocv3.HttpBody) *extprocv3.BodyResponse {
		if e.buffered {
			return &extprocv3.BodyResponse{}
		}
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
			out.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: back(m.RequestBody)}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			out.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: back(m.ResponseBody)}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// BenchmarkAdded measures what a picker adds to a request, compared with a processor
// that only echoes, over a connection of the same kind and with alternating exchanges,
// so that other load on the machine affects both equally. ask is the median time from
// the request's header to the last byte that the server gets; cpu is the processor
// time of a whole exchange with a response in 51 pieces, client and server together.
// The policy is lmetric with its index, over 100 endpoints.
func BenchmarkAdded(b *testing.B) {
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{inPieces, atOnce} {
		for _, prompt := range []int{4 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%dk", mode, prompt>>10), func(b *testing.B) {
				body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("All work and no play. ", prompt/22) + `"}]}`
				sides := []*side{
					{conn: processor(b, func(g *grpc.Server) {
						extprocv3.RegisterExternalProcessorServer(g, echo{buffered: mode == atOnce})
					})},
					{conn: processor(b, func(g *grpc.Server) { hundred().Register(g) })},
				}
				for _, s := range sides {
					s.measure(b, mode, body) // dials
					*s = side{conn: s.conn}
				}
				for b.Loop() {
					for _, s := range sides {
						s.measure(b, mode, body)
					}
					sides[0], sides[1] = sides[1], sides[0]
				}
				if b.N%2 == 1 { // restored
					sides[0], sides[1] = sides[1], sides[0]
				}
				report(b, sides[0], sides[1])
			})
		}
	}
}

// side is one of the two processors being compared.
type side struct {
	conn   *grpc.ClientConn
	asks   []time.Duration
	cpu    time.Duration
	allocs uint64
}

func (s *side) measure(b *testing.B, mode filterv3.ProcessingMode_BodySendMode, body string) {
	cpu, objects := processorTime(), allocated()
	s.asks = append(s.asks, exchange(b, s.conn, mode, body))
	s.cpu += processorTime() - cpu
	s.allocs += allocated() - objects
}

func report(b *testing.B, echoed, picked *side) {
	median := func(s *side) float64 {
		slices.Sort(s.asks)
		return float64(s.asks[len(s.asks)/2].Nanoseconds()) / 1000
	}
	e, p := median(echoed), median(picked)
	b.ReportMetric(0, "ns/op") // of both together, so meaningless
	b.ReportMetric(e, "echo-ask-us")
	b.ReportMetric(p, "pick-ask-us")
	b.ReportMetric(p/e, "ask-ratio")
	b.ReportMetric(float64(picked.cpu)/float64(echoed.cpu), "cpu-ratio")
	b.ReportMetric(float64(picked.cpu.Microseconds())/float64(b.N), "pick-cpu-us")
	b.ReportMetric(float64(picked.allocs)/float64(echoed.allocs), "allocs-ratio")
}

// hundred returns a picker over 100 endpoints.
func hundred() *extproc.Server {
	config := all.LMetric()
	for i := range 100 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Models: []string{"m"}})
	}
	router := rig.Must(endpick.New(config))
	return rig.Must(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2}}))
}

// processor returns a connection to a processor until the benchmark ends.
func processor(b *testing.B, register func(*grpc.Server)) *grpc.ClientConn {
	g, l := grpc.NewServer(), rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	register(g)
	go g.Serve(l)
	b.Cleanup(g.Stop)
	return connect(b, l.Addr().String(), noTLS)
}

// exchange is one request and its response, in 51 pieces or at once. It returns how
// long the request took.
func exchange(b *testing.B, conn *grpc.ClientConn, mode filterv3.ProcessingMode_BodySendMode, body string) time.Duration {
	c := (&world{conn: conn}).talk(b, mode)
	defer c.cancel()
	began := time.Now()
	const piece = `data: {"choices":[{"delta":{"content":"Hello!"}}]}` + "\n\n"
	c.head(requestHeaders(false, "content-length", strconv.Itoa(len(body))))
	if mode == atOnce {
		c.send(requestBody(body, true))
		c.recv()
		asking := time.Since(began)
		c.respond("200")
		c.send(responseBody(strings.Repeat(piece, 50)+done, true))
		c.recv()
		return asking
	}
	for len(body) > 0 {
		n := min(len(body), 16<<10)
		c.send(requestBody(body[:n], n == len(body)))
		body = body[n:]
	}
	for !c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
	}
	asking := time.Since(began)
	c.respond("200")
	for range 50 {
		c.send(responseBody(piece, false))
		c.recv()
	}
	c.send(responseBody(done, true))
	for !c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
	}
	return asking
}

// processorTime is the CPU time used by this process, which other processes hardly affect.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocated is the number of objects this process has allocated.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
