package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport/scrape"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ids returns the endpoints that take requests.
func ids(g *gateway) (all []string) {
	for _, e := range g.router.Endpoints() {
		if !e.Removed {
			all = append(all, strings.TrimPrefix(e.Candidate.Endpoint.ID, "http://"))
		}
	}
	slices.Sort(all)
	return all
}

// follows are settings that follow a list, without a pause.
func follows(path string) *settings {
	s := parsed("discover: {file: \"" + path + "\"}\n")
	s.Discover.Interval = time.Millisecond
	return s
}

// Servers come and go with the lines of a file; one that stays keeps its requests in
// flight, an invalid file changes nothing, and a reload may switch between a file and a list.
func TestEndpointsFollowAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	write := func(text string) { writeFile(t, path, text) }
	write("http://a:1\n\n# spare\nhttp://b:1\n")
	var logged rig.Output
	g := loggingGateway(t, &logged, follows(path))
	require.Equal(t, time.Millisecond, g.watching(follows(path)).Interval)
	becomes := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(want, ids(g)) }, 30*time.Second, time.Millisecond, "%v", ids(g))
	}
	require.Equal(t, []string{"a:1", "b:1"}, ids(g), "from the start")
	lease := rig.Must(g.router.Route(endpick.Request{Exclude: []string{"http://a:1"}}))
	write("http://b:1\nhttp://c:1\n")
	becomes("b:1", "c:1")
	for _, bad := range []string{"", "# nobody\n", "http://c:1\n{\n", "http://c:1\nhttp://c:1\n"} {
		write(bad)
		time.Sleep(30 * time.Millisecond) // time for several polls
		require.Equal(t, []string{"b:1", "c:1"}, ids(g))
	}
	require.Contains(t, logged.String(), `level=ERROR msg="endpoints stay as they are" error=`)
	require.Equal(t, 1, g.router.Stats().OpenLeases)
	require.Equal(t, "http://b:1", lease.Endpoint().Address)
	broken := scorer.Cost("broken", func(*endpick.Request, *endpick.Candidate) float64 { panic("boom") })
	require.NoError(t, g.router.SetPolicy(endpick.Policy{Scorers: []endpick.Weighted{{Scorer: broken, Weight: 1}}}))
	require.True(t, rig.Must(g.router.Route(endpick.Request{})).Done(endpick.Outcome{}))
	require.Contains(t, logged.String(), `level=ERROR msg=router error=`)

	require.NoError(t, g.apply(follows(path)), "the same discovery goes on, whatever the file has become")
	for _, none := range []string{"/no/such/file", writeFile(t, filepath.Join(t.TempDir(), "twice"), "http://x:1\nhttp://x:1\n")} {
		require.Error(t, g.apply(follows(none)))
	}
	require.Equal(t, []string{"b:1", "c:1"}, ids(g))
	write("http://d:1\n")
	becomes("d:1")
	require.NoError(t, g.apply(parsed("endpoints: [{url: \"http://b:1\"}]\n")))
	require.Zero(t, g.discovery.settings, "nobody looks at the file any more")
	write("http://e:1\n")
	require.Equal(t, []string{"b:1"}, ids(g))
	require.NoError(t, g.apply(follows(path)))
	becomes("e:1")
	require.True(t, lease.Done(endpick.Outcome{}))
}

// The list of the old source may change while a reload takes over that of another. It counts no more.
func TestTheOldListChangesDuringAReload(t *testing.T) {
	dir := t.TempDir()
	old, next := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	writeFile(t, old, "http://a:1\n")
	writeFile(t, next, "http://b:1\n")
	logged := new(lineHook)
	g := loggingGateway(t, logged, follows(old))
	require.Equal(t, []string{"a:1"}, ids(g))
	logged.next(func() { // the new list has just been applied
		writeFile(t, old, "http://c:1\n")
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end) && !slices.Equal(ids(g), []string{"c:1"}); {
			time.Sleep(time.Millisecond)
		}
	})
	require.NoError(t, g.apply(follows(next)))
	require.Equal(t, []string{"b:1"}, ids(g))
}

