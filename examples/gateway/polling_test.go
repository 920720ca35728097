package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/transport/scrape"
	"github.com/stretchr/testify/require"
)

func TestPollingReports(t *testing.T) {
	f := startFleet(t, 2, 4096)
	require.NoError(t, f.Members[1].Kill())
	var logged lockedBuffer
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
	g.close()
}

// A dead server causes one log line an hour, not one per poll, and another one if it has another error.
func TestPollErrorsAreLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged lockedBuffer
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
	for path, want := range map[string]int{"/readyz": 200, "/debug/endpick": 404, "/metrics": 404, "/healthz": 404, "/": 404} {
		require.Equal(t, want, send(g, "GET", path, "").Code, path)
	}
}

// Servers with unlike models need no configuration: each is asked, with the key of the engines, what
// it has.
func TestRequestsGoWhereTheirModelIs(t *testing.T) {
	serve := func(names ...string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		t.Cleanup(s.Close)
		return s
	}
	a, b := serve("llama", "tiny:latest"), serve("qwen")
	g := newTestGateway(t, `{engine_key: secret-of-engines, policy: random, endpoints: [{url: "`+a.URL+`"}, {url: "`+b.URL+`"}]}`)
	for range 10 {
		for model, want := range map[string]int{"llama": 200, "qwen": 200, "tiny": 200, "tiny:latest": 200, "gpt": 404} {
			w := askFor(g, "/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"Hello."}]}`)
			require.Equal(t, want, w.Code, model)
			if model == "gpt" {
				require.Contains(t, w.Body.String(), "the model `gpt` does not exist; there are `llama`, `qwen`, `tiny`, `tiny:latest`")
			}
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
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			_, _ = io.WriteString(w, map[string]string{"/metrics": "vllm:num_requests_running 0\n", "/v1/chat/completions": "{}"}[r.URL.Path])
		}))
		defer server.Close()
		text += "  - {url: " + server.URL + ", id: " + unasked + ", unasked: " + unasked + "}\n"
	}
	g := newTestGateway(t, text)
	require.Eventually(t, func() bool { return asked["false"].Load() > 20 }, 30*time.Second, time.Millisecond)
	require.Zero(t, asked["true"].Load())
	require.NoError(t, g.router.Remove("false"))
	require.Equal(t, 200, askGateway(g, "/v1/chat/completions").Code)
	require.Equal(t, int64(1), asked["true"].Load(), "but it is used")
	w := httptest.NewRecorder()
	g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/models", nil))
	require.Equal(t, 200, w.Code)
	require.Equal(t, int64(1), asked["true"].Load(), "nor is it asked by who lists the models")
}

// Nor is it asked while it comes with a new file.
func TestWhoIsAskedDuringAReload(t *testing.T) {
	logged := new(lineHook)
	g := loggingGateway(t, logged, parsed(t, "endpoints: [{url: http://a, unasked: true}]\n"))
	logged.next(func() {
		for _, address := range []string{"http://a", "http://b"} {
			require.True(t, g.unasked(&endpick.Endpoint{Address: address}), address)
		}
	})
	require.NoError(t, g.apply(parsed(t, "endpoints: [{url: http://b, unasked: true}]\n")))
	require.Nil(t, logged.do.Load(), "it has come")
	require.False(t, g.unasked(&endpick.Endpoint{Address: "http://a"}))
	source := "discover: {file: " + filepath.Join(t.TempDir(), "none") + "}\n"
	require.Error(t, g.apply(parsed(t, source)))
	require.True(t, g.unasked(&endpick.Endpoint{Address: "http://b"}))
}
