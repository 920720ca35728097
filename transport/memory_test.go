package transport_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport"
)

// A stream may take minutes; its prompt is not kept for so long.
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
		req.Body, req.GetBody = nil, nil // the caller's own
		open = append(open, resp)
	}
	kept := heap() - before
	// The hashed blocks stay for the record: an eighth.
	assert.Less(t, kept, streams*size/3, "bytes kept")
	t.Logf("%d of %d bytes kept", kept, streams*size)
	close(more)
	for _, resp := range open {
		_, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
	}
	w.idle(t)
}
