package conformance

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/require"
)

const model = modelserver.DefaultModel

// target is something to point a client at, with the servers behind it.
type target struct {
	url     string
	server  *httptest.Server // as the client sees it
	wire    *recorder
	servers []*modelserver.Server
	router  *endpick.Router // nil: there is no gateway
}

// expose listens for clients.
func expose(t *testing.T, h http.Handler) *target {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	p := &target{url: "http://" + l.Addr().String(), wire: &recorder{Listener: l}}
	p.server = &httptest.Server{Listener: p.wire, Config: &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}}
	p.server.Start()
	t.Cleanup(p.server.Close)
	return p
}

func newServer(t *testing.T) *modelserver.Server {
	s := rig.Must(modelserver.New(modelserver.Config{Engine: engine.Config{
		Profile: engine.Profile{Name: "test", StepMicros: 1000, TokenMicros: 1}, Blocks: 2000,
	}}))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// directly is one fresh server.
func directly(t *testing.T) *target {
	s := newServer(t)
	p := expose(t, withWebSocket(s))
	p.servers = append(p.servers, s)
	return p
}

// three starts as many fresh servers.
func three(t *testing.T, as func(http.Handler) http.Handler) (servers []*modelserver.Server, urls []string) {
	for range 3 {
		s := newServer(t)
		one := httptest.NewUnstartedServer(as(s))
		one.Config.ErrorLog = log.New(io.Discard, "", 0)
		one.Start()
		t.Cleanup(one.Close)
		servers, urls = append(servers, s), append(urls, one.URL)
	}
	return servers, urls
}

// throughGateway is a gateway before three fresh servers.
func throughGateway(t *testing.T) *target {
	servers, urls := three(t, withWebSocket)
	p := gatewayBefore(t, urls, []string{model})
	p.servers = servers
	return p
}

// gatewayBefore is the simplest application of endpick.
func gatewayBefore(t *testing.T, urls, models []string) *target {
	c := rig.Must(all.ByName("lmetric"))
	for _, url := range urls {
		c.Endpoints = append(c.Endpoints, endpick.Endpoint{Address: url, Models: models})
	}
	return gateway(t, c, transport.Config{SharedCache: true})
}

func gateway(t *testing.T, c endpick.Config, config transport.Config) *target {
	config.Router = rig.Must(endpick.New(c))
	rt := rig.Must(transport.New(config))
	t.Cleanup(rt.CloseIdleConnections)
	p := expose(t, &httputil.ReverseProxy{
		Rewrite:      func(*httputil.ProxyRequest) {}, // the transport sets the target
		Transport:    rt,
		ErrorHandler: transport.ErrorHandler,
		ErrorLog:     log.New(io.Discard, "", 0),
	})
	p.router = config.Router
	return p
}

// settled waits until nothing is in flight and returns what was sent.
func (p *target) settled(t *testing.T) []exchange {
	for _, s := range p.servers {
		require.Eventually(t, func() bool {
			l := s.Load()
			return l.Running == 0 && l.Waiting == 0
		}, 20*time.Second, time.Millisecond, "an engine goes on although its client has left")
	}
	p.server.CloseClientConnections()
	p.server.Close()
	if p.router != nil {
		require.Eventually(t, func() bool { return p.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
	}
	return p.wire.exchanges()
}

// withWebSocket adds Ollama's API, and the WebSocket of /v1/responses: each message comes back as an
// event.
func withWebSocket(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("/api/", ollama)
	mux.HandleFunc("GET /v1/responses", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			event := append(append([]byte(`{"type":"response.output_text.delta","sequence_number":0,"item_id":"i","output_index":0,"content_index":0,"logprobs":[],"delta":"heard","echo":`), data...), '}')
			if c.Write(r.Context(), kind, event) != nil {
				return
			}
		}
	})
	return mux
}
