package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
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
	p := expose(t, &httputil.ReverseProxy{ // the transport sets the target
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: rt, ErrorHandler: transport.ErrorHandler, ErrorLog: log.New(io.Discard, "", 0),
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

// withWebSocket adds Ollama's API, and the WebSocket of /v1/responses: each message comes back as an event.
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

// recorder is a listener that keeps every byte sent to its clients.
type recorder struct {
	net.Listener
	mu    sync.Mutex
	conns []*recorded
	clock int // counts writes
}

// recorded is one connection.
type recorded struct {
	net.Conn
	recorder *recorder
	sent     []byte
	marks    []mark
}

// mark is when the bytes from an offset on were sent.
type mark struct{ offset, clock int }

func (r *recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &recorded{Conn: c, recorder: r}
	r.conns = append(r.conns, one)
	return one, nil
}

func (c *recorded) Write(p []byte) (int, error) {
	c.recorder.mu.Lock()
	c.recorder.clock++
	c.marks = append(c.marks, mark{len(c.sent), c.recorder.clock})
	c.sent = append(c.sent, p...)
	c.recorder.mu.Unlock()
	return c.Conn.Write(p)
}

// exchange is one response as sent over the wire.
type exchange struct {
	clock  int
	status int
	header http.Header
	body   string
	cut    bool // the connection broke before the last event, or before the end of a response that does not stream
}

// exchanges returns all responses in the order in which they began.
func (r *recorder) exchanges() (all []exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		rest := bytes.NewReader(c.sent)
		buffered := bufio.NewReader(rest)
		for {
			offset := len(c.sent) - rest.Len() - buffered.Buffered()
			resp, err := http.ReadResponse(buffered, nil)
			if err != nil {
				break // the connection has ended, or the client left before the header
			}
			i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].offset > offset }) - 1
			e := exchange{clock: c.marks[i].clock, status: resp.StatusCode, header: resp.Header}
			if resp.StatusCode == http.StatusSwitchingProtocols {
				left, _ := io.ReadAll(buffered)
				e.body = string(left)
				all = append(all, e)
				break
			}
			body, err := io.ReadAll(resp.Body)
			e.body, e.cut = string(body), errors.Is(err, io.ErrUnexpectedEOF) && !lastEvent.Match(body)
			if len(resp.TransferEncoding) > 0 {
				e.header["Transfer-Encoding"] = resp.TransferEncoding
			}
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b exchange) int { return a.clock - b.clock })
	return all
}

