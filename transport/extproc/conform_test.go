package extproc_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/transporttest"
)

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
			l := listener(t, "127.0.0.1:0")
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
