package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

const (
	annsKey = "sk-ann-0123456789abcdef"
	bobsKey = "sk-bob-0123456789abcdef"

	aHashKey = "hash_key: 4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f\n"
)

// backend is a server that records its requests.
type backend struct {
	*httptest.Server
	answer atomic.Value // string
	hangs  atomic.Bool  // until the client leaves

	mu      sync.Mutex
	headers []http.Header // of requests with a body
	paths   []string
}

func newBackend(t *testing.T) *backend {
	b := &backend{}
	b.answer.Store(`{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)
	b.Server = serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPost {
			b.mu.Lock()
			b.headers, b.paths = append(b.headers, r.Header.Clone()), append(b.paths, r.URL.Path)
			b.mu.Unlock()
		}
		if b.hangs.Load() {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, b.answer.Load().(string))
	}))
	return b
}

// serving serves a handler until the test ends.
func serving(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// answering is a server that answers what is sent to it, and knows nothing else.
func answering(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	return serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, r)
	}))
}

// served is how many requests came.
func (b *backend) served() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.headers)
}

func (b *backend) last() http.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.headers[len(b.headers)-1]
}

// plain are the settings of a gateway that has nothing but a policy.
func plain(policy string) *settings {
	s := defaultSettings()
	s.Policy, s.Seed, s.SharedCache, s.Log.Requests = policy, 1, true, "none"
	return s
}

func parsed(text string) *settings { return rig.Must(parseSettings("test.yaml", []byte(text))) }

// newTestGateway is a gateway with settings, as text.
func newTestGateway(t *testing.T, text string) *gateway {
	t.Helper()
	s := parsed(text)
	s.Seed = 1
	return gatewayOf(t, s)
}

// gatewayOf is a gateway before the endpoints of its settings, or these.
func gatewayOf(t *testing.T, s *settings, endpoints ...endpick.Endpoint) *gateway {
	t.Helper()
	return loggingGateway(t, io.Discard, s, endpoints...)
}

// loggingGateway is one whose log can be read.
func loggingGateway(t *testing.T, log io.Writer, s *settings, endpoints ...endpick.Endpoint) *gateway {
	g := rig.Must(newGateway(s, append(s.endpoints(), endpoints...), newLogger(log, &logSettings{Level: "info"})))
	t.Cleanup(func() {
		assert.NoError(t, g.close())
		assert.True(t, g.recorder == nil || errors.Is(g.recorder.file.Close(), os.ErrClosed), "it records")
		assert.True(t, g.hearing.feeds == nil && g.sharing.shared.Load() == nil && g.discovery.stop == nil, "something goes on")
	})
	return g
}

func chatWith(text string) string {
	return `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"` + text + `"}]}`
}

// askGateway sends a chat to a gateway; headers are pairs.
func askGateway(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	return askFor(h, path, chatWith("Hello."), headers...)
}

func askFor(h http.Handler, path, body string, headers ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodPost, path, body, headers...)
}

func send(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// see returns a page of a handler.
func see(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := send(h, http.MethodGet, path, "")
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Body.String()
}

// nobody is an address at which nothing listens.
func nobody(t *testing.T) string {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// writeFile returns the path of the file.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func writeSettings(t *testing.T, text string) (path string) {
	return writeFile(t, filepath.Join(t.TempDir(), "gateway.yaml"), text)
}

// before is the file of a gateway before one server.
func before(url, more string) string {
	return "listen: 127.0.0.1:0\nendpoints: [{url: \"" + url + "\"}]\n" + more
}

// startFleet starts model servers, which end with the test.
func startFleet(t *testing.T, n, kvTokens int) *traffic.Fleet {
	t.Helper()
	f := rig.Must(traffic.StartFleet(n, rig.Must(traffic.ServerConfig(kvTokens))))
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

// command is a running gateway -listen.
type command struct {
	url       string
	admin     string // for metrics and the debug page
	stderr    *rig.Output
	interrupt context.CancelFunc
	status    chan int
}

var (
	routingOn   = regexp.MustCompile(`msg=routing url=(http\S+) `)
	decisionsAt = regexp.MustCompile(`decisions=(http://\S+)/debug/endpick`)
)

// start runs a gateway with flags.
func start(t *testing.T, args ...string) *command {
	t.Helper()
	return startCommand(t, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
}

// startConfig serves from a file, whose path is the only flag.
func startConfig(t *testing.T, path string) *command {
	t.Helper()
	return startCommand(t, "-config", path)
}

func startCommand(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &command{stderr: &rig.Output{}, interrupt: cancel, status: make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.status <- run(ctx, args, io.Discard, c.stderr)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	require.Eventually(t, func() bool { return routingOn.MatchString(c.stderr.String()) }, 30*time.Second, time.Millisecond, c.stderr)
	c.url = routingOn.FindStringSubmatch(c.stderr.String())[1]
	c.admin = decisionsAt.FindStringSubmatch(c.stderr.String())[1]
	return c
}

// ends interrupts the gateway, which is to end with a status.
func (c *command) ends(t *testing.T, status int) {
	t.Helper()
	c.interrupt()
	require.Equal(t, status, <-c.status, c.stderr)
}

// reload asks for the n-th reload that succeeds, and waits for it.
func (c *command) reload(t *testing.T, n int) {
	t.Helper()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	c.logs(t, "settings reloaded", n)
}

// logs waits for a text that has been logged so many times.
func (c *command) logs(t *testing.T, what string, times int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(c.stderr.String(), what) >= times }, 30*time.Second, 5*time.Millisecond, "%s: %s", what, c.stderr)
}

