package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// A running gateway follows its file, and SIGHUP. A mistake is reported with its place and changes nothing.
func TestReload(t *testing.T) {
	one, two := newBackend(t), newBackend(t)
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	write := func(url, more string) { writeFile(t, path, before(url, more)) }
	write(one.URL, "")
	c := startConfig(t, path)
	ask := func(key string) int {
		code, _ := post(t, c.url, false, "Authorization", "Bearer "+key)
		return code
	}
	require.Equal(t, 200, ask(""))
	require.Equal(t, 1, one.served())

	write(two.URL, "tenants: {ann: {keys: ["+annsKey+"]}}\nengine_key: sesame\nseed: 7\nlimits: {items: 9}\n")
	c.logs(t, "all other settings reloaded", 1)
	c.logs(t, "limits.items: is hardly enough", 1)
	c.logs(t, `msg="this change needs a restart" field=seed`, 1)
	c.logs(t, "msg=endpoints number=1 added=["+two.URL+"] removed=["+one.URL+"]", 1)
	require.Equal(t, 401, ask(""))
	require.Equal(t, 200, ask(annsKey))
	require.Equal(t, []int{1, 1}, []int{one.served(), two.served()})
	require.Equal(t, "Bearer sesame", two.last().Get("Authorization"))

	for i, mistake := range []string{"polcy: lmetric", "policy: best", "endpoints: [{url: x}]", "{", "", "# tenants: {}", "tenants: {}"} {
		write(one.URL, mistake)
		c.logs(t, "the new settings have a mistake; keeping the old ones", i+1)
		require.Equal(t, 401, ask(""))
		require.Equal(t, 200, ask(annsKey))
		require.Equal(t, []int{1, 2 + i}, []int{one.served(), two.served()})
	}
	metrics := func() string {
		_, text := get(c.admin + "/metrics")
		return text
	}
	c.shows(t, "The only server is healthy, but the settings in force are older than their file.")
	c.shows(t, path+":3: tenants: ")
	require.Contains(t, metrics(), "endpick_config_last_reload_successful 0\n")
	require.Contains(t, c.stderr.String(), path+":3: polcy: is an unknown field")
	require.Contains(t, c.stderr.String(), "tenants: is gone: without it nobody needs a key")

	write(one.URL, "seed: 7\nopen: true\n")
	c.logs(t, "settings reloaded", 2)
	c.logs(t, "tenants=0 tenants_removed=[ann]", 1)
	c.logs(t, `msg="this change needs a restart" field=seed`, 2)
	require.Equal(t, 200, ask(""))
	require.NotContains(t, c.shows(t, ""), "older than")
	require.Contains(t, metrics(), "endpick_config_last_reload_successful 1\n")
	require.Equal(t, 2, one.served())
	require.NotContains(t, one.last().Get("Authorization"), "sesame")
	c.reload(t, 3)
	c.ends(t, 0)
}

// A gateway that stops lets a reload end first: nothing that it starts outlives the gateway.
func TestStopDuringAReload(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, syscall.Mkfifo(list, 0o600)) // whoever reads it waits for somebody who writes
	path := writeSettings(t, before("http://a", ""))
	c := startConfig(t, path)
	writeFile(t, path, "listen: 127.0.0.1:0\ndiscover: {file: "+list+"}\n")
	require.True(t, signal.Ignored(syscall.SIGPIPE), "it outlives who reads its log")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	w := rig.Must(os.OpenFile(list, os.O_WRONLY, 0)) // once it is read
	c.interrupt()
	c.logs(t, "msg=stopping", 1)
	select {
	case status := <-c.status:
		t.Fatal("the gateway ends before its reload, with status ", status)
	case <-time.After(50 * time.Millisecond):
	}
	rig.Must(io.WriteString(w, "mistake\n{"))
	require.NoError(t, w.Close())
	require.Equal(t, 0, <-c.status, c.stderr)
	require.Contains(t, c.stderr.String(), "keeping the old ones")
}

