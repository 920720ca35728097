package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// process is an examples/gateway with a settings file.
type process struct {
	*exec.Cmd
	path       string // of the file
	url, admin string
	stderr     *rig.Output
	ended      chan error
}

// build builds the gateway in its own module.
func build(t *testing.T) (path string) {
	path = filepath.Join(t.TempDir(), "gateway")
	c := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./gateway")
	c.Dir = "../../../../examples"
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

var routing = regexp.MustCompile(`msg=routing url=(\S+) .*decisions=(\S+)/debug/endpick `)

func startProcess(t *testing.T, program, name, settings string) *process {
	p := &process{path: filepath.Join(t.TempDir(), name+".yaml"), stderr: &rig.Output{}, ended: make(chan error, 1)}
	require.NoError(t, os.WriteFile(p.path, []byte(settings), 0o600))
	p.Cmd = exec.Command(program, "-config", p.path)
	p.Stderr = p.stderr
	require.NoError(t, p.Start())
	exited := make(chan struct{})
	go func() {
		p.ended <- p.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-exited
	})
	eventually(t, "it starts", func() bool {
		select {
		case <-exited:
			require.Fail(t, "it has ended", p.stderr)
		default:
		}
		return routing.MatchString(p.stderr.String())
	})
	m := routing.FindStringSubmatch(p.stderr.String())
	p.url, p.admin = m[1], m[2]
	return p
}

// reload gives it new settings.
func (p *process) reload(t *testing.T, settings string) {
	before := strings.Count(p.stderr.String(), "settings reloaded")
	require.NoError(t, os.WriteFile(p.path, []byte(settings), 0o600))
	require.NoError(t, p.Process.Signal(syscall.SIGHUP))
	eventually(t, "it reloads", func() bool { return strings.Count(p.stderr.String(), "settings reloaded") > before })
}

func (p *process) page(t *testing.T, path string) string {
	resp := rig.Must(http.Get(p.admin + path))
	defer resp.Body.Close()
	text := rig.Must(io.ReadAll(resp.Body))
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return string(text)
}

// metric is the value of a series, −1 if it does not exist.
func (p *process) metric(t *testing.T, series string) float64 {
	for line := range strings.Lines(p.page(t, "/metrics")) {
		if rest, ok := strings.CutPrefix(line, "endpick_"+series+" "); ok {
			return rig.Must(strconv.ParseFloat(strings.TrimSpace(rest), 64))
		}
	}
	return -1
}

func (p *process) reaches(t *testing.T, series string, value float64) {
	eventually(t, fmt.Sprint(series, " is ", value), func() bool { return p.metric(t, series) == value })
}

func (p *process) shows(t *testing.T, what string) {
	eventually(t, "it shows "+what, func() bool { return strings.Contains(p.page(t, "/debug/endpick"), what) })
}

const (
	freely  = "sk-freely-0123456789"
	bounded = "sk-bounded-0123456789" // one request at a time
)

