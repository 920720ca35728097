package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a reload keeps and what it replaces: a part stays, with all that it has learned, if none of
// its settings have changed, and is replaced if any have.

func TestTokenizersThatStay(t *testing.T) {
	of := func(models map[string]tokensSettings) *settings {
		s := &settings{Models: map[string]modelSettings{"none": {Policy: "lmetric"}}}
		for name, m := range models {
			s.Models[name] = modelSettings{Tokens: &m}
		}
		return s
	}
	was := map[string]tokensSettings{
		"same": {Render: "http://a"}, "url": {Render: "http://a"}, "kind": {Render: "http://a"}, "within": {Llama: "http://a"}, "gone": {Llama: "http://a"},
	}
	before := rig.Must(of(was).tokenizers(nil, nil))
	require.Len(t, before, len(was))
	is := map[string]tokensSettings{
		"same": {Render: "http://a"}, "url": {Render: "http://b"}, "kind": {Llama: "http://a"}, "within": {Llama: "http://a", Within: time.Second}, "new": {Llama: "http://a"},
	}
	after := rig.Must(of(is).tokenizers(before, nil))
	require.Len(t, after, len(is))
	for name, own := range is {
		assert.Equal(t, own, after[name].tokensSettings, name)
		assert.Equal(t, name == "same", before[name] == after[name], name)
	}
	require.Len(t, before, len(was), "who uses it goes on")
}

func TestAReplicaThatStays(t *testing.T) {
	parse := func(key int, more string) *settings {
		return parsed(t, fmt.Sprintf("endpoints: [{url: \"http://a\"}]\nhash_key: %064x\n", key)+more)
	}
	const replicas = "replicas: {nats: \"nats://a:1\", fleet: chat, name: one}\n"
	var h sharing
	first := rig.Must(h.wanted(parse(1, replicas), nil))
	require.NotNil(t, first)
	h.shared.Store(first)
	for _, tc := range []struct {
		key   int
		more  string
		stays bool
	}{
		{1, replicas, true},
		{1, replicas + "policy: lmetric\n", true},
		{2, replicas, false},
		{1, strings.Replace(replicas, "chat", "code", 1), false},
		{1, strings.Replace(replicas, "one", "two", 1), false},
		{1, strings.Replace(replicas, "a:1", "b:1", 1), false},
		{1, strings.Replace(replicas, "}", ", load_only: true}", 1), false},
	} {
		next := rig.Must(h.wanted(parse(tc.key, tc.more), nil))
		assert.Equal(t, tc.stays, next == first, "%+v", tc)
		assert.NotNil(t, next.replica)
	}
	require.Nil(t, rig.Must(h.wanted(parse(1, ""), nil)))
}

// Facts reported by servers survive a reload, and settings take precedence.
func TestAReloadKnowsWhatServersSaid(t *testing.T) {
	server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n")
	}))
	settings := func(more string) string { return "endpoints: [{url: \"" + server.URL + "\", id: a" + more + "}]\n" }
	g := newTestGateway(t, settings(""))
	tokens := func() int { return g.router.Endpoints()[0].Candidate.Endpoint.KVTokens }
	require.Eventually(t, func() bool { return tokens() == 16_000 }, 30*time.Second, 5*time.Millisecond)
	g.stop() // no more polls
	for more, want := range map[string]int{"": 16_000, ", variant: big": 16_000, ", kv_tokens: 500": 500} {
		require.NoError(t, g.apply(parsed(t, settings(more))))
		require.Equal(t, want, tokens(), more)
	}
}

// Metrics and the debug page show the index and models of the policy after a reload, and name it.
func TestMetricsFollowTheSettings(t *testing.T) {
	g := newTestGateway(t, "endpoints: [{url: \"http://a\"}]\npolicy: round-robin\n")
	before := g.watch.sources.Load()
	require.Nil(t, before.Index)
	require.Empty(t, before.Latencies)
	require.Contains(t, see(t, g.admin, "/debug/endpick"), "<small>policy round-robin</small>")
	require.NoError(t, g.apply(parsed(t, "endpoints: [{url: \"http://a\"}]\npolicy: predicted-latency\n")))
	after := g.watch.sources.Load()
	require.NotNil(t, after.Index)
	require.Same(t, g.policies.index, after.Index)
	require.Len(t, after.Latencies, 1)
	require.Contains(t, see(t, g.admin, "/debug/endpick"), "<small>policy predicted-latency</small>")
}

// All policies with an index share one, in whatever order they come, so that a reload to another
// policy knows where prompts are.
func TestPoliciesShareTheirIndex(t *testing.T) {
	var ps policies
	before := 0
	for range 2 {
		for _, name := range all.Names() {
			p := rig.Must(ps.compose(name, nil, false))
			if p.Matcher != nil {
				require.Same(t, ps.index, p.Matcher, name)
				before++
			}
			require.Equal(t, p.Matcher, rig.Must(ps.build(name)).Matcher)
		}
	}
	require.Greater(t, before, 4)
}

// Only one replica runs at a time: the next one starts after the previous one has ended.
func TestAReplicaEndsOnce(t *testing.T) {
	var h sharing
	stopped := map[string]int{}
	of := func(name string) *shared { return &shared{stop: func() { stopped[name]++ }} }
	first := of("first")
	h.shared.Store(first)
	h.take(first, nil)
	require.Empty(t, stopped, "it goes on")
	h.take(nil, nil)
	require.Equal(t, map[string]int{"first": 1}, stopped)
	require.Nil(t, h.shared.Load())
	h.take(nil, nil)
	require.Equal(t, map[string]int{"first": 1}, stopped)
}