// While a new source does not answer, and when it has gone, the endpoints follow the old one.
func TestTheOldListIsFollowedWhileTheNewSourceHangs(t *testing.T) {
	dir := t.TempDir()
	old, hangs := filepath.Join(dir, "old"), filepath.Join(dir, "hangs")
	writeFile(t, old, "http://a:1\n")
	require.NoError(t, syscall.Mkfifo(hangs, 0o600)) // whoever reads it waits for somebody who writes
	g := gatewayOf(t, follows(old))
	applied := make(chan error)
	go func() { applied <- g.apply(follows(hangs)) }()
	w := rig.Must(os.OpenFile(hangs, os.O_WRONLY, 0)) // once it is read
	writeFile(t, old, "http://b:1\n")
	assert.Eventually(t, func() bool { return slices.Equal([]string{"b:1"}, ids(g)) }, 30*time.Second, time.Millisecond)
	rig.Must(w.WriteString("http://c:1\n"))
	require.NoError(t, os.Remove(hangs)) // before it is read again
	require.NoError(t, w.Close())
	require.ErrorContains(t, <-applied, "no such file")
	writeFile(t, old, "http://d:1\n")
	require.Eventually(t, func() bool { return slices.Equal([]string{"d:1"}, ids(g)) }, 30*time.Second, time.Millisecond, "the old one goes on")
}

// The settings refer to a router's endpoint by its ID, or else by address and rank.
func TestEndpointsAreTheSettings(t *testing.T) {
	zero, one := 0, 1
	for name, all := range map[string][]endpointSettings{
		"all kinds":        {{URL: "http://a"}, {URL: "http://a", Rank: &zero}, {URL: "http://a", Rank: &one}, {URL: "http://b", ID: "named"}, {URL: "http://u:p@c"}},
		"one has a name":   {{URL: "http://a"}, {URL: "http://a", ID: "named"}},
		"the first has it": {{URL: "http://a", ID: "named"}, {URL: "http://a"}},
	} {
		s := &settings{Endpoints: all}
		for i, there := range rig.Must(endpick.New(endpick.Config{Endpoints: s.endpoints()})).Endpoints() {
			require.Same(t, &all[i], s.entry(there.Candidate.Endpoint), "%s: %s", name, there.Candidate.Endpoint.ID)
		}
		require.Nil(t, s.entry(&endpick.Endpoint{ID: "http://d", Address: "http://d"}))
	}
}

func TestPollingReports(t *testing.T) {
	f := startFleet(t, 2, 4096)
	require.NoError(t, f.Members[1].Kill())
	var logged rig.Output
	g := loggingGateway(t, &logged, plain("lmetric"), f.Endpoints()...)

	// Directly to the server: the router learns of it from the report alone.
	c := traffic.NewClient("http://" + f.Members[0].Address)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan traffic.Sample, 1)
	go func() { done <- c.Ask(ctx, time.Now(), []traffic.Message{{Role: "user", Content: "Hello."}}, 3000) }()
	require.Eventually(t, func() bool {
		e := g.router.Endpoints()[0].Candidate
		return e.Report != nil && e.Running == 1 && e.KVUsage > 0
	}, 5*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, (<-done).Err, context.Canceled)
	require.Eventually(t, func() bool { return strings.Contains(logged.String(), "ids=server-2 ") }, 30*time.Second, time.Millisecond)
	require.Nil(t, g.router.Endpoints()[1].Candidate.Report, "a dead server reports nothing")
}

// A dead server causes one log line an hour, not one per poll, and another one if it has another error.
func TestPollErrorsAreLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged rig.Output
		p := newPollErrors(newLogger(&logged, &logSettings{Level: "info"}))
		fail := func(so time.Duration, err error) {
			for began := time.Now(); time.Since(began) < so; time.Sleep(time.Second) {
				p.report(&scrape.Error{Endpoint: "server-1", Err: err})
				p.report(&scrape.Error{Endpoint: "server-2", Err: err})
			}
		}
		for i, err := range []error{io.EOF, io.EOF, io.ErrClosedPipe, io.ErrClosedPipe} {
			fail(40*time.Minute, err)
			require.Equal(t, i+1, strings.Count(logged.String(), ` engines=2 ids="server-1 server-2" error="scrape: endpoint \"server-1\"`), logged.String())
			require.Equal(t, i+1, strings.Count(logged.String(), "\n"))
		}
		fail(2*time.Second, io.EOF)
		fail(50*time.Second, io.ErrClosedPipe)
		require.Equal(t, 5, strings.Count(logged.String(), "\n"), "one a minute at most")
		for i := range 4000 {
			p.report(&scrape.Error{Endpoint: fmt.Sprint(i), Err: io.EOF})
			time.Sleep(time.Second)
		}
		require.Equal(t, 3600, len(p.last), "those that are gone are forgotten")
	})
}