// Requests go on while settings change, with and without mistakes, and with them what other gateways are
// told: none is lost, endpoints that stay keep their caches and models, and the accounts end at zero.
func TestReloadUnderLoad(t *testing.T) {
	f := startFleet(t, 3, 65536)
	settings := func(more string, members ...int) string {
		text := "policy: lmetric\nmodels: {other: {policy: predicted-latency}}\n" + more + "endpoints:\n"
		for _, i := range members {
			text += fmt.Sprintf("  - {id: %s, url: \"http://%s\", kv_tokens: 65536}\n", f.Members[i].ID, f.Members[i].Address)
		}
		return text
	}
	g := newTestGateway(t, settings("", 0, 1, 2))
	server := serving(t, g.server(defaultSettings()).Handler)

	index := g.policies.index
	latencies, _ := g.policies.measured(g.settings.Load())
	require.Len(t, latencies, 1)
	c := traffic.NewClient(server.URL)
	defer c.Close()
	system := traffic.Message{Role: "system", Content: strings.Repeat("You are helpful. ", 100)}
	require.NoError(t, c.Ask(t.Context(), time.Now(), []traffic.Message{system, {Role: "user", Content: "First."}}, 2).Err)

	var stop atomic.Bool
	var group sync.WaitGroup
	var asked atomic.Int64
	for i := range 8 {
		group.Go(func() {
			for n := 0; !stop.Load(); n++ {
				s := c.Ask(context.Background(), time.Now(), []traffic.Message{system, {Role: "user", Content: fmt.Sprint("Question ", i, n)}}, 4)
				assert.NoError(t, s.Err)
				asked.Add(1)
			}
		})
	}
	for i := range 36 {
		sharing := ""
		if i/6%3 > 0 {
			sharing = fmt.Sprintf("hash_key: %064x\nreplicas: {nats: \"nats://%s\", fleet: f%d, load_only: %v}\n", i/6%3, nobody(t), i%2, i%4 == 0)
		}
		text := settings(sharing, 0, 1, 2)
		switch i % 6 {
		case 1:
			text = settings(sharing, 0, 1)
		case 2:
			text = settings("models: {}\n", 0, 1) // a duplicate: a mistake
		case 3:
			text = strings.Replace(settings(sharing, 0, 2), "policy: lmetric", "policy: load-prefix", 1)
		case 4:
			text = strings.Replace(settings(sharing, 0, 1, 2), "other:", "demo-8b:", 1)
		case 5:
			text = settings("hash_key: abc\n", 0)
		}
		s, err := parseSettings("test.yaml", []byte(text))
		if i%6 == 2 || i%6 == 5 {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, g.apply(s))
		_, shared := g.sharing.status()
		require.Equal(t, sharing != "", shared)
		from := asked.Load()
		require.Eventually(t, func() bool { return asked.Load() >= from+4 }, 30*time.Second, time.Millisecond)
	}
	stop.Store(true)
	group.Wait()
	rig.Idle(t, g.router)
	require.Zero(t, g.router.Stats().Panics)
	require.Same(t, index, g.policies.index)
	after, _ := g.policies.measured(g.settings.Load())
	require.Equal(t, latencies, after, "the same models, and none of them twice")
	// The prompts sent to server-1 before all this are still known to be there.
	ref, _ := g.router.Ref("server-1")
	require.True(t, slices.ContainsFunc(index.Stats().Endpoints, func(e prefix.EndpointStats) bool { return e.Ref == ref && e.Held > 0 }))
}

