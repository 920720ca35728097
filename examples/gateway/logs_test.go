package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Failed requests are logged with what identifies them: streams that break off, unauthorized clients, invalid headers.
func TestRequestsThatGoWrongAreLogged(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Slo-Ttft-Ms") != "" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		w.Header().Set("Content-Type", "Text/Event-Stream;charset=utf-8")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := startConfig(t, writeSettings(t, "listen: 127.0.0.1:0\nendpoints: [{id: a, url: "+server.URL+"}]\ntenants: {ann: {keys: ["+annsKey+"]}}\n"))
	const chat = `{"model":"m","stream":true,"messages":[{"role":"user","content":"cardamom"}]}`
	send := func(body string, headers ...string) int {
		req := rig.Must(http.NewRequest(http.MethodPost, c.url+"/v1/chat/completions?key=secret", strings.NewReader(body)))
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp := rig.Must(http.DefaultClient.Do(req))
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		assert.Equal(t, resp.Header.Get("Content-Type") == "Text/Event-Stream;charset=utf-8", resp.Header.Get("X-Accel-Buffering") == "no", "nginx holds streams back")
		return resp.StatusCode
	}
	const named = `method=POST path=/v1/chat/completions id=`
	require.Equal(t, 200, send(chat, "Authorization", "Bearer "+annsKey, "X-Request-Id", "order-17 status=completed\t"+strings.Repeat("x", 1000)))
	c.logs(t, "level=WARN msg=request status=failed http=200 "+named+"order-17_status_completed_xxx", 1)
	assert.Regexp(t, `x model=m endpoint=a attempts=1 .* tenant=ann error="unexpected EOF"\n`, c.stderr.String())
	assert.NotContains(t, c.stderr.String(), strings.Repeat("x", maxLogged))

	require.Equal(t, 401, send(chat, "Authorization", "Bearer guessed"))
	c.logs(t, "level=WARN msg=request status=refused http=401 "+named, 1)
	assert.Regexp(t, named+`[A-Z2-7]{26} client=127.0.0.1 error="no valid API key"\n`, c.stderr.String())
	_, metrics := get(c.admin + "/metrics")
	assert.Contains(t, metrics, `endpick_requests_total{code="401",model="other",reason="unknown_key",status="refused"} 1`)

	require.Equal(t, 200, send(chat, "Authorization", "Bearer "+annsKey, "X-Slo-Ttft-Ms", "abc"))
	c.logs(t, "level=WARN msg=request "+named, 1)
	assert.Regexp(t, named+`[A-Z2-7]{26} warning=".*\\"abc\\"`, c.stderr.String())
	require.Equal(t, 400, send("cardamom", "Authorization", "Bearer "+annsKey))
	c.logs(t, "level=WARN msg=request status=refused http=400 "+named, 1)
	assert.Regexp(t, `http=400 .* tenant=ann error=`, c.stderr.String(), "whose mistake it is")
	for _, secret := range []string{"secret", annsKey, "guessed", "cardamom"} {
		assert.NotContains(t, c.stderr.String(), secret)
	}
}

// Whoever can't be reached is not told which flag to set, but others are.
func TestHintsForEnginesThatAnswer(t *testing.T) {
	dead, answers := &url.Error{Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}, errors.New("404")
	for hint, batches := range map[bool][]map[string]error{
		true:  {{"a": answers}, {"a": answers, "b": dead}, {"a": dead, "b": answers}},
		false: {{"a": dead}, {"a": dead, "b": dead}},
	} {
		for _, batch := range batches {
			var lines rig.Output
			p := newPollErrors(newLogger(&lines, &logSettings{Level: "info"}))
			p.waiting = batch
			want := fmt.Sprintf("engines=%d ids=", len(batch))
			p.flush()
			assert.Contains(t, lines.String(), want)
			assert.Equal(t, hint, strings.Contains(lines.String(), "hint="), lines.String())
		}
	}
}

