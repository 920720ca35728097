package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fleetFile is the configuration of docs/small-fleets.md before these servers. What wakes the second is a file.
func fleetFile(t *testing.T, wakes string, servers ...*backend) string {
	block := string(regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(rig.Must(os.ReadFile("../../docs/small-fleets.md")))[1])
	for i, url := range []string{"http://10.0.0.1:8000", "http://10.0.0.2:11434", "https://models.example"} {
		require.Contains(t, block, url)
		block = strings.Replace(block, url, fmt.Sprintf("%s\n    id: %c", servers[i].URL, 'a'+i), 1)
	}
	return strings.Replace(block, `[wakeonlan, "00:11:22:33:44:55"]`, "[touch, "+wakes+"]", 1)
}

// The page's configuration does what it says: requests at once, contexts, tiers, names, and what wakes.
func TestSmallFleet(t *testing.T) {
	var servers []*backend
	var now, most [3]atomic.Int32
	for i := range 3 {
		b := newBackend(t)
		handler := b.Config.Handler
		b.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				n := now[i].Add(1)
				most[i].Store(max(most[i].Load(), n))
				time.Sleep(20 * time.Millisecond)
				now[i].Add(-1)
			}
			handler.ServeHTTP(w, r)
		})
		servers = append(servers, b)
	}
	woken := filepath.Join(t.TempDir(), "woken")
	g := gatewayOf(t, parsed(fleetFile(t, woken, servers...)))
	ask := func(body string) (status int, text string) {
		w := askFor(g, "/v1/chat/completions", body)
		return w.Code, w.Body.String()
	}
	burst := func(n int) {
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				status, _ := ask(chatWith("hi"))
				assert.Equal(t, http.StatusOK, status)
			})
		}
		all.Wait()
	}
	burst(5)
	assert.Zero(t, most[2].Load(), "the first tier has room")
	burst(30)
	assert.LessOrEqual(t, most[0].Load(), int32(4))
	assert.LessOrEqual(t, most[1].Load(), int32(1))
	assert.Positive(t, most[2].Load(), "the first tier is full")

	status, _ := ask(chatWith(strings.Repeat("word ", 40_000)))
	assert.Equal(t, http.StatusOK, status, "the other two take it")
	assert.Contains(t, see(t, g.admin, "/debug/endpick"), "has too short a context (max_context): 1 server")

	_, text := ask(strings.Replace(chatWith("hi"), `"m"`, `"fast"`, 1))
	assert.Contains(t, text, "usage")
	page := see(t, g.admin, "/debug/endpick")
	assert.Contains(t, page, "fast → qwen3:4b")
	assert.Contains(t, page, "is of a later tier")
	assert.Contains(t, see(t, g, "/v1/models"), `"id":"best"`)

	servers[0].Close()
	servers[1].Close()
	for range 6 {
		status, _ = ask(chatWith("hi"))
		assert.Equal(t, http.StatusOK, status, "the cloud is left")
	}
	assert.NoFileExists(t, woken, "nobody waits")
	servers[2].Close()
	go ask(chatWith("hi"))
	assert.Eventually(t, func() bool {
		_, err := os.Stat(woken)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	for range 2 {
		g.health.Check(t.Context())
	}
	alive, _ := g.health.Alive()
	assert.Equal(t, []int{0, http.StatusOK}, []int{alive, send(g, "GET", "/readyz", "").Code}, "requests are taken, and wake who sleeps")
}

// What can't be meant is refused with the line and the name, in the file and on a reload.
func TestBadFleets(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"endpoints: [{url: http://a, tier: 3}, {url: http://b}]", "1: endpoints[0].tier: is 3, and no endpoint has tier 2"},
		{"endpoints: [{url: http://a, tier: 2}]", "1: endpoints[0].tier: is 2, and no endpoint has tier 1"},
		{"endpoints: [{url: http://a, max_context: 0}]", "1: endpoints[0].max_context: is 0; leave it out if there is nothing to set"},
		{"endpoints:\n- url: http://a\n  max_in_flight: 0", "3: endpoints[0].max_in_flight: is 0; leave it out if there is nothing to set"},
		{"endpoints: [{url: http://a, weight: 0}]", "1: endpoints[0].weight: is 0; leave it out if there is nothing to set"},
		{"endpoints: [{url: http://a, wake: {run: [x]}}]", "1: endpoints[0].wake.takes: is missing"},
		{"endpoints: [{url: http://a, wake: {takes: 3s}}]", "1: endpoints[0].wake.run: names no command"},
		{"endpoints: [{url: http://a}]\nnames:\n  a: {models: [b]}\n  b: {models: [a]}", `3: names.a: has "b", which is such a name itself`},
		{"endpoints: [{url: http://a}]\nnames: {a: {models: [x, y], weights: [0, 0]}}", "2: names.a: has weights that sum to 0"},
		{"endpoints: [{url: http://a}]\nnames: {a: {models: [x], weights: [1, 2]}}", "2: names.a: has 2 weights for 1 models"},
	} {
		assert.EqualError(t, rig.Err(parseSettings("f.yaml", []byte(c.text))), "f.yaml:"+c.want)
	}
}

// Of what a command says that should wake a server, the beginning is logged, and no more is remembered.
func TestWakingSaysMuch(t *testing.T) {
	text := "endpoints: [{url: " + newBackend(t).URL + `, wake: {run: ["yes"], takes: 300ms}}]`
	first := parsed(strings.Replace(text, "yes", "before-a-reload", 1))
	var logged rig.Output
	g := loggingGateway(t, &logged, first)
	require.NoError(t, g.apply(parsed(text)))
	assert.Less(t, rig.Allocated(func() { g.wake(first)(g.router.Endpoints()[0].Candidate.Endpoint) }), 8<<20)
	assert.Contains(t, logged.String(), `output="y\ny`)
}

// The page says where models are in memory, what was loaded, and why.
func TestModelsOnThePage(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"model":"m","response":" so","done":true,"load_duration":6000000000,"prompt_eval_count":2,"eval_count":1}`))
	})
	ofItsOwn := plain("lmetric")
	ofItsOwn.Models = map[string]modelSettings{"m": {Policy: "marginal-delay"}}
	for _, s := range []*settings{plain("marginal-delay"), ofItsOwn} {
		g := gatewayOf(t, s,
			endpick.Endpoint{ID: "a", Address: server.URL, Residents: []endpick.Resident{{Model: "m"}, {Model: "n", State: endpick.InMemory}}},
			endpick.Endpoint{ID: "b", Address: "http://127.0.0.1:1", Residents: []endpick.Resident{{Model: "n", State: endpick.Loading}}, Models: []string{"n"}})
		w := askFor(g, "/api/generate", `{"model":"m","prompt":"x","stream":false}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		shown := strings.Join(strings.Fields(textIn(page(t, see(t, g.admin, "/debug/endpick")))), " ")
		require.Contains(t, shown, "m–1111, 0, 06.00 s na, b (loading)0000, 0, 0–")
	}
}