// shows waits until the debug page shows a text, and returns the page.
func (c *command) shows(t *testing.T, want string) (text string) {
	t.Helper()
	return c.showsAfter(t, func() {}, want)
}

// showsAfter does something before each look.
func (c *command) showsAfter(t *testing.T, do func(), want string) (text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		do()
		_, text = get(c.admin + "/debug/endpick")
		return strings.Contains(textIn(page(t, text)), want)
	}, 30*time.Second, 5*time.Millisecond, want)
	return text
}

// soon is what comes from a channel, for which nobody waits for long.
func soon[T any](t *testing.T, from <-chan T, what string) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing comes: ", what)
	}
	return got
}

// dial opens a connection and writes what a client would.
func dial(t *testing.T, url, text string) net.Conn {
	t.Helper()
	conn := rig.Must(net.Dial("tcp", strings.TrimPrefix(url, "http://")))
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	require.NoError(t, rig.Err(io.WriteString(conn, text)))
	return conn
}

func get(url string) (int, string) {
	resp := rig.Must(http.Get(url))
	defer resp.Body.Close()
	return resp.StatusCode, string(rig.Must(io.ReadAll(resp.Body)))
}

// elements walks all elements of a parsed page.
func elements(n *html.Node, visit func(*html.Node)) {
	if n.Type == html.ElementNode {
		visit(n)
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		elements(c, visit)
	}
}

func textIn(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}

// page parses strictly, as far as the tokenizer allows: every element is closed.
func page(t *testing.T, text string) *html.Node {
	t.Helper()
	var open []string
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			require.ErrorIs(t, z.Err(), io.EOF)
			break
		}
		name, _ := z.TagName()
		switch tag := string(name); {
		case tag == "meta", tag == "input":
		case kind == html.StartTagToken:
			open = append(open, tag)
		case kind == html.EndTagToken:
			require.NotEmpty(t, open)
			require.Equal(t, open[len(open)-1], tag)
			open = open[:len(open)-1]
		}
	}
	require.Empty(t, open)
	require.NotContains(t, text, "NaN")
	return rig.Must(html.Parse(strings.NewReader(text)))
}

// rows returns the texts of a table's cells on the debug page.
func rows(t *testing.T, text, table string) (all [][]string) {
	t.Helper()
	elements(page(t, text), func(n *html.Node) {
		if named := len(n.Attr) > 0 && n.Attr[0].Key == "id" && n.Attr[0].Val == table; n.Data != "table" || !named {
			return
		}
		elements(n, func(row *html.Node) {
			if row.Data != "tr" {
				return
			}
			var cells []string
			for c := range row.ChildNodes() {
				if c.Type == html.ElementNode {
					cells = append(cells, strings.TrimSpace(textIn(c)))
				}
			}
			all = append(all, cells)
		})
	})
	return all
}

// post sends a short chat with headers and returns status and body.
func post(t *testing.T, url string, stream bool, headers ...string) (int, string) {
	t.Helper()
	const body = `{"model":%q,"messages":[{"role":"user","content":"Hello."}],"max_tokens":3,"stream":%v}`
	return postTo(url+"/v1/chat/completions", fmt.Sprintf(body, modelserver.DefaultModel, stream), headers...)
}

func postTo(url, body string, headers ...string) (int, string) {
	req := rig.Must(http.NewRequest(http.MethodPost, url, strings.NewReader(body)))
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp := rig.Must(http.DefaultClient.Do(req))
	defer resp.Body.Close()
	return resp.StatusCode, string(rig.Must(io.ReadAll(resp.Body)))
}

func newKey() *ecdsa.PrivateKey { return rig.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func keyText(key *ecdsa.PrivateKey) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rig.Must(x509.MarshalPKCS8PrivateKey(key))}))
}

// certificateText is a certificate for this machine.
func certificateText(key *ecdsa.PrivateKey, serial int64, until time.Time) string {
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der := rig.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// writeCertificate writes a certificate and its key, and returns where they are.
func writeCertificate(t *testing.T, dir string, serial int64) (cert, key string) {
	return certificateUntil(t, dir, serial, time.Now().Add(time.Hour))
}

func certificateUntil(t *testing.T, dir string, serial int64, until time.Time) (cert, key string) {
	t.Helper()
	private := newKey()
	cert, key = filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	writeFile(t, key, keyText(private))
	writeFile(t, cert, certificateText(private, serial, until))
	return cert, key
}

// credentialsText are credentials of a NATS user.
func credentialsText(jwt, seed string) string {
	return "-----BEGIN NATS USER JWT-----\n" + jwt + "\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n"
}