// Clients can't fill the log with what they do wrong; what a server or the gateway does is there.
func TestFewLinesAreLogged(t *testing.T) {
	var f few
	now := time.Unix(1000, 0)
	next := func(after time.Duration) []any {
		more, ok := f.next(now.Add(after))
		return []any{more, ok}
	}
	for i := range 15 {
		assert.Equal(t, []any{0, i < maxFew}, next(0))
	}
	assert.Equal(t, []any{15 - maxFew, true}, next(time.Second))
	assert.Equal(t, []any{0, true}, next(0), "the clock was set back")

	g := newTestGateway(t, "endpoints: [{url: "+newBackend(t).URL+"}]\n"+annAndBob)
	var lines rig.Output
	g.requests.log = newLogger(&lines, &logSettings{Level: "info"})
	g.requests.which = "none"
	g.requests.stranger(httptest.NewRequest(http.MethodPost, "/", nil))
	assert.Empty(t, lines.String())
	g.requests.which = "all"
	for range 1000 {
		require.Equal(t, 401, askGateway(g, "/v1/chat/completions").Code)
	}
	assert.Less(t, strings.Count(lines.String(), "\n"), 1000)
	g.requests.which = "failed"
	for range 1000 {
		require.Equal(t, 400, askFor(g, "/v1/chat/completions", "{", "X-Api-Key", annsKey).Code)
	}
	require.Equal(t, 400, askFor(g, "/v1/chat/completions", "{", "X-Api-Key", bobsKey).Code)
	assert.Less(t, strings.Count(lines.String(), "tenant=ann"), 1000)
	assert.Contains(t, lines.String(), "tenant=bob", "one tenant's mistakes do not hide another's")
	g.stopping.Store(true)
	for range 1000 {
		require.Equal(t, 503, askGateway(g, "/v1/chat/completions", "X-Api-Key", annsKey).Code)
	}
	assert.Less(t, strings.Count(lines.String(), "http=503"), 1000, "they say the same")
	assert.Regexp(t, `status=failed http=503 .* tenant=ann`, lines.String())
	assert.Zero(t, g.keys.Load().owner(annsKey).reading.Load(), "nobody reads its body")
}

// A server that does not speak HTTP can't fill the log.
func TestErrorsAreShort(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		assert.NoError(t, err)
		_, _ = io.WriteString(conn, "HTTP/1.1 "+strings.Repeat("x", 100_000)+"\r\n\r\n")
		_ = conn.Close()
	})
	g := gatewayOf(t, plain("random"), endpick.Endpoint{ID: "a", Address: server.URL}, endpick.Endpoint{ID: "b", Address: server.URL})
	var lines rig.Output
	g.requests.log, g.requests.which = newLogger(&lines, &logSettings{Level: "info"}), "all"
	require.Equal(t, 502, askGateway(g, "/v1/chat/completions").Code)
	assert.Contains(t, lines.String(), " earlier=")
	assert.Less(t, len(lines.String()), 4<<10)
}

func TestCleanID(t *testing.T) {
	for id, want := range map[string]string{
		"":                             "",
		"7f3a-19_b.c:d/e+f":            "7f3a-19_b.c:d/e+f",
		"a b\"c\n=":                    "a_b_c__",
		"naïve":                        "na_ve",
		"a" + strings.Repeat("é", 100): "a" + strings.Repeat("_", maxLogged/2-1),
		strings.Repeat("ab", 100):      strings.Repeat("ab", maxLogged/2),
	} {
		assert.Equal(t, want, cleanID(id))
		assert.Regexp(t, regexp.MustCompile(`^[-\w.:/+]*$`), cleanID(id))
	}
}

// A request has one id: in the log, at the server and in the response, also if the server has one of
// its own, or can't be reached.
func TestOneID(t *testing.T) {
	var got []string
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header[idHeader]
		w.Header().Set(idHeader, "the server's")
		_, _ = io.WriteString(w, "{}")
	})
	for _, address := range []string{server.URL, "http://127.0.0.1:1"} {
		g := gatewayOf(t, plain("random"), endpick.Endpoint{ID: "a", Address: address})
		var lines rig.Output
		g.requests.log, g.requests.which = newLogger(&lines, &logSettings{Level: "info"}), "all"
		for _, own := range []string{"", "order-17", strings.Repeat("x", 200) + "\n"} {
			headers, want := []string(nil), `^[A-Z2-7]{26}$`
			if own != "" {
				headers, want = []string{idHeader, own, idHeader, "another", "Connection", idHeader}, "^"+cleanID(own)+"$"
			}
			w := askGateway(g, "/v1/chat/completions", headers...)
			require.Len(t, w.Header()[idHeader], 1)
			id := w.Header().Get(idHeader)
			assert.Regexp(t, want, id)
			assert.Contains(t, lines.String(), " id="+id+" ")
			if address == server.URL {
				assert.Equal(t, []string{id}, got)
			}
		}
	}
}
