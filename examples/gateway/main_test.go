package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/traffic"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// quick are the arguments of a comparison that takes a few seconds a policy.
var quick = []string{"-duration", "1500ms", "-rate", "40", "-turns", "2", "-think", "50ms", "-groups", "6", "-system-tokens", "1500", "-kv-tokens", "6144"}

func TestCompareJSON(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), append(slices.Clone(quick), "-format", "json", "-policies", "round-robin,lmetric"), &stdout, &stderr), stderr.String())

	d := json.NewDecoder(&stdout)
	d.DisallowUnknownFields()
	type numbers struct{ P50, P95, P99 *float64 }
	var got []struct {
		Policy         string   `json:"policy"`
		Requests       int      `json:"requests"`
		Failed         *int     `json:"failed"`
		TTFT           numbers  `json:"ttft_ms"`
		TPOT           numbers  `json:"tpot_ms"`
		E2E            numbers  `json:"e2e_ms"`
		PrefixHitRatio *float64 `json:"prefix_hit_ratio"`
		LaterHitRatio  *float64 `json:"prefix_hit_ratio_later"`
	}
	require.NoError(t, d.Decode(&got))
	_, err := d.Token()
	require.ErrorIs(t, err, io.EOF, "one array and nothing else")
	require.Len(t, got, 2)
	for i, policy := range []string{"round-robin", "lmetric"} {
		r := got[i]
		require.Equal(t, policy, r.Policy)
		require.Equal(t, got[0].Requests, r.Requests, "the same workload")
		require.Greater(t, r.Requests, 5)
		require.NotNil(t, r.Failed)
		require.Zero(t, *r.Failed)
		for _, n := range []numbers{r.TTFT, r.TPOT, r.E2E} {
			require.Positive(t, *n.P50)
			require.LessOrEqual(t, *n.P50, *n.P95)
			require.LessOrEqual(t, *n.P95, *n.P99)
		}
		require.Less(t, *r.TTFT.P50, *r.E2E.P50)
		require.GreaterOrEqual(t, *r.PrefixHitRatio, 0.0)
		require.Less(t, *r.PrefixHitRatio, 1.0)
		require.GreaterOrEqual(t, *r.LaterHitRatio, 0.0)
	}
	require.Greater(t, *got[1].PrefixHitRatio, *got[0].PrefixHitRatio+0.1)
	require.Greater(t, *got[1].LaterHitRatio, *got[1].PrefixHitRatio, "the first turn of a conversation is new")
}

func TestCompareTable(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"-duration", "400ms", "-think", "0s", "-turns", "2", "-policies", "least-loaded,predicted-latency", "-queue", "1000", "-slo-ttft", "1ms", "-slo-tpot", "1m"}, &stdout, &stderr), stderr.String())
	require.Regexp(t, `(?m)^ +policy +requests +failed +p50.* all +later turns +met$`, stdout.String())
	require.Regexp(t, `(?m)^ *least-loaded +\d+ +0( +[\d.]+){11} +0.00$`, stdout.String())
	require.Regexp(t, `(?m)^ *predicted-latency +\d+ +0( +[\d.]+){11} +0.00$`, stdout.String())
	require.Regexp(t, `^least-loaded: \d+ requests\npredicted-latency: \d+ requests\n$`, stderr.String(), "no bar where there is no terminal")
}

