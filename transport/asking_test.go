package transport_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick/transport"
)

// strict refuses a request for usage, in its own words.
func strict(status int, words string) func(http.ResponseWriter, *http.Request, []byte) bool {
	return func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if !bytes.Contains(body, []byte("stream_options")) {
			return false
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(words))
		return true
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
			w.gets(t, tc.status, post(t, chatPath, `{"stream_options":{"include_usage":true},`+chatStream[1:]))
			assert.EqualValues(t, 5, e.requests.Load())
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
			w.WriteHeader(400)
			_, _ = w.Write([]byte(`{"error":"unknown parameter top_x"}`))
			return true
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