// A file that is being written counts only once it is complete: its first half might lack the tenants.
func TestHalfAFileIsNotRead(t *testing.T) {
	const head = "endpoints: [{url: \"http://127.0.0.1:1\"}]\n"
	const whole = head + "tenants: {ann: {keys: [" + annsKey + "]}}\n"
	path := writeSettings(t, whole)
	var logged rig.Output
	r := startReloader(t, path, &logged, nil)
	keys := &r.gateway.keys
	r.look(false)
	writeFile(t, path, head)
	r.look(false)
	require.NotNil(t, keys.Load(), "it may go on")
	writeFile(t, path, whole+"policy: round-robin\n")
	r.look(false)
	require.Equal(t, "marginal-delay", r.now.Policy)
	r.look(false)
	require.Equal(t, "round-robin", r.now.Policy)
	require.NotNil(t, keys.Load())
	writeFile(t, path, head+"open: true\n")
	r.look(true)
	require.Nil(t, keys.Load(), "who asks for it knows that it is whole")
	require.Equal(t, 2, strings.Count(logged.String(), "settings reloaded"))
	require.NoError(t, os.Remove(path))
	r.looks(3)
	r.look(true)
	require.Equal(t, 2, strings.Count(logged.String(), "can't read the settings; keeping the old ones"), "once, and to who asks")
	require.NotNil(t, r.gateway.outdated.Load())
	writeFile(t, path, head+"open: true\n")
	r.looks(2)
	require.Nil(t, r.gateway.outdated.Load(), "it is there again")
}

const certifiedFile = "endpoints: [{url: \"http://127.0.0.1:1\"}]\ntls: {cert: server.pem, key: server.key}\n"

// startReloader follows a file. Something may happen after it was read.
func startReloader(t *testing.T, path string, log io.Writer, meanwhile func()) *reloader {
	t.Helper()
	s, text, err := readSettings(path)
	require.NoError(t, err)
	g := gatewayOf(t, s)
	if meanwhile != nil {
		meanwhile()
	}
	return newReloader(path, text, s, g, newLogger(log, &logSettings{Level: "info"}))
}

// looks is for a while in which nobody asks.
func (r *reloader) looks(times int) {
	for range times {
		r.look(false)
	}
}

func (r *reloader) serial() int64 { return r.gateway.certificate.Load().Leaf.SerialNumber.Int64() }

// A certificate and its key are two files: they are taken over once both have been unchanged for a while, and not before.
func TestHalfACertificateIsNotTaken(t *testing.T) {
	dir, next := t.TempDir(), t.TempDir()
	cert, key := writeCertificate(t, dir, 1)
	path := writeFile(t, filepath.Join(dir, "gateway.yaml"), certifiedFile)
	var logged rig.Output
	r := startReloader(t, path, &logged, nil)
	require.EqualValues(t, 1, r.serial())
	r.looks(3)
	newCert, newKey := writeCertificate(t, next, 2)
	for to, from := range map[string]string{cert: newCert, key: newKey} { // in either order
		writeFile(t, to, string(rig.Must(os.ReadFile(from))))
		r.look(false)
		require.EqualValues(t, 1, r.serial(), "it may go on")
	}
	require.Empty(t, logged.String())
	r.look(false)
	require.EqualValues(t, 2, r.serial())
	r.look(false)
	require.Equal(t, 1, strings.Count(logged.String(), "settings reloaded"), logged.String())
}

// A certificate that is replaced just after it was read, such as while a start waits for the endpoints, is not missed.
func TestACertificateThatIsReplacedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	year := 0
	replace := func() {
		cert, _ := writeCertificate(t, dir, int64(year))
		year++
		at := time.Date(2000+year, 1, 1, 0, 0, 0, 0, time.UTC)
		require.NoError(t, os.Chtimes(cert, at, at))
	}
	replace()
	path := writeFile(t, filepath.Join(dir, "gateway.yaml"), certifiedFile)
	logged := new(lineHook)
	r := startReloader(t, path, logged, replace)
	r.looks(2)
	require.EqualValues(t, 1, r.serial())

	logged.next(replace)
	writeFile(t, path, certifiedFile+"seed: 7\n")
	r.looks(2)
	require.EqualValues(t, 1, r.serial(), "it was replaced when it had been read")
	r.looks(2)
	require.EqualValues(t, 2, r.serial())
}

