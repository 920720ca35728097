package conformance

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// behindPicker are servers that a real Envoy asks an endpoint picker for.
var behindPicker = fleet{
	name: "picker", targets: []func(*testing.T) *target{directly, throughPicker}, without: []string{"WebSocket"},
}

func throughPicker(t *testing.T) *target {
	c := rig.Must(all.ByName("lmetric"))
	servers, urls := three(t, func(h http.Handler) http.Handler { return h })
	var addresses []string
	for _, url := range urls {
		addresses = append(addresses, strings.TrimPrefix(url, "http://"))
		c.Endpoints = append(c.Endpoints, endpick.Endpoint{Address: url, Models: []string{model}})
	}
	router := rig.Must(endpick.New(c))
	picker := rig.Must(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2, SharedCache: true}}))
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(envoy.TLS())))
	extprocv3.RegisterExternalProcessorServer(g, picker)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	at := rig.Must(url.Parse(envoy.Start(t, "../../../examples/epp/envoy.yaml", l.Addr().String(), addresses, "message_timeout: 5s", "message_timeout: 60s")))
	base := &http.Transport{DisableCompression: true}
	t.Cleanup(base.CloseIdleConnections)
	p := expose(t, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(at) },
		Transport:     base,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	})
	p.servers, p.router = servers, router
	return p
}

// Clients behind the picker see the same as clients of a server, except for
// what docs/extproc.md lists.
func TestClientsBehindThePicker(t *testing.T) {
	var all []outcome
	all = append(all, behindPicker.runGo(t, "openai-go", "chat", openaiChat)...)
	all = append(all, behindPicker.runGo(t, "openai-go", "responses", openaiResponses)...)
	all = append(all, behindPicker.runGo(t, "anthropic-sdk-go", "messages", anthropicMessages)...)
	require.Greater(t, len(all), 30)
	for _, o := range all {
		o.differs = slices.DeleteFunc(o.differs, func(one string) bool {
			// Of any Envoy. A body that may be changed loses its length.
			return slices.ContainsFunc([]string{"Content-Length", "Transfer-Encoding", "Server", "X-Envoy-Upstream-Service-Time"}, func(name string) bool {
				return strings.HasPrefix(one, "header "+name+": ")
			})
		})
		assert.Empty(t, o.differs, "%s, %s, %s", o.client, o.api, o.scenario)
	}
	t.Logf("%d scenarios", len(all))
}
