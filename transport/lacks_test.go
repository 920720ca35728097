package transport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

// Servers whose models nobody has named: one that does not have a model is no worse for that, and
// requests for it go where it is. No request asks two ranks of one server.
func TestServersWithUnlikeModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		has := map[string]string{"a": "ours", "c": "theirs"}
		sent := map[string]int{}
		adapt := func(_ *http.Request, _ []byte, req *endpick.Request) {
			if req.Model == "theirs, adapted" {
				req.Model, req.Adapter = "base", req.Model
			}
		}
		w := newWorldOf(t, transport.Config{Describe: adapt, Base: tripper(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			sent[r.URL.Host]++
			if strings.Contains(string(body), has[r.URL.Host]) {
				return answered(200, "application/json", "{}")
			}
			_, name, _ := strings.Cut(string(body), `"model":"`)
			name, _, _ = strings.Cut(name, `"`)
			return answered(404, "application/json", fmt.Sprintf(`{"error":{"message":"The model %s does not exist.","code":404}}`, name))
		})}, endpick.Config{Endpoints: []endpick.Endpoint{
			{ID: "a", Address: "a", Ranked: true}, {ID: "b", Address: "a", Ranked: true, Rank: 1}, {ID: "c", Address: "c"},
		}})
		ask := func(status int, model string) {
			t.Helper()
			w.gets(t, status, post(t, completions, `{"model":"`+model+`","prompt":"x"}`))
		}
		for range 20 {
			ask(200, "theirs")
		}
		assert.Equal(t, map[string]int{"a": 2, "c": 20}, sent)
		for range 20 {
			ask(200, "ours")
			ask(200, "theirs")
		}
		assert.Zero(t, w.t.Stats().Unhealthy)
		assert.Equal(t, map[string]int{"a": 22, "c": 40}, sent)
		for range 20 {
			ask(200, "theirs, adapted")
		}
		assert.Equal(t, map[string]int{"a": 24, "c": 60}, sent)
		clear(sent)
		for range 20 { // again, later, and no client sees it
			time.Sleep(30 * time.Second)
			ask(200, "theirs")
			ask(200, "theirs")
		}
		assert.Equal(t, map[string]int{"a": 40, "c": 40}, sent, "each rank once")
		assert.Zero(t, w.t.Stats().Unhealthy)

		clear(sent)
		for i := range 1000 { // which nobody has
			ask(404, fmt.Sprint("invented", i))
		}
		assert.InDelta(t, 1000, sent["a"], 8)
		assert.LessOrEqual(t, sent["c"], 4+4)
		assert.Zero(t, w.t.Stats().Unhealthy)
		has["a"] = "m"
		time.Sleep(30 * time.Second)
		ask(200, "theirs") // it has been loaded meanwhile, or not
		w.idle(t)
	})
}

// A server that has not got an API is no worse for others, and after a first request for it, which no client
// sees, such requests go elsewhere.
func TestServersWithUnlikeAPIs(t *testing.T) {
	for _, lacking := range []handler{status(404), status(405), status(501), says("application/json", `{"error":"Unexpected endpoint or method. (POST /v1/messages)"}`)} {
		refuses := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			return r.URL.Path != chatPath && lacking(w, r, body)
		})
		w := newWorld(t, transport.Config{}, refuses.URL, startEngine(t, nil).URL)
		for range 5 {
			for _, path := range []string{"/v1/messages", chatPath} {
				w.ok(t, post(t, path, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`))
			}
		}
		assert.EqualValues(t, 1+5, refuses.requests.Load())
		for range 2 { // with a prefix that a client may have invented, it is not remembered
			w.ok(t, post(t, "/x/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`))
		}
		assert.EqualValues(t, 1+5+2, refuses.requests.Load())
		assert.Zero(t, w.t.Stats().Unhealthy)
		w.idle(t)
	}
}

// What a client invents changes nothing for others, whatever a server repeats of it when it refuses that.
func TestWhatClientsInventIsNotLacking(t *testing.T) {
	for _, odd := range []struct{ path, body, says string }{
		{chatPath, `{"model":"caf\u00e9"}`, `no model caf\u00e9`},
		{"/v1/messages", `{"model":"/v1/messages"}`, "no model /v1/messages"},
		{chatPath, `{"model":"/v1/messages"}`, "no model /v1/messages"},
		{"/v1/responses", `{"model":"m","store":false,"previous_response_id":"resp_model m"}`, "Response with id 'resp_model m' not found."},
		{"/model m/v1/messages", `{"model":"m"}`, "Cannot POST /model m/v1/messages"},
	} {
		picky := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			return string(body) == odd.body && r.URL.Path == odd.path && status(404, `{"message":"`+odd.says+`"}`)(w, r, body)
		})
		other := startEngine(t, nil)
		w := newWorld(t, transport.Config{}, picky.URL, other.URL)
		ask := func(path, body string) { w.ok(t, post(t, strings.ReplaceAll(path, " ", "%20"), body)) }
		ask(odd.path, odd.body)
		for _, path := range []string{chatPath, "/v1/messages", "/v1/responses"} {
			ask(path, `{"model":"m","max_tokens":5,"store":false,"input":"hi","messages":[{"role":"user","content":"hi"}]}`)
		}
		assert.EqualValues(t, 1, other.requests.Load(), odd.says)
		w.idle(t)
	}
}