// A file that new settings name may come after them, and so may the right to read it.
func TestAFileThatComesLater(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	path := writeFile(t, filepath.Join(dir, "gateway.yaml"), certifiedFile)
	var logged rig.Output
	r := startReloader(t, path, &logged, nil)
	next := filepath.Join(dir, "next")
	require.NoError(t, os.Mkdir(next, 0o700))
	writeFile(t, path, strings.ReplaceAll(certifiedFile, "server.", "next/server.")+"engine_key: {file: next/key}\n")
	key := filepath.Join(next, "key")
	unreadable := func() {
		writeFile(t, key, "sesame")
		require.NoError(t, os.Chmod(key, 0))
	}
	for i, come := range []func(){func() {}, func() { writeCertificate(t, next, 2) }, unreadable} {
		require.EqualValues(t, 1, r.serial())
		require.Equal(t, i, strings.Count(logged.String(), "have a mistake"))
		come()
		r.looks(5)
	}
	require.NoError(t, os.Chmod(key, 0o600))
	r.looks(3)
	require.EqualValues(t, 2, r.serial())
	require.EqualValues(t, "sesame", *r.gateway.engineKey.Load())
	require.Nil(t, r.gateway.outdated.Load())
}

// lineHook calls a function when the next line is logged.
type lineHook struct{ do atomic.Pointer[func()] }

func (h *lineHook) next(do func()) { h.do.Store(&do) }

func (h *lineHook) Write(p []byte) (int, error) {
	if do := h.do.Swap(nil); do != nil {
		(*do)()
	}
	return len(p), nil
}

// HTTP/2 in the clear, and TLS with a certificate that is replaced.
func TestProtocols(t *testing.T) {
	b := newBackend(t)
	dir := t.TempDir()
	serve := func(more string) *command {
		return startConfig(t, writeFile(t, filepath.Join(dir, "gateway.yaml"), before(b.URL, more)))
	}
	t.Run("h2c", func(t *testing.T) {
		c := serve("h2c: true\n")
		for _, client := range []*http.Client{{Transport: unencryptedHTTP2(t)}, http.DefaultClient} {
			resp := rig.Must(client.Get(c.url + "/readyz"))
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 200, resp.StatusCode)
		}
	})
	t.Run("HTTP/2 where it is off", func(t *testing.T) {
		c := serve("tenants: {ann: {keys: [" + annsKey + "]}}\n")
		require.Contains(t, string(rig.Must(io.ReadAll(dial(t, c.url, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))), "HTTP/1.1 505 ")
		c.logs(t, `level=WARN msg=request warning="a client speaks HTTP/2 without TLS, which needs h2c: true"`, 1)
	})
	t.Run("TLS", func(t *testing.T) {
		serial := func(url, cert string) int64 {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(rig.Must(os.ReadFile(cert)))
			tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Get(url + "/readyz")
			if err != nil {
				return 0
			}
			defer resp.Body.Close()
			require.Equal(t, 2, resp.ProtoMajor)
			return resp.TLS.PeerCertificates[0].SerialNumber.Int64()
		}
		cert, _ := writeCertificate(t, dir, 1)
		c := serve("tls: {cert: server.pem, key: server.key}\n")
		require.True(t, strings.HasPrefix(c.url, "https://"))
		require.EqualValues(t, 1, serial(c.url, cert))
		writeCertificate(t, dir, 2)
		require.Eventually(t, func() bool { return serial(c.url, cert) == 2 }, 30*time.Second, 50*time.Millisecond)
	})
}

