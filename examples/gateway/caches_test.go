package main

import (
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func cachesOf(t *testing.T, g *gateway) string {
	w := send(g.admin, "GET", "/debug/endpick/caches", "")
	require.Equal(t, 200, w.Code, w.Body)
	require.Equal(t, "default-src 'none'; style-src 'unsafe-inline'", w.Header().Get("Content-Security-Policy"))
	return textIn(page(t, w.Body.String()))
}

// The page shows for recent requests what a recording would, and names tenants.
func TestCachesPage(t *testing.T) {
	settings := twoTenants + "price: {prompt: 1.25, cached: 0.25}\n"
	s := scene{settings: settings}
	s.inspect = func(g *gateway) {
		text := cachesOf(t, g)
		assert.Contains(t, text, "timestamp: ")
		assert.Contains(t, text, "message 0 (system), byte 6")
		assert.Contains(t, text, "in 5 requests")
		assert.Contains(t, text, ", tenant ann")
		assert.Regexp(t, `\d{4} tokens, 0\.00\d{4}, were computed again`, text)
	}
	s.play(t, func(p *played) {
		for i := range 6 {
			p.say(asMessages("system", fmt.Sprintf("It is 10:3%d. ", i)+prose(1, 2400), "user", prose(100+i, 64)), nil, "X-Api-Key", annsKey)
		}
	})
	s.inspect = func(g *gateway) { assert.Contains(t, cachesOf(t, g), "Nothing has kept prompts from the caches.") }
	s.play(t, func(p *played) {
		p.say(asMessages("system", prose(1, 2400), "user", prose(2, 64)), nil, "X-Api-Key", annsKey)
	})
}

// What is kept for the page is bounded, whatever clients send, and contains no text.
func TestRecentRequests(t *testing.T) {
	c := &recent{}
	for i := range 2 * recentRequests {
		c.add(recording.Request{Time: time.Unix(int64(i), 0), Prompt: &recording.Prompt{Messages: []recording.Piece{{Text: "secret"}}}})
	}
	require.Len(t, c.all, recentRequests)
	require.Equal(t, time.Unix(recentRequests, 0), c.all[0].Time)
	require.Empty(t, c.all[0].Prompt.Messages[0].Text)
	bytes := int64(0)
	for _, r := range c.all {
		bytes += sizeOf(r)
	}
	require.Equal(t, bytes, c.bytes)
	for range 100 {
		c.add(recording.Request{Blocks: make([]recording.Hash, 1<<16)})
	}
	require.Len(t, c.all, 7) // half a MiB each
	c.add(recording.Request{Blocks: make([]recording.Hash, 1<<20)})
	require.Empty(t, c.all, "larger than all that is kept")
	require.Zero(t, c.bytes)
}

// twice is a prompt of twelve blocks of ours that is asked twice.
func twice(model, endpoint string, cached int) (all []recording.Request) {
	ttft := 1.0
	for i := range 2 {
		r := recording.Request{
			Time: time.Unix(int64(i), 0), Model: model, Endpoint: endpoint, HTTP: 200, Status: "completed", TTFTMillis: &ttft,
			InputTokens: 200, CachedTokens: &cached, BlockTokens: 16,
		}
		for b := range 12 {
			r.Blocks = append(r.Blocks, recording.Hash(b+1))
		}
		all = append(all, r)
	}
	return all
}

// What does not fill a block of the server's is not evicted: those of this vLLM have 128 tokens.
func TestCachesPageKnowsTheBlocksOfServers(t *testing.T) {
	server := httptest.NewServer(rig.VLLM("metrics_idle", "models"))
	defer server.Close()
	g := newTestGateway(t, "endpoints: [{id: a, url: "+server.URL+"}, {id: b, url: "+server.URL+"/b}]")
	for _, r := range twice("tiny", "a", 128) {
		g.recent.add(r)
	}
	assert.Contains(t, cachesOf(t, g), "Nothing has kept prompts from the caches.")
	for _, r := range twice("tiny", "b", 128) {
		g.recent.add(r)
	}
	assert.Contains(t, cachesOf(t, g), "evicted: 64 tokens", "b does not say")
}

// An invented name does no harm on the page.
func TestCachesPageEscapes(t *testing.T) {
	g := newTestGateway(t, `endpoints: [{url: "http://127.0.0.1:1"}]`)
	for i, r := range twice("<script>x", "", 0) {
		r.Endpoint = fmt.Sprint("<i>", i)
		g.recent.add(r)
	}
	text := see(t, g.admin, "/debug/endpick/caches")
	require.Contains(t, text, "other server: 192 tokens")
	require.NotContains(t, text, "<script>")
	require.NotContains(t, text, "<i>")
}
