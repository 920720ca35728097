package whole

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience is the time limit of anything that must happen.
const patience = 30 * time.Second

const (
	answer   = `{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Once upon a time"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":4,"total_tokens":104}}`
	event    = `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"Once"}}]}` + "\n\n"
	streamed = event + `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + "data: [DONE]\n\n"
	chatPath = "/v1/chat/completions"
)

// ends is a stage that prefers the first endpoint and records how leases end.
type ends struct {
	mu  sync.Mutex
	all []string
}

func (*ends) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i, c := range candidates {
		dst[i] = 1 / float64(1+len(c.Endpoint.ID)) // "bad" before "better"
	}
}

func (o *ends) Done(_ *endpick.Event, outcome *endpick.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, outcome.Status.String())
}

func (o *ends) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		return "none"
	}
	return strings.Join(o.all, ", ")
}

// gateway is a reverse proxy with the transport, in front of servers.
type gateway struct {
	router *endpick.Router
	ends   *ends
	server *httptest.Server
}

// newGateway has endpoints at these addresses and prefers the first.
func newGateway(t *testing.T, config transport.Config, routing endpick.Config, addresses ...string) *gateway {
	g := &gateway{ends: &ends{}}
	routing.Policy = endpick.Policy{Scorers: []endpick.Weighted{{Scorer: g.ends, Weight: 1}}}
	for i, a := range addresses {
		routing.Endpoints = append(routing.Endpoints, endpick.Endpoint{ID: []string{"bad", "better"}[i], Address: a, Models: []string{"m"}})
	}
	g.router = rig.Must(endpick.New(routing))
	config.Router = g.router
	rt := rig.Must(transport.New(config))
	g.server = httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: rt, ErrorHandler: transport.ErrorHandler, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	})
	g.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	g.server.Config.Protocols = new(http.Protocols)
	g.server.Config.Protocols.SetHTTP1(true)
	g.server.Config.Protocols.SetUnencryptedHTTP2(true)
	g.server.Start()
	t.Cleanup(func() {
		g.server.CloseClientConnections()
		g.server.Close()
		rt.CloseIdleConnections()
	})
	return g
}

// good is a healthy server.
func good(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, _ := io.ReadAll(in.Body)
		kind, text := "application/json", answer
		if bytes.Contains(body, []byte(`"stream":true`)) {
			kind, text = "text/event-stream", streamed
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// ask sends a chat and returns what the client sees. The client leaves when leaves is closed.
func (g *gateway) ask(t *testing.T, stream bool, leaves <-chan struct{}) string {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	gone := false
	var mu sync.Mutex
	if leaves != nil {
		go func() {
			select {
			case <-leaves:
				mu.Lock()
				gone = true
				mu.Unlock()
			case <-ctx.Done():
			}
			cancel()
		}()
	}
	body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, stream, strings.Repeat("Tell me a story. ", 20))
	in := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, g.server.URL+chatPath, strings.NewReader(body)))
	in.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	response, err := client.Do(in)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	if gone {
		return "–, it has left"
	}
	require.NoError(t, ctx.Err(), "the client waits in vain")
	if response == nil {
		return "a connection that breaks"
	}
	return view(response.StatusCode, string(text), err)
}

// view describes what a client sees.
func view(status int, body string, err error) string {
	if err != nil {
		return fmt.Sprintf("%d, cut off", status)
	}
	var problem struct{ Error struct{ Message string } }
	if json.Unmarshal([]byte(body), &problem) == nil && problem.Error.Message != "" {
		return fmt.Sprintf("%d “%s”", status, problem.Error.Message)
	}
	if body == "" && status == http.StatusOK {
		return "200, empty"
	}
	if strings.HasPrefix(body, "data: {\"error\"") {
		return fmt.Sprintf("%d, an error event", status)
	}
	return fmt.Sprintf("%d, complete", status)
}

// leases waits until all are closed and describes how.
func (g *gateway) leases(t *testing.T) (how string) {
	require.Eventually(t, func() bool {
		s := g.router.Stats()
		for _, e := range g.router.Endpoints() {
			if e.Candidate.InFlight != (endpick.InFlight{}) {
				return false
			}
		}
		if how = g.ends.String(); s.Reaped > 0 {
			how = fmt.Sprintf("%s; %d closed by time", how, s.Reaped)
		}
		return s.OpenLeases == 0 && s.Routed == s.Closed
	}, patience, time.Millisecond)
	assert.Zero(t, g.router.Stats().Panics)
	return how
}