// A client that does not send its body, or sends too much, runs into the limits.
func TestClientLimits(t *testing.T) {
	b := newBackend(t)
	c := startConfig(t, writeSettings(t, before(b.URL, "limits: {body: 1 KiB, header: 4 KiB, connections: 2}\ntimeouts: {body: 100ms, header: 2s}\n")))
	code, _ := postTo(c.url+"/v1/chat/completions", `{"model":"`+strings.Repeat("m", 2048)+`"}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	http.DefaultClient.CloseIdleConnections()

	for what, want := range map[string]string{"POST /v1/chat/completions": "408 ", "OPTIONS *": "404 ", "OPTIONS /v1/chat/completions": "408 "} {
		conn := dial(t, c.url, what+" HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
		answer, err := io.ReadAll(conn) // the server closes the connection
		require.NoError(t, err, what)
		require.Contains(t, string(answer), "HTTP/1.1 "+want, what)
		require.Contains(t, string(answer), "Connection: close", what)
	}
	require.NoError(t, rig.Err(io.ReadAll(dial(t, c.url, "POST / HTTP/1.1\r\n"))), "who sends half a header is cut off")
	require.Contains(t, string(rig.Must(io.ReadAll(dial(t, c.url, fmt.Sprintf("%-8192s", "GET / HTTP/1.1\r\nA: x"))))), "HTTP/1.1 431 ")
	for range 5 { // idle connections of others keep nobody waiting
		client := &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}
		defer client.CloseIdleConnections()
		resp := rig.Must(client.Get(c.url + "/readyz"))
		rig.Must(io.ReadAll(resp.Body))
		require.NoError(t, resp.Body.Close())
	}
	require.Zero(t, b.served())
}

// closing is a connection that says when it is closed.
type closing struct {
	net.Conn
	closed context.CancelFunc
}

func (c closing) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Over HTTP/1 and HTTP/2 a connection is closed that is idle, not one that waits for a response, and a
// client that does not send its body gets an answer. No time limit of a request outlasts it.
func TestIdleConnections(t *testing.T) {
	server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, _ := io.Copy(io.Discard, r.Body); n%2 == 0 {
			w.Header().Set("Content-Length", "2")
		}
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		time.Sleep(600 * time.Millisecond)
		_, _ = io.WriteString(w, "}")
	}))
	c := startConfig(t, writeSettings(t, before(server.URL, "h2c: true\ntimeouts: {idle: 200ms, body: 200ms, unread: 200ms}\n")))
	for major, tr := range []*http.Transport{{}, unencryptedHTTP2(t)} {
		ctx, closed := context.WithCancel(t.Context())
		tr.DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, to)
			return closing{conn, closed}, err
		}
		ask := func(body string, length int64) int {
			req := rig.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(body)))
			if req.ContentLength = length; body == "" {
				req.Body, _ = io.Pipe() // never comes
			}
			resp := rig.Must(tr.RoundTrip(req))
			assert.Equal(t, major+1, resp.ProtoMajor)
			require.NoError(t, rig.Err(io.ReadAll(resp.Body)))
			return resp.StatusCode
		}
		const hi = `{"model":"m","messages":[{"role":"user","content":"Hi!"}]}`
		assert.Equal(t, http.StatusRequestEntityTooLarge, ask("", 1<<40))
		assert.Equal(t, http.StatusOK, ask(hi, int64(len(hi))))
		assert.Equal(t, http.StatusOK, ask(hi+" ", int64(len(hi)+1)))
		soon(t, ctx.Done(), "the connection is still open")
		assert.Equal(t, http.StatusRequestTimeout, ask("", -1))
	}
}

// A process that may open few files accepts few connections, and says so: clients wait instead of
// being refused for lack of connections to servers.
func TestFewFiles(t *testing.T) {
	if _, err := os.Stat("/proc/self/limits"); err != nil {
		t.Skip("the system does not say how many")
	}
	if os.Getenv("ENDPICK_FEW_FILES") == "" {
		c := exec.CommandContext(t.Context(), "sh", "-c", "ulimit -n 256 && exec \"$0\" -test.run '^TestFewFiles$'", os.Args[0])
		c.Env = append(os.Environ(), "ENDPICK_FEW_FILES=1")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	log := &rig.Output{}
	g := &gateway{log: slog.New(slog.NewTextHandler(log, nil))}
	assert.Equal(t, 5, g.connections(5))
	assert.Empty(t, log.String())
	assert.Equal(t, []int{65, 65}, []int{g.connections(4096), g.connections(0)})
	assert.Contains(t, log.String(), "level=WARN")
}

// unencryptedHTTP2 is a client of HTTP/2 without TLS.
func unencryptedHTTP2(t *testing.T) *http.Transport {
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	return h2
}

// upgraded is a connection that a server has upgraded.
func upgraded(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	fmt.Fprint(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	_ = buf.Flush()
	return conn, buf
}

// A client that does not read its response is cut off, and its place at the server becomes free.
func TestClientsThatDoNotRead(t *testing.T) {
	left := make(chan error, 1)
	server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, _ := upgraded(w)
			defer conn.Close()
			for err := error(nil); ; {
				if _, err = conn.Write(make([]byte, 1<<16)); err != nil {
					left <- err
					return
				}
			}
		}
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			_ = http.NewResponseController(w).Flush()
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for err := error(nil); ; {
			if _, err = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\""+strings.Repeat("x", 1<<16)+"\"}}]}\n\n"); err != nil {
				left <- err
				return
			}
		}
	}))
	c := startConfig(t, writeSettings(t, before(server.URL, "h2c: true\ntimeouts: {unread: 200ms}\n")))
	const ask = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi!"}]}`
	gone := func() { require.Error(t, soon(t, left, "the server still sends")) }
	for _, request := range []string{
		fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(ask), ask),
		"GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n",
	} {
		dial(t, c.url, request)
		gone()
	}

	req := rig.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(ask)))
	resp := rig.Must(unencryptedHTTP2(t).RoundTrip(req))
	defer resp.Body.Close()
	gone()

	conn := dial(t, c.url, http2.ClientPreface)
	f := http2.NewFramer(conn, conn)
	require.NoError(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize})) // none
	for i, path := range []string{"/v1/models", "/v1/realtime?model=m"} {
		require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: header("GET", path), EndHeaders: true, EndStream: true}))
		for reset := false; !reset; {
			_, reset = rig.Must(f.ReadFrame()).(*http2.RSTStreamFrame)
		}
	}
}

