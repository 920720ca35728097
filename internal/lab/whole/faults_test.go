package whole

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of docs/faults.md")

// page contains the tables, after this line.
const (
	page = "../../../docs/faults.md"
	mark = "<!-- go test -run Faults ./internal/lab/whole -update -->\n"
)

// row is a fault and what is observed.
type row struct {
	name  string
	cells []string
}

// part is a table.
type part struct {
	title, columns string
	about          string
	least          int // minimum number of rows
	rows           func(t *testing.T) []row
}

// Whatever the fault, client and accounts see what docs/faults.md says.
func TestFaults(t *testing.T) {
	parts := []part{
		{"Servers", "the server … | a client sees | leases | beside a good server it sees | leases",
			"Each server is one of `transporttest.Faults`. *Leases* lists how they ended, in order.", 85, serverFaults},
		{"Clients", "the client … | it sees | leases", "Bodies of 16 KiB, in shapes that are meant to cost a gateway more than their length suggests, and exchanges of `internal/lab/suite`.", 64, clientInputs},
		{"Clients, byte by byte", "the client … | it sees | leases", "Over HTTP/1.1. Some are refused by `net/http` before the gateway hears of them.", 20, wires},
		{"Clients over HTTP/2", "the client … | it sees | leases", "In the clear, frame by frame.", 15, http2Clients},
		{"HTTP/2", "the server … | a client sees | leases", "In the clear, frame by frame. One is left out: a server that opens a stream's window beyond 2³¹ bytes hangs, because `net/http` of Go 1.26 deadlocks.", 12, http2Faults},
		{"TLS", "the server … | a client sees | leases", "", 10, tlsFaults},
		{"Half-open connections", "the server … | a client sees | leases", "`FirstByteTimeout`, `StallTimeout` and `ResponseTimeout` are very short here.", 6, halfOpen},
		{"DNS and discovery", "the list of servers … | who asks is told | endpoints | a client sees", "Package `discover` over DNS and over a list.", 8, lyingNames},
		{"Clocks", "the router's clock … | a client sees | leases", "", 6, jumpingClocks},
		{"Full disks", "what is written … | a client sees | what tells", "", 3, fullDisks},
	}
	before := runtime.NumGoroutine()
	tables := make([]string, len(parts))
	for i, p := range parts {
		t.Run(p.title, func(t *testing.T) {
			rows := p.rows(t)
			assert.GreaterOrEqual(t, len(rows), p.least)
			tables[i] = p.markdown(rows)
		})
	}
	assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, patience, 10*time.Millisecond, "goroutines stay")
	if t.Failed() || slices.Contains(tables, "") { // not all were selected
		return
	}
	head, old, ok := strings.Cut(string(rig.Must(os.ReadFile(page))), mark)
	require.True(t, ok, "%s has no place for the tables", page)
	all := "\n" + strings.Join(tables, "\n")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(head+mark+all), 0o644))
		return
	}
	assert.Equal(t, old, all, "run with -update")
}

// shorter is what the page says instead: numbers differ from body to body, and the page
// says once what the gateway's own errors are.
var shorter = []struct {
	long *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`more than \d+ (.*) in \d+ bytes`), "more than n $1 in so many bytes"},
	{regexp.MustCompile(`502 “the model server failed before it answered”`), "502"},
	{regexp.MustCompile(`503 “no server is available”`), "503"},
	{regexp.MustCompile(`504 “the model server did not answer in time”`), "504"},
}

// markdown has a line for each outcome, with the faults that lead to it.
func (p *part) markdown(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", p.title)
	if p.about != "" {
		fmt.Fprintf(&b, "%s\n\n", p.about)
	}
	fmt.Fprintf(&b, "| %s |\n|%s\n", p.columns, strings.Repeat("---|", strings.Count(p.columns, "|")+1))
	names := map[string][]string{}
	var outcomes []string
	for _, r := range rows {
		outcome := strings.Join(r.cells, " | ")
		for _, s := range shorter {
			outcome = s.long.ReplaceAllString(outcome, s.by)
		}
		if code, ok := strings.CutPrefix(r.name, "answers "); ok {
			outcome = strings.ReplaceAll(outcome, code+" “no”", "the server's answer")
		}
		if names[outcome] == nil {
			outcomes = append(outcomes, outcome)
		}
		names[outcome] = append(names[outcome], r.name)
	}
	for _, outcome := range outcomes {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(names[outcome], "; "), outcome)
	}
	return b.String()
}

// fault is the first cell of a row, and what it takes to observe the others.
type fault[T any] struct {
	name string
	of   T
}