func TestClientsSeeReadinessAlone(t *testing.T) {
	g := gatewayOf(t, plain("random"), endpick.Endpoint{Address: "127.0.0.1:1"})
	for path, want := range map[string]int{"/readyz": 200, "/health": 200, "/debug/endpick": 404, "/metrics": 404, "/healthz": 404, "/": 404} {
		require.Equal(t, want, send(g, "GET", path, "").Code, path)
	}
}

// Servers with unlike models need no configuration: each is asked, with the key of the engines, what it has.
func TestRequestsGoWhereTheirModelIs(t *testing.T) {
	serve := func(names ...string) *httptest.Server {
		return serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			var asked struct{ Model string }
			_ = json.Unmarshal(body, &asked)
			switch {
			case r.URL.Path == "/metrics":
				http.NotFound(w, r)
			case r.Header.Get("Authorization") != "Bearer secret-of-engines":
				w.WriteHeader(http.StatusUnauthorized)
			case r.URL.Path == "/v1/models":
				fmt.Fprintf(w, `{"data":[{"id":"%s","max_model_len":77}]}`, strings.Join(names, `"},{"id":"`))
			case !slices.Contains(names, asked.Model) && !slices.Contains(names, asked.Model+":latest"):
				http.NotFound(w, r)
			}
		}))
	}
	a, b := serve("llama", "tiny:latest"), serve("qwen")
	g := newTestGateway(t, `{engine_key: secret-of-engines, policy: random, endpoints: [{url: "`+a.URL+`"}, {url: "`+b.URL+`"}]}`)
	for range 10 {
		for model, want := range map[string]int{"llama": 200, "qwen": 200, "tiny": 200, "tiny:latest": 200, "gpt": 404} {
			w := askFor(g, "/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"Hello."}]}`)
			require.Equal(t, want, w.Code, model)
			require.Equal(t, want == 404, strings.Contains(w.Body.String(), "the model `gpt` does not exist; there are `llama`, `qwen`, `tiny`, `tiny:latest`"))
		}
	}
	require.Contains(t, see(t, g, "/v1/models"), `"id":"qwen","max_model_len":77`)
}

// A server that would wake is asked nothing, and the others as often as the file says.
func TestWhoIsAsked(t *testing.T) {
	asked := map[string]*atomic.Int64{}
	text := "poll: 50ms\nendpoints:\n"
	for _, unasked := range []string{"true", "false"} {
		n := new(atomic.Int64)
		asked[unasked] = n
		server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			_, _ = io.WriteString(w, map[string]string{"/metrics": "vllm:num_requests_running 0\n", "/v1/chat/completions": "{}"}[r.URL.Path])
		}))
		text += "  - {url: " + server.URL + ", id: " + unasked + ", unasked: " + unasked + "}\n"
	}
	g := newTestGateway(t, text)
	require.Eventually(t, func() bool { return asked["false"].Load() > 20 }, 30*time.Second, time.Millisecond)
	require.Zero(t, asked["true"].Load())
	require.NoError(t, g.router.Remove("false"))
	require.Equal(t, 200, askGateway(g, "/v1/chat/completions").Code)
	require.Equal(t, int64(1), asked["true"].Load(), "but it is used")
	see(t, g, "/v1/models")
	require.Equal(t, int64(1), asked["true"].Load(), "nor is it asked by who lists the models")
}

// Nor is it asked while it comes with a new file.
func TestWhoIsAskedDuringAReload(t *testing.T) {
	logged := new(lineHook)
	g := loggingGateway(t, logged, parsed("endpoints: [{url: http://a, unasked: true}]\n"))
	logged.next(func() {
		for _, address := range []string{"http://a", "http://b"} {
			require.True(t, g.unasked(&endpick.Endpoint{Address: address}), address)
		}
	})
	require.NoError(t, g.apply(parsed("endpoints: [{url: http://b, unasked: true}]\n")))
	require.Nil(t, logged.do.Load(), "it has come")
	none := follows(filepath.Join(t.TempDir(), "none"))
	none.Discover.Endpoint.Unasked = true // which a file says of none
	require.Error(t, g.apply(none))
	require.True(t, g.unasked(&endpick.Endpoint{Address: "http://b"}))
	require.False(t, g.unasked(&endpick.Endpoint{Address: "http://a"}))
	require.Equal(t, "http://c:1/metrics", g.page("/metrics")(&endpick.Endpoint{Address: "h2c://c:1"}))
	resp := rig.Must(g.asking(1).Get(serving(t, http.RedirectHandler("http://elsewhere.invalid", http.StatusFound)).URL))
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusFound, resp.StatusCode, "the engines' key is for nobody else")
}