// With existing servers: a second run finds nothing of the first in the caches, and
// one server with all their capacity is measured for comparison.
func TestCompareServersThatAreThere(t *testing.T) {
	t.Parallel()
	config, err := traffic.ServerConfig(65536)
	require.NoError(t, err)
	f, err := traffic.StartFleet(3, config)
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	var args []string
	for _, m := range f.Members[:2] {
		args = append(args, "-backend", "http://"+m.Address)
	}
	args = append(args, "-single", "http://"+f.Members[2].Address+"/", "-api", "chat", "-repeat", "2", "-policies", "lmetric", "-format", "json",
		"-duration", "600ms", "-rate", "20", "-turns", "2", "-think", "10ms", "-groups", "1000", "-system-tokens", "500")
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), args, &stdout, &stderr), stderr.String())
	var got []traffic.Result
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
	require.Len(t, got, 2)
	require.Equal(t, []string{"lmetric", "one server"}, []string{got[0].Policy, got[1].Policy})
	require.Equal(t, got[0].Requests, got[1].Requests)
	for _, r := range got {
		// A first prompt has some 590 tokens, all of them new. A second one has 130 to 140
		// more: the answer is cached and 90 are new.
		const later, all = 640.0 / 730, 640.0 / (590 + 730)
		if r.Policy == "one server" {
			require.InDelta(t, later, *r.LaterHitRatio, 0.03)
			require.InDelta(t, all, *r.PrefixHitRatio, 0.03)
		} // under a policy, a conversation may move
		require.LessOrEqual(t, *r.LaterHitRatio, later+0.03)
		require.LessOrEqual(t, *r.PrefixHitRatio, all+0.03)
		require.Positive(t, *r.LaterHitRatio)
	}
	require.Regexp(t, `(?s)^lmetric, 1 of 2: \d+ requests\none server, 1 of 2: \d+ requests\nlmetric, 2 of 2`, stderr.String())
	require.Positive(t, f.Members[0].Server.Totals().Completed)
	require.Positive(t, f.Members[1].Server.Totals().Completed)
}

func TestCompareWithoutAModel(t *testing.T) {
	nobody := httptest.NewServer(http.NotFoundHandler())
	defer nobody.Close()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(t.Context(), []string{"-backend", nobody.URL}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "/v1/models, 404 Not Found, lists no model: name one with -model")
}

func TestCompareInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(ctx, nil, &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "gateway: round-robin: context deadline exceeded")
}

func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"-model m":                       "-model needs -backend",
		"-single http://a":               "-single needs -backend",
		"-backend http://a -single b":    "-single: want http://HOST",
		"-backend http://a -endpoints 2": "-endpoints is for embedded servers, without -backend",
		"-listen :0 -repeat 2":           "-repeat is for comparing policies",
		"-listen :0 -api chat":           "-api is for comparing policies",
		"-repeat 0":                      "-repeat 0 is below 1",
		"-api best":                      `-api "best" is none of chat, completions, messages, responses`,
		"-policy lmetric":                "-policy needs -listen",
		"-grace 1s":                      "-grace needs -listen",
		"-listen :0 -backend http://a -backend-file f": "-backend and -backend-file can't both be given",
		"-backend-file f":                                "-backend-file needs -listen",
		"-listen :0 -admin=":                             "-admin is empty",
		"-admin :0":                                      "-admin needs -listen",
		"-trust-headers":                                 "-trust-headers needs -listen",
		"-listen :0 -duration 1s":                        "-duration is for comparing policies, without -listen",
		"-listen :0 -policies lmetric":                   "-policies is for comparing policies",
		"-listen :0 -format json":                        "-format is for comparing policies",
		"-listen :0 -backend http://a -endpoints 2":      "-endpoints is for embedded servers, without -backend",
		"-listen :0 -backend http://a -kv-tokens 9999":   "-kv-tokens is for embedded servers",
		"-listen :0 -backend a:80":                       "want http://HOST",
		"-listen :0 -backend http://a -backend http://a": "given twice",
		"-listen=":                   "-listen is empty",
		"-listen :0 -policy best":    `unknown policy "best"; there are aibrix, always-busiest,`,
		"-policies lmetric,,":        `unknown policy ""`,
		"-policies lmetric,lmetric":  `policy "lmetric" is given twice`,
		"-duration 0s":               "-duration 0s is not above zero",
		"-duration soon":             "invalid value",
		"-rate NaN":                  "-rate NaN is not above zero",
		"-rate -1":                   "-rate -1 is not above zero",
		"-format xml":                `-format "xml" is neither table nor json`,
		"-endpoints 0":               "-endpoints 0 is below 1",
		"-groups 0":                  "-groups 0 is below 1",
		"-question-tokens 0":         "-question-tokens 0 is below 1",
		"-output-tokens 0":           "-output-tokens 0 is below 1",
		"-turns 0":                   "-turns 0 is below 1",
		"-think -1s":                 "-think -1s is negative",
		"-system-tokens 0":           "-system-tokens 0 is below 1",
		"-system-tokens 20000":       "-kv-tokens 16384 can't hold a conversation of",
		"-queue -1":                  "-queue -1 is negative",
		"-queue 1 -queue-timeout 0s": "-queue-timeout 0s is not above zero",
		"-slo-ttft -1s":              "-slo-ttft -1s is not within 1ms and 1h0m0s",
		"-slo-tpot 2h":               "-slo-tpot 2h0m0s is not within 1ms and 1h0m0s",
		"-slo-tpot 20us":             "-slo-tpot 20µs is not within 1ms and 1h0m0s",
		"-listen :0 -slo-ttft 1s":    "-slo-ttft is for comparing policies",
		"-queue-timeout 1s":          "-queue-timeout needs -queue",
		"-listen :0 -grace -1s":      "-grace -1s is negative",
		"-frobnicate":                "flag provided but not defined",
		"something":                  `unexpected argument "something"`,
	} {
		t.Run(args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, 2, run(t.Context(), strings.Fields(args), &stdout, &stderr))
			require.Contains(t, stderr.String(), want)
			require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line, which no list of flags hides")
			require.Empty(t, stdout.String())
		})
	}
	t.Run("-h", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(t.Context(), []string{"-h"}, &stdout, &stderr))
		require.Contains(t, stderr.String(), "gateway -config FILE")
		require.Contains(t, stderr.String(), "-duration")
	})
}