// One server lives beside hundreds that refuse connections: the first request finds it, and the
// next ones know.
func TestOneLivesBesideManyDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 400
		dials := 0
		base := tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "z" {
				dials++
				return nil, noDial
			}
			return answered(200, "application/json", "{}")
		})
		w := newWorld(t, transport.Config{Base: base})
		for i := range dead {
			w.add(t, fmt.Sprintf("a%d", i), fmt.Sprintf("a%d", i))
		}
		w.add(t, "z", "z")
		request := func() *http.Request { return post(t, completions, `{"model":"m","prompt":"x"}`) }
		w.ok(t, request())
		assert.Equal(t, dead, dials)
		dials = 0
		for range 100 {
			w.ok(t, request())
		}
		assert.Zero(t, dials, "it is known who is dead")
		for range 60 {
			time.Sleep(time.Second)
			w.ok(t, request())
		}
		t.Log(dials, "trials in a minute")

		require.NoError(t, w.router.Remove("z"))
		dials = 0
		_, _, err := w.do(t, request())
		require.Error(t, err)
		assert.Equal(t, 3, dials, "if none lives, nobody asks all of them")

		never := rig.Must(transport.New(transport.Config{Router: w.router, Base: base, MaxAttempts: 1}))
		dials = 0
		_, err = never.RoundTrip(request())
		require.Error(t, err)
		assert.Equal(t, 1, dials)
	})
}

// strict refuses a request for usage, in its own words.
func strict(code int, words string) handler {
	return func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		return bytes.Contains(body, []byte("stream_options")) && status(code, words)(w, nil, nil)
	}
}

// An engine that takes a request without the gateway takes it with the gateway, also if it refuses
// what the gateway adds; it is asked for that once.
func TestAnEngineThatRefusesTheRequestForUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		words  string
	}{
		"says why": {422, `{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}`},
		"does not": {400, `{"error":"Unexpected field"}`},
	} {
		t.Run(name, func(t *testing.T) {
			e, other := startEngine(t, strict(tc.status, tc.words)), startEngine(t, nil)
			w, reported := watched(t, transport.Config{MaxAttempts: 1}, e.URL, other.URL)
			for n := range 3 {
				_, body := w.ok(t, post(t, chatPath, chatStream))
				assert.Contains(t, body, "upon")
				assert.JSONEq(t, chatStream, e.lastBody())
				want := []string{"a served 200"}
				if n == 0 {
					want = []string{fmt.Sprint("a refused ", tc.status), "a served 200"}
				}
				assert.Equal(t, want, way(next(t, reported)))
			}
			assert.Zero(t, other.requests.Load())
			assert.Zero(t, w.t.Stats().Unhealthy)
			// A client's own wish is the client's own fault.
			for range 4 {
				w.gets(t, tc.status, post(t, chatPath, `{"stream_options":{"include_usage":true},`+chatStream[1:]))
			}
			assert.EqualValues(t, 8, e.requests.Load())
			assert.Zero(t, w.t.Stats().Unhealthy, "though no other was asked")
			w.idle(t)
		})
	}
}

// A refusal that has nothing to do with usage is the client's, and costs one request, once it is
// known that the engine takes such requests; one that names the field is always tried without.
func TestARefusalThatHasNothingToDoWithUsage(t *testing.T) {
	words := `{"error":"bad"}`
	mood := http.StatusOK
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		switch mood {
		case 422:
			return strict(mood, words)(w, r, body)
		case 499:
			return status(400, `{"error":"unknown parameter top_x"}`)(w, r, body)
		}
		return mood != 200 && status(mood)(w, r, body)
	})
	w := newWorld(t, transport.Config{}, e.URL)
	asks := func(status, requests int) {
		t.Helper()
		before := e.requests.Load()
		w.gets(t, status, post(t, chatPath, chatStream))
		assert.EqualValues(t, requests, e.requests.Load()-before, mood)
	}
	for _, tc := range []struct{ mood, status, requests int }{
		{400, 400, 1}, {499, 400, 2}, {499, 400, 2}, // not known yet
		{404, 404, 1}, {200, 200, 1}, {400, 400, 1}, {422, 422, 1}, {499, 400, 1},
	} {
		mood = tc.mood
		asks(tc.status, tc.requests)
	}
	mood, words = 422, `{"detail":"stream_options: unknown"}` // it was replaced by another engine
	asks(200, 2)
	asks(200, 1)
	w.idle(t)
}

// What a client says to change its connection to the gateway is not for the endpoint.
func TestUpgradesOfTheConnection(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{}, e.URL)
	for upgrade, want := range map[string]string{
		"h2c": "", "H2C": "", "TLS/1.0, HTTP/2.0": "", "h2c, websocket": "websocket", "websocket": "websocket", "echo/1": "echo/1",
	} {
		w.ok(t, post(t, chatPath, chatAtOnce, "Connection", "Upgrade, HTTP2-Settings", "Upgrade", upgrade, "HTTP2-Settings", "AAEAAEAA"))
		e.mu.Lock()
		assert.Equal(t, want, e.last.Header.Get("Upgrade"), upgrade)
		assert.Equal(t, want == "", e.last.Header.Get("Connection") == "", upgrade)
		assert.Empty(t, e.last.Header.Get("HTTP2-Settings"))
		e.mu.Unlock()
		assert.Equal(t, chatAtOnce, e.lastBody())
	}
	w.ok(t, post(t, chatPath, chatAtOnce, "Connection", "close"))
}