// each makes the rows of faults concurrently.
func each[T any](t *testing.T, faults []fault[T], f func(t *testing.T, name string, of T) []string) []row {
	rows := make([]row, len(faults))
	t.Run("each", func(t *testing.T) {
		for i, one := range faults {
			t.Run(one.name, func(t *testing.T) {
				t.Parallel()
				rows[i] = row{one.name, f(t, one.name, one.of)}
			})
		}
	})
	return rows
}

// patience is the time limit of anything that must happen.
const patience = 30 * time.Second

const (
	answer   = `{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Once upon a time"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":4,"total_tokens":104}}`
	event    = `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"Once"}}]}` + "\n\n"
	streamed = event + `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + "data: [DONE]\n\n"
	chatPath = "/v1/chat/completions"
)

// gateway is a reverse proxy with the transport, in front of servers.
type gateway struct {
	router *endpick.Router
	heard  *rig.Heard
	server *httptest.Server
}

// newGateway has endpoints at these addresses and prefers the first.
func newGateway(t *testing.T, config transport.Config, routing endpick.Config, addresses ...string) *gateway {
	g := &gateway{heard: &rig.Heard{Order: "bad, better"}}
	routing.Policy = endpick.Policy{Scorers: []endpick.Weighted{{Scorer: g.heard, Weight: 1}}}
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
	var gone atomic.Bool
	if leaves != nil {
		go func() {
			select {
			case <-leaves:
				gone.Store(true)
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
	if gone.Load() {
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
		var all []string
		for _, e := range g.heard.Ends() {
			all = append(all, e.Outcome.Status.String())
		}
		if how = cmp.Or(strings.Join(all, ", "), "none"); s.Reaped > 0 {
			how = fmt.Sprintf("%s; %d closed by time", how, s.Reaped)
		}
		return s.OpenLeases == 0 && s.Routed == s.Closed
	}, patience, time.Millisecond)
	assert.Zero(t, g.router.Stats().Panics)
	return how
}

// nameServer answers each question with what lie makes of it; nil closes the connection.
func nameServer(lie func(query []byte) []byte) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			for {
				var n [2]byte
				if _, err := io.ReadFull(server, n[:]); err != nil {
					return
				}
				query := make([]byte, binary.BigEndian.Uint16(n[:]))
				if _, err := io.ReadFull(server, query); err != nil {
					return
				}
				said := lie(query)
				if said == nil {
					return
				}
				_, _ = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(said))), said...))
			}
		}()
		return client, nil
	}}
}

// says answers with a code and with IPv4 addresses.
func says(code byte, addresses ...string) func([]byte) []byte {
	return func(query []byte) []byte {
		end := 12
		for query[end] != 0 {
			end += 1 + int(query[end])
		}
		end += 5
		var records []byte
		n := 0
		if binary.BigEndian.Uint16(query[end-4:]) == 1 {
			for _, a := range addresses {
				ip := netip.MustParseAddr(a).As4()
				records = append(append(records, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4), ip[:]...)
				n++
			}
		}
		header := []byte{query[0], query[1], 0x81, 0x80 | code, 0, 1, byte(n >> 8), byte(n), 0, 0, 0, 0}
		return append(append(header, query[12:end]...), records...)
	}
}

// listed is a source that returns what it is told to.
type listed struct {
	list []endpick.Endpoint
	err  error
}

func (l *listed) Endpoints(context.Context) ([]endpick.Endpoint, error) { return l.list, l.err }

func lyingNames(t *testing.T) []row {
	here := good(t)
	at := netip.MustParseAddrPort(here)
	dns := func(lie func([]byte) []byte) discover.Source {
		return &discover.DNS{Name: "models.test.", Port: int(at.Port()), Resolver: nameServer(lie), Endpoint: endpick.Endpoint{Models: []string{"m"}}}
	}
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf("127.1.%d.%d", i/250, i%250+1)
	}
	good := endpick.Endpoint{ID: "good", Address: here, Models: []string{"m"}}
	lies := []fault[discover.Source]{
		{"is correct", dns(says(0, "127.0.0.1"))},
		{"says that the name does not exist", dns(says(3))},
		{"answers SERVFAIL", dns(says(2))},
		{"is empty", dns(says(0))},
		{"refuses", dns(says(5))},
		{"answers with garbage", dns(func([]byte) []byte { return []byte("garbage") })},
		{"answers another question", dns(func(query []byte) []byte {
			said := says(0, "127.0.0.9")(query)
			said[13] ^= 1
			return said
		})},
		{"hangs up", dns(func([]byte) []byte { return nil })},
		{"never answers", &discover.DNS{Name: "models.test.", Port: 80, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }}}},
		{"names a dead address beside the right one", dns(says(0, "127.0.0.1", "127.0.0.2"))},
		{"names only a dead address", dns(says(0, "127.0.0.2"))},
		{"names 2,000 dead addresses", dns(says(0, many...))},
		{"names one address twice", &listed{list: []endpick.Endpoint{good, good}}},
		{"names something that is not an address", &listed{list: []endpick.Endpoint{{ID: "bad", Address: "http://[::1", Models: []string{"m"}}, good}}},
		{"panics", panics{}},
	}
	return each(t, lies, func(t *testing.T, name string, source discover.Source) []string {
		g := newGateway(t, transport.Config{}, endpick.Config{})
		require.NoError(t, g.router.SetEndpoints([]endpick.Endpoint{{ID: here, Address: here, Models: []string{"m"}}})) // the state before
		told, limit := "nothing", patience
		if name == "never answers" {
			limit = 100 * time.Millisecond
		}
		w := rig.Must(discover.New(discover.Config{Router: g.router, Source: source, Timeout: limit, OnError: func(err error) {
			if told = "an error"; errors.Is(err, discover.ErrEmpty) {
				told = "that it is empty"
			}
		}}))
		_ = w.Poll(t.Context())
		return []string{told, fmt.Sprint(len(g.router.Endpoints())), g.ask(t, true, nil)}
	})
}

type panics struct{}

func (panics) Endpoints(context.Context) ([]endpick.Endpoint, error) { panic("a bad source") }

// jumpingClocks: the router's clock jumps during a stream, or between two requests.
func jumpingClocks(t *testing.T) []row {
	const age = time.Hour // after which a lease without events is lost
	type jump struct {
		by     time.Duration
		within bool // in a stream rather than between requests
	}
	jumps := []fault[jump]{
		{"stands still", jump{0, true}},
		{"jumps a minute ahead during a stream", jump{time.Minute, true}},
		{"jumps a minute back during a stream", jump{-time.Minute, true}},
		{"jumps a day ahead during a stream", jump{24 * time.Hour, true}},
		{"jumps a day back during a stream", jump{-24 * time.Hour, true}},
		{"jumps a century ahead during a stream", jump{100 * 365 * 24 * time.Hour, true}},
		{"jumps a day ahead between two requests", jump{24 * time.Hour, false}},
		{"jumps a day back between two requests", jump{-24 * time.Hour, false}},
		{"jumps a century back between two requests", jump{-100 * 365 * 24 * time.Hour, false}},
	}
	return each(t, jumps, func(t *testing.T, _ string, jump jump) []string {
		var now atomic.Int64
		began := time.Now()
		clock := func() time.Time { return began.Add(time.Duration(now.Load())) }
		var g *gateway
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
			_, _ = io.Copy(io.Discard, in.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
			if jump.within {
				now.Add(int64(jump.by))
				// Another request is routed, and the router looks for lost leases.
				if l, err := g.router.Route(endpick.Request{Model: "m", InputTokens: 5}); err == nil {
					l.Done(endpick.Outcome{})
				}
			}
			_, _ = io.WriteString(w, streamed)
		}))
		defer s.Close()
		g = newGateway(t, transport.Config{}, endpick.Config{Clock: clock, LeaseTimeout: age}, s.Listener.Addr().String())
		saw := []string{g.ask(t, true, nil)}
		if !jump.within {
			now.Add(int64(jump.by))
			saw = append(saw, g.ask(t, true, nil))
		}
		return []string{strings.Join(saw, "; then "), g.leases(t)}
	})
}

// full is a disk with room for this many bytes.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	if f.room -= n; n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func fullDisks(t *testing.T) []row {
	record := func(room int) func(*testing.T) []string {
		return func(t *testing.T) []string {
			write, end := recording.NewWriter(&full{room})
			g := newGateway(t, transport.Config{Record: write}, endpick.Config{}, good(t))
			var saw string
			for range 3 {
				saw = g.ask(t, true, nil)
			}
			g.leases(t)
			err := end()
			require.ErrorIs(t, err, syscall.ENOSPC)
			return []string{saw, "at its end: “" + err.Error() + "”"}
		}
	}
	disks := []fault[func(*testing.T) []string]{
		{"a recording, and nothing fits", record(0)},
		{"a recording, and half of a request fits", record(100)},
		{"a list of servers, and half of it fits", func(t *testing.T) []string {
			file := filepath.Join(t.TempDir(), "servers.json")
			require.NoError(t, os.WriteFile(file, []byte(`[{"address":"127.0.0.1:1","mod`), 0o600))
			g := newGateway(t, transport.Config{}, endpick.Config{}, good(t))
			var told error
			w := rig.Must(discover.New(discover.Config{Router: g.router, Source: discover.File(file), OnError: func(err error) { told = err }}))
			_ = w.Poll(t.Context())
			require.Error(t, told)
			assert.Len(t, g.router.Endpoints(), 1)
			return []string{g.ask(t, true, nil), "`OnError`; the list before stays"}
		}},
	}
	return each(t, disks, func(t *testing.T, _ string, observe func(*testing.T) []string) []string { return observe(t) })
}