// lockedBuffer is a bytes.Buffer for a command that still runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// command is a running gateway -listen.
type command struct {
	url       string
	admin     string // for metrics and the debug page
	stderr    *lockedBuffer
	interrupt context.CancelFunc
	status    chan int
}

var (
	routingOn   = regexp.MustCompile(`msg=routing url=(http\S+) `)
	decisionsAt = regexp.MustCompile(`decisions=(http://\S+)/debug/endpick`)
)

func start(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &command{stderr: &lockedBuffer{}, interrupt: cancel, status: make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.status <- run(ctx, append([]string{"-listen", "127.0.0.1:0"}, args...), io.Discard, c.stderr)
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

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func TestGracefulStop(t *testing.T) {
	c := start(t, "-endpoints", "2")
	status, _ := get(t, c.url+"/readyz")
	require.Equal(t, http.StatusOK, status)

	streaming := traffic.NewClient(c.url)
	defer streaming.Close()
	done := make(chan traffic.Sample, 1)
	go func() {
		done <- streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Count to a hundred."}}, 100)
	}()
	require.Eventually(t, func() bool {
		_, page := get(t, c.admin+"/debug/endpick")
		return strings.Contains(page, "open 1,")
	}, 5*time.Second, time.Millisecond)
	c.interrupt()
	require.Eventually(t, func() bool {
		status, _ := get(t, c.url+"/readyz")
		return status == http.StatusServiceUnavailable
	}, 5*time.Second, time.Millisecond, "says so while the stream goes on")
	refused := streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Too late."}}, 1)
	require.ErrorContains(t, refused.Err, "503")
	resp, err := http.Post(c.url+"/v1/messages", "application/json", strings.NewReader(`{"model":"m"}`))
	require.NoError(t, err)
	told, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	require.Equal(t, 503, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, string(told), `"message":"the gateway is stopping, try again"`)
	s := <-done
	require.NoError(t, s.Err, "a stream that had begun ends")
	require.Len(t, s.Text, 400)
	require.Equal(t, 0, <-c.status, c.stderr)
	require.Error(t, streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Too late."}}, 1).Err)
}

func TestStopAfterGrace(t *testing.T) {
	c := start(t, "-endpoints", "1", "-grace", "50ms")
	streaming := traffic.NewClient(c.url)
	defer streaming.Close()
	done := make(chan traffic.Sample, 1)
	go func() {
		done <- streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Count to ten thousand."}}, 10_000)
	}()
	require.Eventually(t, func() bool {
		_, page := get(t, c.admin+"/debug/endpick")
		return strings.Contains(page, "open 1,")
	}, 5*time.Second, time.Millisecond)
	c.interrupt()
	require.Equal(t, 1, <-c.status)
	require.Contains(t, c.stderr.String(), "1 requests were cut off after 50ms")
	require.Error(t, (<-done).Err)
}

func TestServeBackends(t *testing.T) {
	config, err := traffic.ServerConfig(4096)
	require.NoError(t, err)
	f, err := traffic.StartFleet(2, config)
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	c := start(t, "-policy", "round-robin", "-backend", "http://"+f.Members[0].Address, "-backend", "http://"+f.Members[1].Address)
	ask := traffic.NewClient(c.url)
	defer ask.Close()
	for range 4 {
		require.NoError(t, ask.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Hello."}}, 2).Err)
	}
	for _, m := range f.Members {
		require.EqualValues(t, 2, m.Server.Totals().Completed)
	}
	status, body := get(t, c.url+"/v1/models")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "demo-8b")
}

// The credentials in a server's address concern that server only.
func TestCredentialsAreNotLogged(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/chat/completions" {
			user, password, _ := r.BasicAuth()
			asked <- user + ":" + password
		}
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"Hi."}}]}`)
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	c := start(t, "-backend", "http://user:secret@"+address)
	resp, err := http.Post(c.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"Hi"}]}`))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "user:secret", <-asked)
	require.Contains(t, c.stderr.String(), "msg=endpoint id=http://"+address+" url=http://"+address)
	require.NotContains(t, c.stderr.String(), "secret")
	for _, page := range []string{"/debug/endpick", "/debug/endpick/caches", "/metrics"} {
		_, body := get(t, c.admin+page)
		require.NotContains(t, body, "secret", page)
	}
}