var (
	ids   = regexp.MustCompile(`\b(chatcmpl|cmpl|msg|resp|rs|fc|call|toolu|aitxt)[-_][0-9A-Za-z]{8,}`)
	times = regexp.MustCompile(`("(?:created|created_at|completed_at|timestamp)":)("[^"]*"|[0-9.]+)`)
	// llama.cpp reports how long everything took.
	timings = regexp.MustCompile(`,?"timings":\{[^{}]*\}`)
	// Clients may leave once they have it, before the chunk that ends the body.
	lastEvent = regexp.MustCompile(`(?:\[DONE\]|"(?:message_stop|response\.(?:completed|incomplete|failed))"[^\n]*)\n\n$`)
	host      = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// normal numbers IDs in order of appearance and removes times and addresses.
func normal(s string) string {
	names := map[string]string{}
	s = ids.ReplaceAllStringFunc(s, func(id string) string {
		if names[id] == "" {
			names[id] = fmt.Sprintf("%s#%d", ids.FindStringSubmatch(id)[1], len(names)+1)
		}
		return names[id]
	})
	s = times.ReplaceAllString(s, "${1}0")
	s = timings.ReplaceAllString(s, "")
	return host.ReplaceAllString(s, "HOST")
}

// run is the result of a scenario: what the client received, and what was sent.
type run struct {
	told string
	wire []exchange
}

// values returns a header's values, without what may differ: dates, keys, lengths of
// bodies with other IDs or times, and hop-by-hop values.
func (e *exchange) values(name string) []string {
	switch values := e.header.Values(name); {
	case name == "Keep-Alive" || name == "Date":
		return nil
	case len(values) == 1 && name == "Sec-Websocket-Accept":
		return []string{"any"}
	case len(values) == 1 && name == "Content-Length" && values[0] == strconv.Itoa(len(e.body)):
		return []string{"right"}
	default:
		return values
	}
}

// differences names what two runs do not have in common, each thing once. In an open
// run the client has left, and how much it was sent by then is up to chance. So is
// an error that a client has answered with a retry: it need not read it.
func differences(direct, gateway run, open bool) []string {
	found := map[string]string{}
	if a, b := normal(direct.told), normal(gateway.told); a != b {
		found["what the client is told"] = firstDifference(a, b)
	}
	if len(direct.wire) != len(gateway.wire) {
		found["the number of responses"] = fmt.Sprintf("%d and %d", len(direct.wire), len(gateway.wire))
	}
	for i := range min(len(direct.wire), len(gateway.wire)) {
		a, b := direct.wire[i], gateway.wire[i]
		if a.status != b.status {
			found["status"] = fmt.Sprintf("%d and %d", a.status, b.status)
		}
		names := maps.Clone(a.header)
		maps.Copy(names, b.header)
		for name := range names {
			x, y := a.values(name), b.values(name)
			if !slices.Equal(x, y) {
				found["header "+name] = fmt.Sprintf("%q and %q", x, y)
			}
		}
		x, y := normal(a.body), normal(b.body)
		if asked := i+1 < len(direct.wire) && a.status >= 500; open || asked {
			n := min(len(x), len(y))
			x, y = x[:n], y[:n]
			a.cut, b.cut = false, false
		}
		if x != y {
			found["body"] = firstDifference(x, y)
		}
		if a.cut != b.cut {
			found["end"] = fmt.Sprintf("cut %v and %v", a.cut, b.cut)
		}
	}
	var list []string
	for what, how := range found {
		list = append(list, what+": "+how)
	}
	slices.Sort(list)
	return list
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	i := 0
	for i < min(len(x), len(y)) && x[i] == y[i] {
		i++
	}
	return fmt.Sprintf("line %d:\n  directly: %.600q\n  gateway:  %.600q\n", i+1, x[i:min(i+1, len(x))], y[i:min(i+1, len(y))])
}

var (
	asksForError = regexp.MustCompile(`\[\[error (\d+)`)
	ollamaPages  = map[string]string{
		"/api/version": `{"version":"0.17.4"}`,
		"/api/tags":    `{"models":[{"name":"` + model + `","size":7,"details":{"family":"llama"}}]}`,
		"/api/show":    `{"model_info":{"general.parameter_count":1},"capabilities":["completion","tools"]}`,
		"/api/embed":   `{"model":"` + model + `","embeddings":[[0.5,-0.25],[0.125,1]],"load_duration":1,"prompt_eval_count":9}`,
	}
)

// ollama answers as an Ollama server does: with as many words as are asked for, the first of
// them thoughts if these are, and a call of the tool.
func ollama(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string
		Messages []struct{ Content string }
		Tools    []any
		Think    bool
		Stream   *bool
		Options  struct{ Num_predict int }
	}
	_ = json.NewDecoder(r.Body).Decode(&q)
	streams := q.Stream == nil || *q.Stream
	asked, page := "", ollamaPages[r.URL.Path]
	for _, m := range q.Messages {
		asked = m.Content
	}
	status, kind := http.StatusOK, "application/json; charset=utf-8"
	if m := asksForError.FindStringSubmatch(asked); m != nil {
		_, _ = fmt.Sscan(m[1], &status)
		page = `{"error":"as asked for"}`
		w.Header().Set("Retry-After", "7")
	} else if r.Method == http.MethodPost && q.Model != model {
		status, page = http.StatusNotFound, fmt.Sprintf(`{"error":"model '%s' not found"}`, q.Model)
	} else if streams && page == "" {
		kind = "application/x-ndjson"
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(page))
	if page != "" {
		return
	}
	form := `"response":%q,"thinking":%q%.0s`
	if r.URL.Path == "/api/chat" {
		form = `"message":{"role":"assistant","content":%q,"thinking":%q%s}`
	}
	send := func(words, thoughts, more string) {
		calls := ""
		if len(q.Tools) > 0 && (more == "" || !streams) {
			calls = `,"tool_calls":[{"function":{"name":"weather","arguments":{"city":"Paris","days":[1,2]}}}]`
		}
		fmt.Fprintf(w, `{"model":%q,%s,"done":%t%s}`+"\n", model, fmt.Sprintf(form, words, thoughts, calls), more != "", more)
		_ = http.NewResponseController(w).Flush()
	}
	words, thought := strings.Repeat(" wörd", q.Options.Num_predict), map[bool]string{true: "hm <é>"}[q.Think]
	if streams {
		send("", thought, "")
		for range q.Options.Num_predict {
			if time.Sleep(time.Millisecond); r.Context().Err() != nil {
				return
			}
			send(" wörd", "", "")
		}
		words, thought = "", ""
	}
	send(words, thought, `,"done_reason":"stop","load_duration":1,"prompt_eval_count":5,"eval_count":12`)
}
