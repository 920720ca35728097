package conformance

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/conformance/extproctest"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

// behindPicker are servers chosen by an endpoint picker, with a client of the
// protocol in place of Envoy. That client upgrades no connections.
var behindPicker = fleet{
	name: "picker", targets: []func(*testing.T) *target{directly, throughPicker}, without: []string{"WebSocket"},
}

func throughPicker(t *testing.T) *target {
	c := rig.Must(all.ByName("lmetric"))
	var servers []*modelserver.Server
	for range 3 {
		s := newServer(t)
		one := httptest.NewUnstartedServer(s)
		one.Config.ErrorLog = log.New(io.Discard, "", 0)
		one.Start()
		t.Cleanup(one.Close)
		servers = append(servers, s)
		c.Endpoints = append(c.Endpoints, endpick.Endpoint{Address: one.URL, Models: []string{model}})
	}
	router := rig.Must(endpick.New(c))
	picker := rig.Must(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2, SharedCache: true}}))
	conn, stop, err := extproctest.Start(picker)
	require.NoError(t, err)
	base := &http.Transport{DisableCompression: true}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		require.NoError(t, stop())
	})
	p := expose(t, &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {}, // the picker sets the target
		Transport:     &extproctest.Proxy{Picker: conn, RetryOn: []int{502, 503}, Base: base},
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
			// A body that may be changed loses its length, as with Envoy.
			return strings.HasPrefix(one, "header Content-Length: ") || strings.HasPrefix(one, "header Transfer-Encoding: ")
		})
		assert.Empty(t, o.differs, "%s, %s, %s", o.client, o.api, o.scenario)
	}
	t.Logf("%d scenarios", len(all))
}