// What fails only when a gateway starts is reported with its field, or its flag.
func TestServeCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at, dir := taken.Addr().String(), t.TempDir()
	path, nowhere := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "none", "x")
	const endpoints = "endpoints: [{url: \"http://a\"}]\n"
	for text, want := range map[string]string{
		"listen: " + at + "\n" + endpoints:                          ":1: listen: listen tcp " + at + ": bind: address already in use\n",
		endpoints + "listen: 127.0.0.1:0\nadmin: " + at + "\n":      ":3: admin: listen tcp " + at + ": bind: address already in use\n",
		endpoints + "listen: 127.0.0.1:0\nrecord: {file: none/x}\n": ":3: record: open " + nowhere + ": no such file or directory\n",
		"listen: 127.0.0.1:0\ndiscover: {file: none/x}\n":           ":2: discover: " + nowhere + ": no such file or directory\n",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), []string{"-config", path}, io.Discard, &stderr))
		assert.Contains(t, stderr.String(), "gateway: "+path+want)
	}
	for args, want := range map[string]string{
		"-endpoints 1 -listen " + at:                          "-listen: listen tcp " + at + ": bind: address already in use\n",
		"-endpoints 1 -listen 127.0.0.1:0 -admin " + at:       "-admin: listen tcp " + at + ": bind: address already in use\n",
		"-endpoints 1 -listen 127.0.0.1:0 -record " + nowhere: "-record: open " + nowhere + ": no such file or directory\n",
		"-listen 127.0.0.1:0 -backend-file " + nowhere:        "-backend-file: " + nowhere + ": no such file or directory\n",
	} {
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), strings.Fields(args), io.Discard, &stderr))
		assert.Contains(t, stderr.String(), "gateway: "+want)
	}
}
