package extproc_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/extproc/extproctest"
	"github.com/endpick/endpick/transport/transporttest"
)

// A proxy that uses the picker, in either mode, leaves its accounts correct, however an
// engine misbehaves.
func TestThePickerConforms(t *testing.T) {
	for _, mode := range []string{"full duplex", "buffered"} {
		t.Run(mode, func(t *testing.T) {
			transporttest.RunPicker(t, func(t *testing.T, router *endpick.Router) http.Handler {
				server, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router}})
				require.NoError(t, err)
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				ctx, stop := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(ctx, l) }()
				conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(noTLS))
				require.NoError(t, err)
				base := &http.Transport{DisableCompression: true}
				t.Cleanup(func() {
					base.CloseIdleConnections()
					conn.Close()
					stop()
					assert.NoError(t, <-ended)
				})
				return &httputil.ReverseProxy{
					Rewrite:       func(*httputil.ProxyRequest) {},
					Transport:     &extproctest.Proxy{Picker: conn, Buffered: mode == "buffered", Base: base},
					FlushInterval: -1,
					ErrorLog:      log.New(io.Discard, "", 0),
				}
			})
		})
	}
}