// A connection that leaves HTTP may be silent for longer than other requests, and may be closed in one direction.
func TestUpgradesThroughTheGateway(t *testing.T) {
	server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			http.NotFound(w, r)
			return
		}
		conn, buf := upgraded(w)
		defer conn.Close()
		said, _ := io.ReadAll(buf) // to its end
		fmt.Fprintf(buf, "you have said %q", said)
		_ = buf.Flush()
	}))
	c := startConfig(t, writeSettings(t, before(server.URL, "timeouts: {unread: 50ms, body: 50ms}\nlimits: {connections: 1}\n")))
	conn := dial(t, c.url, "GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	r := bufio.NewReader(conn)
	resp := rig.Must(http.ReadResponse(r, nil))
	require.Equal(t, []any{101, "Upgrade"}, []any{resp.StatusCode, resp.Header.Get("Connection")})
	time.Sleep(100 * time.Millisecond) // longer than either limit
	require.NoError(t, rig.Err(io.WriteString(conn, "hello")))
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	require.Equal(t, `you have said "hello"`, string(rig.Must(io.ReadAll(r))))
}

// A server drained in the file is drained in the router, and is remembered when it returns.
func TestDrainByTheFile(t *testing.T) {
	file := func(first, second string) *settings {
		return parsed("endpoints: [{url: \"http://a\"" + first + "}, {id: second, url: \"http://b\"" + second + "}]\n")
	}
	g := gatewayOf(t, file(", drain: true", ""))
	draining := func() (all []string) {
		for _, e := range g.router.Endpoints() {
			if e.Draining {
				all = append(all, e.Candidate.Endpoint.ID)
			}
		}
		return all
	}
	require.Equal(t, []string{"http://a"}, draining(), "drained from the start")
	ref, ok := g.router.Ref("http://a")
	require.True(t, ok)
	require.NoError(t, g.apply(file("", "")))
	require.Empty(t, draining())
	require.NoError(t, g.apply(file(", drain: true", "")))
	require.Equal(t, []string{"http://a"}, draining())
	again, _ := g.router.Ref("http://a")
	require.Equal(t, ref, again, "the same endpoint, with all that is known of it")
	require.NoError(t, g.apply(file("", ", drain: true")))
	require.Equal(t, []string{"second"}, draining())
}

