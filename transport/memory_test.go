package transport_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport"
)

// A stream may take minutes; its prompt is not kept for that long.
func TestPromptsAreNotKeptWhileTheResponseStreams(t *testing.T) {
	more := make(chan struct{})
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		sse(role)(w, r, nil)
		w.(http.Flusher).Flush()
		<-more
		io.WriteString(w, finish)
	}))
	defer e.Close()
	w := newWorld(t, transport.Config{}, e.URL)
	const streams, size = 4, 2 << 20
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	var open []*http.Response
	for range streams {
		body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
		req := post(t, chatPath, body)
		resp, err := w.t.RoundTrip(req)
		require.NoError(t, err)
		assert.Same(t, req, resp.Request)
		req.Body, req.GetBody = nil, nil // the caller's references
		open = append(open, resp)
	}
	// The hashed blocks stay for the record, here and in the observer: a third, with some
	// margin. One of the four prompts would be a quarter more. What net/http and pools
	// release a little later is not counted.
	assert.Eventually(t, func() bool { return heap()-before < streams*size/2 }, 30*time.Second, 10*time.Millisecond)
	close(more)
	for _, resp := range open {
		_, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
	}
	w.idle(t)
}
