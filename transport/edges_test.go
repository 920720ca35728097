package transport_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// A refusal that was checked at a second endpoint reaches the client whole, however long it is.
func TestALongRefusalStaysWhole(t *testing.T) {
	long := strings.Repeat("the model does not exist; ", 1000)
	a := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, long)
		return true
	})
	b := startEngine(t, status(503))
	w := newWorld(t, transport.Config{}, a.URL, b.URL)
	for range 2 {
		_, body := w.gets(t, http.StatusNotFound, post(t, chatPath, chatStream))
		assert.Equal(t, long, body)
	}
	assert.EqualValues(t, 2, b.requests.Load(), "it might have the model")
	w.idle(t)
}

// A stream that ends with an error counts as failed, in the record and for health,
// even though it is passed on whole.
func TestAnErrorWithinAStreamIsAFailure(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, delta(`"content":"word"`))
		w.(http.Flusher).Flush()
		io.WriteString(w, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"+done)
		return true
	})
	w := newWorld(t, transport.Config{}, e.URL)
	_, body := w.ok(t, post(t, chatPath, chatStream))
	assert.Contains(t, body, "out of memory")
	assert.Equal(t, endpick.Failed, w.outcome(t).Status)
	assert.Equal(t, "failed", w.record(t).Status)
	for range 3 {
		w.ok(t, post(t, chatPath, chatStream))
	}
	assert.Equal(t, 1, w.t.Stats().Unhealthy)
}

// Long headers pass, up to a limit.
func TestHeadersOfResponsesAreBounded(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		n, _ := strconv.Atoi(r.Header.Get("X-Name"))
		w.Header().Set("X-Long", strings.Repeat("x", n))
		return false
	})
	w := newWorld(t, transport.Config{MaxAttempts: 1}, e.URL)
	resp, _ := w.ok(t, post(t, chatPath, chatStream, "X-Name", "1000000"))
	assert.Len(t, resp.Header.Get("X-Long"), 1_000_000)
	_, _, err := w.do(t, post(t, chatPath, chatStream, "X-Name", "2000000"))
	assert.Equal(t, 502, transport.StatusOf(err))
	w.idle(t)
}

// A server that switches to a protocol that it was not asked for has not answered.
func TestAnUpgradeThatNobodyAskedFor(t *testing.T) {
	var open atomic.Int32
	w := newWorld(t, transport.Config{MaxAttempts: 1, Base: tripper(func(*http.Request) (*http.Response, error) {
		open.Add(1)
		return &http.Response{StatusCode: 101, Header: http.Header{"Upgrade": {"echo"}}, Body: &closing{ReadCloser: http.NoBody, open: &open}}, nil
	})}, "a", "b", "c")
	_, err := w.t.RoundTrip(post(t, chatPath, chatStream))
	assert.ErrorContains(t, err, "not asked for")
	assert.Equal(t, 502, transport.StatusOf(err))
	assert.Zero(t, open.Load())
}

// The time a request was held ends when it is first routed, not when it is last routed.
func TestHeldUntilTheFirstAttempt(t *testing.T) {
	var ahead atomic.Int64
	a := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		ahead.Add(int64(time.Hour))
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	b := startEngine(t, nil)
	w, reported := watchedOf(t, transport.Config{Queue: one(queue.Config{})}, endpick.Config{
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	}, a.URL, b.URL)
	w.ok(t, post(t, chatPath, chatStream))
	r := next(t, reported)
	require.Len(t, r.Attempts, 2)
	assert.Less(t, r.Held, time.Hour)
	assert.GreaterOrEqual(t, r.Attempts[1].At.Sub(r.Attempts[0].At), time.Hour)
}