// New settings whose source of endpoints gives no list are tried again until it does, without
// a word more in the log; until then the old settings are in force.
func TestAReloadWaitsForItsSource(t *testing.T) {
	dir := t.TempDir()
	path, list := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "servers")
	const text, next = "endpoints: [{url: \"http://a:1\"}]\n", "discover: {file: servers}\npolicy: round-robin\n"
	writeFile(t, path, text)
	var logged rig.Output
	r := startReloader(t, path, &logged, nil)
	g := r.gateway
	const waits = `level=ERROR msg="the endpoints of the new settings are not found; keeping the old ones until they are" error="` + "%s:1: discover: %s\"\n"
	writeFile(t, path, next)
	r.looks(3)
	require.Equal(t, []string{"a:1"}, ids(g))
	require.Equal(t, "marginal-delay", r.now.Policy)
	require.Equal(t, 1, strings.Count(logged.String(), fmt.Sprintf(waits, path, list+": no such file or directory")), logged.String())
	r.look(true)
	require.Equal(t, 2, strings.Count(logged.String(), "no such file"), "who asks is answered")
	writeFile(t, list, "# nobody yet\n")
	r.looks(3)
	require.Equal(t, 1, strings.Count(logged.String(), fmt.Sprintf(waits, path, list+": discover: no endpoints")), logged.String())
	require.Equal(t, []string{"a:1"}, ids(g))

	writeFile(t, list, "http://b:1\n")
	r.looks(3)
	require.Equal(t, []string{"b:1"}, ids(g))
	require.Equal(t, "round-robin", r.now.Policy)
	require.Equal(t, 1, strings.Count(logged.String(), `"settings reloaded" endpoints=1 policy=round-robin `), logged.String())

	writeFile(t, path, text)
	r.looks(3)
	writeFile(t, list, "# nobody yet\n")
	writeFile(t, path, next)
	r.looks(3)
	require.Equal(t, 2, strings.Count(logged.String(), "no endpoints"), "a new reload says so again")
}

// What a reload keeps and what it replaces: a part stays, with all that it has learned, if none of
// its settings have changed, and is replaced if any have.

func TestTokenizersThatStay(t *testing.T) {
	of := func(models map[string]tokensSettings) *settings {
		s := &settings{Models: map[string]modelSettings{"none": {Policy: "lmetric"}}}
		for name, m := range models {
			s.Models[name] = modelSettings{Tokens: &m}
		}
		return s
	}
	was := map[string]tokensSettings{
		"same": {Render: "http://a"}, "url": {Render: "http://a"}, "kind": {Render: "http://a"}, "within": {Llama: "http://a"}, "gone": {Llama: "http://a"},
	}
	before := rig.Must(of(was).tokenizers(nil, nil))
	require.Len(t, before, len(was))
	is := map[string]tokensSettings{
		"same": {Render: "http://a"}, "url": {Render: "http://b"}, "kind": {Llama: "http://a"}, "within": {Llama: "http://a", Within: time.Second}, "new": {Llama: "http://a"},
	}
	after := rig.Must(of(is).tokenizers(before, nil))
	require.Len(t, after, len(is))
	for name, own := range is {
		assert.Equal(t, own, after[name].tokensSettings, name)
		assert.Equal(t, name == "same", before[name] == after[name], name)
	}
	require.Len(t, before, len(was), "who uses it goes on")
}

