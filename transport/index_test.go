package transport_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport"
)

// Long prompts that an engine refuses, at once or after its headers, leave the
// index as it was.
func TestRefusedPromptsAreNotRemembered(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if len(body) < 500_000 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"prompt is too long","type":"invalid_request_error"}}`)
		return true
	}
	index, err := prefix.NewIndex(prefix.IndexConfig{})
	require.NoError(t, err)
	config := endpick.Config{Policy: endpick.Policy{
		Matcher: index,
		Scorers: []endpick.Weighted{{Scorer: scorer.PrefixAffinity{}, Weight: 1}},
	}}
	for i := range 2 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Address: startEngine(t, refuse).URL})
	}
	router, err := endpick.New(config)
	require.NoError(t, err)
	through, err := transport.New(transport.Config{Router: router})
	require.NoError(t, err)
	t.Cleanup(through.CloseIdleConnections)
	ask := func(stream bool, n, length int) int {
		body := fmt.Sprintf(`{"model":"m","stream":%t,"prompt":"%s"}`, stream, strings.Repeat(fmt.Sprintf("%07d ", n), length/8))
		resp, err := (&http.Client{Transport: through}).Do(post(t, completions, body))
		require.NoError(t, err)
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		return resp.StatusCode
	}
	for n := range 20 {
		require.Equal(t, http.StatusOK, ask(n%2 == 0, n, 4096))
	}
	before := index.Stats()
	require.GreaterOrEqual(t, before.Pairs, 20*64)
	for n := range 12 {
		require.Equal(t, http.StatusBadRequest, ask(n%2 == 0, 100+n, 700_000))
	}
	after := index.Stats()
	assert.Equal(t, before.Pairs, after.Pairs)
	assert.Zero(t, after.Evicted)
	for _, e := range after.Endpoints {
		assert.Zero(t, e.Pending)
	}
}
