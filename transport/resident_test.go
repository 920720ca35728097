package transport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// Ollama's lists are merged over the servers: each model once, as its server describes it; what is
// known only by its name is on disk, and no more.
func TestListsOfOllama(t *testing.T) {
	lists := func(tags, ps string) func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		return func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			page, ok := map[string]string{"/api/tags": tags, "/api/ps": ps}[r.URL.Path]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = w.Write([]byte(page))
			return true
		}
	}
	a := startEngine(t, lists(`{"models":[{"name":"a:latest","size":7},{"name":"b:7b"}]}`, `{"models":[{"name":"a:latest","size_vram":5}]}`))
	b := startEngine(t, lists(`{"models":[{"name":"b:7b"},{"name":"c"}]}`, `{"models":[]}`))
	w := newWorldOf(t, transport.Config{}, endpick.Config{Endpoints: []endpick.Endpoint{
		{ID: "a", Address: a.URL, Models: []string{"a:latest", "a", "b:7b"}}, {ID: "b", Address: b.URL},
		{ID: "v", Address: startEngine(t, status(404)).URL, Models: []string{"vllm"}}}})
	for path, want := range map[string]string{
		"/api/tags": `[{"name":"a:latest","size":7} {"name":"b:7b"} {"name":"c"} {"details":{},"digest":"","model":"vllm","modified_at":"1970-01-01T00:00:00Z","name":"vllm","size":0}]`,
		"/api/ps":   `[{"name":"a:latest","size_vram":5}]`,
	} {
		req := getting(t, path)
		_, body := w.ok(t, req)
		var list struct{ Models []json.RawMessage }
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		assert.Equal(t, want, fmt.Sprintf("%s", list.Models), path)
	}
}

// A model may take longer to be loaded than a first token may take, and that is no failure.
func TestLoadsTakeTime(t *testing.T) {
	slow := func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		time.Sleep(300 * time.Millisecond)
		return false
	}
	for _, tc := range []struct {
		state   endpick.Residency
		context int // with which it is loaded
		served  bool
	}{{endpick.OnDisk, 0, true}, {endpick.Loading, 0, true}, {endpick.InMemory, 0, false}, {endpick.InMemory, 8192, false}, {endpick.InMemory, 4096, true}} {
		w := newWorldOf(t, transport.Config{FirstByteTimeout: 50 * time.Millisecond}, endpick.Config{Endpoints: []endpick.Endpoint{
			{ID: "a", Address: startEngine(t, slow).URL, Residents: []endpick.Resident{{Model: "m:latest", State: tc.state, Context: tc.context}}}}})
		_, _, err := w.do(t, post(t, "/api/chat", `{"model":"m","messages":[{"role":"user","content":"hi"}],"options":{"num_ctx":8192}}`))
		if tc.served {
			assert.NoError(t, err, tc)
		} else {
			assert.ErrorIs(t, err, transport.ErrTimeout)
		}
	}
}