func TestAReplicaThatStays(t *testing.T) {
	parse := func(key int, more string) *settings {
		return parsed(fmt.Sprintf("endpoints: [{url: \"http://a\"}]\nhash_key: %064x\n", key) + more)
	}
	const replicas = "replicas: {nats: \"nats://a:1, tls://c\", fleet: chat, name: one}\n"
	var h sharing
	first := rig.Must(h.wanted(parse(1, replicas), nil))
	require.NotNil(t, first)
	h.shared.Store(first)
	for _, tc := range []struct {
		key   int
		more  string
		stays bool
	}{
		{1, replicas, true},
		{1, replicas + "policy: lmetric\n", true},
		{2, replicas, false},
		{1, strings.Replace(replicas, "chat", "code", 1), false},
		{1, strings.Replace(replicas, "one", "two", 1), false},
		{1, strings.Replace(replicas, "a:1", "b:1", 1), false},
		{1, strings.Replace(replicas, "}", ", load_only: true}", 1), false},
	} {
		next := rig.Must(h.wanted(parse(tc.key, tc.more), nil))
		assert.Equal(t, tc.stays, next == first, "%+v", tc)
		assert.NotNil(t, next.replica)
	}
	require.Nil(t, rig.Must(h.wanted(parse(1, ""), nil)))
}

// Facts reported by servers survive a reload, and settings take precedence.
func TestAReloadKnowsWhatServersSaid(t *testing.T) {
	server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n")
	}))
	settings := func(more string) string { return "endpoints: [{url: \"" + server.URL + "\", id: a" + more + "}]\n" }
	g := newTestGateway(t, settings(""))
	tokens := func() int { return g.router.Endpoints()[0].Candidate.Endpoint.KVTokens }
	require.Eventually(t, func() bool { return tokens() == 16_000 }, 30*time.Second, 5*time.Millisecond)
	g.stop() // no more polls
	for more, want := range map[string]int{"": 16_000, ", variant: big": 16_000, ", kv_tokens: 500": 500} {
		require.NoError(t, g.apply(parsed(settings(more))))
		require.Equal(t, want, tokens(), more)
	}
}

// Metrics and the debug page show the index and models of the policy after a reload.
func TestMetricsFollowTheSettings(t *testing.T) {
	g := newTestGateway(t, "endpoints: [{url: \"http://a\"}]\npolicy: round-robin\n")
	require.NoError(t, g.apply(parsed("endpoints: [{url: \"http://a\"}]\npolicy: predicted-latency\n")))
	after := g.watch.sources.Load()
	require.Same(t, g.policies.index, after.Index)
	require.Len(t, after.Latencies, 1)
}

// All policies with an index share one, in whatever order they come, so that a reload to another
// policy knows where prompts are.
func TestPoliciesShareTheirIndex(t *testing.T) {
	var ps policies
	before := 0
	for range 2 {
		for _, name := range all.Names() {
			p := rig.Must(ps.compose(name, map[string]modelSettings{"m": {}, "n": {Policy: name}}, false))
			require.NotEqual(t, "per model", p.Name, "all have the same")
			if p.Matcher != nil {
				require.Same(t, ps.index, p.Matcher, name)
				before++
			}
			require.Equal(t, p.Matcher, rig.Must(ps.build(name)).Matcher)
		}
	}
	require.Greater(t, before, 4)
	heard := rig.Must(ps.compose("lmetric", nil, true)).Matcher
	for _, name := range all.Names() {
		if p := rig.Must(ps.compose(name, nil, true)); rig.Must(ps.build(name)).Matcher != nil {
			require.Same(t, heard, p.Matcher, name)
		} else {
			require.Nil(t, p.Matcher, name)
		}
	}
}

// Only one replica runs at a time: the next one starts after the previous one has ended.
func TestAReplicaEndsOnce(t *testing.T) {
	var h sharing
	stopped := map[string]int{}
	of := func(name string) *shared { return &shared{stop: func() { stopped[name]++ }} }
	first := of("first")
	h.shared.Store(first)
	h.take(first, nil)
	require.Empty(t, stopped, "it goes on")
	h.take(nil, nil)
	require.Equal(t, map[string]int{"first": 1}, stopped)
	require.Nil(t, h.shared.Load())
	h.take(nil, nil)
	require.Equal(t, map[string]int{"first": 1}, stopped)
}