// ask sends a prompt and returns the status.
func (p *process) ask(key, prompt string) int {
	body := rig.Must(json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": prompt}}}))
	r := rig.Must(http.NewRequest(http.MethodPost, p.url+"/v1/chat/completions", bytes.NewReader(body)))
	r.Header.Set("Authorization", "Bearer "+key)
	resp := rig.Must(http.DefaultClient.Do(r))
	defer resp.Body.Close()
	_ = rig.Must(io.Copy(io.Discard, resp.Body))
	return resp.StatusCode
}

// scripted answers at once, except for prompts that it holds, and fails on demand.
type scripted struct {
	*httptest.Server
	asked atomic.Int64
	fails atomic.Bool
	held  chan struct{} // closed to release them
}

func startScripted(t *testing.T) *scripted {
	e := &scripted{held: make(chan struct{})}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost {
			return
		}
		e.asked.Add(1)
		if e.fails.Load() {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		if bytes.Contains(body, []byte("hold this")) {
			select {
			case <-e.held:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":900,"completion_tokens":1}}`)
	}))
	t.Cleanup(e.Close)
	return e
}

// Two gateways, configured by files, over a NATS server with a password: what one does
// counts at the other, whatever happens to NATS, to the settings and to either of them.
func TestGatewayProcesses(t *testing.T) {
	b := newBroker(t)
	b.kill()
	b.password = "secret"
	one, two := startScripted(t), startScripted(t)
	settings := func(name string, key int, fleet string) string {
		w := b.wires[map[string]int{"x": 0, "y": 1}[name]]
		return fmt.Sprintf(`
listen: 127.0.0.1:0
hash_key: %064x
shared_cache: true
endpoints: [{id: one, url: %q}, {id: two, url: %q}]
tenants:
  free: {keys: [%s]}
  bound: {keys: [%s], quota: {requests: 1}}
timeouts: {grace: 1h}
replicas: {nats: "nats://gateway:secret@%s", fleet: %s, name: gateway-%s}
`, key, one.URL, two.URL, freely, bounded, strings.TrimPrefix(w.url(), "nats://"), fleet, name)
	}
	b.wire()
	b.wire()
	program := build(t)
	x, y := startProcess(t, program, "x", settings("x", 1, "f")), startProcess(t, program, "y", settings("y", 1, "f"))

	// NATS is not running yet.
	for _, p := range []*process{x, y} {
		require.Equal(t, 200, p.ask(freely, "Hello."))
		p.shows(t, "NATS can&#39;t be reached.")
		p.reaches(t, "replica_connected", 0)
	}
	together := func() {
		x.reaches(t, "replica_others", 1)
		y.reaches(t, "replica_others", 1)
	}
	apart := func() {
		x.reaches(t, "replica_others", 0)
		y.reaches(t, "replica_others", 0)
	}
	b.start(t)
	together()
	x.shows(t, "<td>gateway-y<small>")
	y.shows(t, "What 1 other gateway does counts here.")

	// What one gateway has sent to a server, the other sends to the same one.
	prompt := func(i int) string { return strings.Repeat(fmt.Sprint("This is prompt ", i, ". "), 200) }
	told := y.metric(t, "mirrored_total")
	var to []bool
	for i := range 12 {
		before := two.asked.Load()
		require.Equal(t, 200, x.ask(freely, prompt(i)))
		to = append(to, two.asked.Load() > before)
	}
	y.reaches(t, "mirrored_total", told+12)
	y.reaches(t, "open_leases", 0)
	for i := range 12 {
		before := two.asked.Load()
		require.Equal(t, 200, y.ask(freely, prompt(i)+"And more."))
		require.Equal(t, to[i], two.asked.Load() > before, "prompt %d", i)
	}

	// Requests in flight at one count at the other: as load, and for the quota.
	var held sync.WaitGroup
	held.Go(func() { assert.Equal(t, 200, x.ask(bounded, "hold this")) })
	y.reaches(t, "open_leases", 1)
	require.Equal(t, 429, y.ask(bounded, "Hello."))
	require.Equal(t, 200, y.ask(freely, "Hello."))

	// Gateways with other settings are not in the group; with the same settings they are again.
	y.reload(t, settings("y", 1, "g"))
	apart()
	y.reaches(t, "open_leases", 0)
	require.Equal(t, 200, y.ask(bounded, "Hello."))
	y.reload(t, settings("y", 2, "f"))
	apart()
	eventually(t, "it says why", func() bool { return y.metric(t, "replica_refused_total") > 0 })
	y.reload(t, settings("y", 1, "f"))
	together()

	// NATS is killed while the request goes on, and comes back.
	b.kill()
	apart()
	y.reaches(t, "open_leases", 0)
	b.start(t)
	together()

	// A request of y's does not delay x: it stops once its own have ended.
	held.Go(func() { assert.Equal(t, 200, y.ask(freely, "hold this too")) })
	x.reaches(t, "open_leases", 2)
	require.NoError(t, x.Process.Signal(syscall.SIGTERM))
	eventually(t, "it stops", func() bool { return strings.Contains(x.stderr.String(), "msg=stopping") })
	close(one.held)
	close(two.held)
	require.NoError(t, <-x.ended, x.stderr)
	held.Wait()
	y.reaches(t, "replica_others", 0)
	y.reaches(t, "open_leases", 0)

	// A gateway that is killed is forgotten, and its replacement is found.
	x = startProcess(t, program, "x", settings("x", 1, "f"))
	together()
	require.NoError(t, x.Process.Kill())
	y.reaches(t, "replica_others", 0)
	x = startProcess(t, program, "x", settings("x", 1, "f"))
	together()

	// A server that fails one gateway is avoided by the other, which has not used it.
	two.fails.Store(true)
	asked := func(p *process) float64 { return p.metric(t, `endpoint_attempts_total{endpoint="two",result="error"}`) }
	for i := 0; y.metric(t, `endpoint_out{endpoint="two",reason="failing"}`) != 1; i++ {
		require.Less(t, i, 1000, "nobody believes it")
		require.Equal(t, 200, x.ask(freely, fmt.Sprint(i, prompt(i))))
	}
	require.Positive(t, asked(x))
	require.LessOrEqual(t, asked(y), 0.0)
	for _, p := range []*process{x, y} {
		require.NotContains(t, p.stderr.String(), "secret")
		require.NotContains(t, p.stderr.String(), "level=ERROR")
	}
}
