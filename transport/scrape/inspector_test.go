package scrape_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/scrape"
)

// site is servers with pages, by host and path. A missing page is a 404.
type site struct {
	mu    sync.Mutex
	pages map[string]string
	asked map[string]int
	down  error
	// before, if not nil, is called before a page is sent.
	before func()
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	at := r.URL.Host + r.URL.Path
	s.asked[at]++
	if s.before != nil {
		s.before()
	}
	if s.down != nil {
		return nil, s.down
	}
	code, text := 404, `{"error":"not found"}`
	if page, ok := s.pages[at]; ok {
		code, text = 200, page
	}
	resp := answer(r, strings.NewReader(text))
	resp.StatusCode = code
	return resp, nil
}

// change changes servers that are in use.
func (s *site) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *site) set(at, page string) { s.change(func() { s.pages[at] = page }) }

func (s *site) times(at string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[at]
}

const (
	vllmInfo = `# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="1000",num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="1",num_gpu_blocks="2000",num_gpu_blocks_override="None"} 1.0
vllm:num_requests_running{engine="0"} 1
`
	vllmModels = `{"object":"list","data":[{"id":"llama","object":"model","parent":null,"max_model_len":8192},{"id":"sql","parent":"llama"},{"id":"","parent":null}]}`
	sglangInfo = `{"model_path":"qwen","served_model_name":"qwen","page_size":64,"max_running_requests":null,"api_key":"secret","dp_size":2,
		"max_total_num_tokens":20480,"internal_states":[
		{"memory_usage":{"weight":0.98,"kvcache":0.23,"token_capacity":20480},"effective_max_running_requests_per_dp":128},
		{"memory_usage":{},"effective_max_running_requests_per_dp":64}],"version":"0.5"}`
	llamaProps = `{"default_generation_settings":{"params":{"seed":1},"n_ctx":8192},"total_slots":4,"model_path":"/models/tiny.gguf","build_info":"b1"}`
)

func known() map[string]string {
	pages := map[string]string{
		"vllm/metrics": vllmInfo, "vllm/v1/models": vllmModels,
		"sglang/get_server_info": sglangInfo, "sglang/v1/models": `{"data":[{"id":"qwen"},{"id":"sql","parent":"qwen"}]}`,
		"newer/server_info": sglangInfo, "newer/metrics": "sglang:num_running_reqs 1\n",
		"llama/metrics": "llamacpp:requests_processing 0\n", "llama/props": llamaProps, "llama/v1/models": `{"data":[{"id":"/models/tiny.gguf"}]}`,
		"bare/props":    llamaProps,
		"old/metrics":   "vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n",
		"other/metrics": "go_goroutines 1\n", "other/props": "{}", "other/server_info": `{"uptime":1}`,
		"garbage/metrics":      "<html>",
		"liar/props":           `{"total_slots":1e300,"default_generation_settings":{"n_ctx":-5}}`,
		"huge/get_server_info": `{"max_total_num_tokens":1e300,"page_size":-1,"max_running_requests":1e300}`,
		"broken/props":         `{"total_slots":"four"}`,
		"several/v1/models":    `{"data":[{"id":"a:latest"},{"id":"b"},{"id":":latest"}]}`,
		"ollama/api/tags":      `{"models":[{"name":"a:latest"},{"name":"b:7b"},{"name":""}]}`,
		"ollama2/v1/models":    `{"data":[{"id":"a:latest"},{"id":"b:7b"}]}`,
		"ollama2/api/ps":       `{"models":[{"name":"b:7b","size":3650000000,"size_vram":0,"expires_at":"2126-11-24T06:30:00Z","context_length":4096}]}`,
		"late/v1/models":       `{"data":[{"id":"a"}]}`, "late/api/ps": `{"models":[{"name":"a","expires_at":"1999-11-24T06:30:00Z"}]}`, "late/api/tags": `{}`, // by its clock
		"ollama2/api/tags":     `{"models":[{"name":"a:latest","size":2000000000},{"name":"b:7b","size":3000000000}]}`,
		"router/v1/models":     `{"data":[{"id":"a","status":{"value":"loaded","args":[]}},{"id":"b","status":{"value":"loading"}},{"id":"c","status":{"value":"unloaded","failed":true}},{"id":"d","status":{"value":"sleeping"},"aliases":["e2","",7]},{"id":"e","status":{"value":"downloading"}}]}`,
		"router/props":         `{"role":"router","max_instances":2,"default_generation_settings":{"n_ctx":0}}`,
		"swap/v1/models":       `{"data":[{"id":"a","status":{"value":"loaded"}},{"id":"b","status":{"value":"loaded"}},{"id":"c","status":{"value":"unloaded"}}]}`,
		"swap/running":         `{"running":[{"model":"a","state":"ready"},{"model":"b","state":"starting"}]}`,
		"named/v1/models":      `{"data":[{"id":"a","owned_by":"llama-swap","status":{"value":"unloaded"},"meta":{"llamaswap":{"type":"model","aliases":["x","y"]}}},{"id":"b","owned_by":"llama-swap","created":"now"},{"id":"s","owned_by":"llama-swap","status":{"value":"loaded"},"meta":{"llamaswap":{"type":"selector"}}},{"id":"x","owned_by":"llama-swap","status":{"value":"unloaded"},"meta":{"llamaswap":{"type":"alias","modelID":"a"}}}]}`,
		"named/running":        `{"running":[{"model":"a","state":"ready"}]}`,
		"odd/v1/models":        `{"data":[{"id":"a","status":"active","aliases":{"b":1}},{"id":7},"b",{"id":"c","parent":false}]}`,
		"studio/v1/models":     `{"data":[{"id":"a"},{"id":"b"}]}`,
		"studio/api/v1/models": `{"models":[{"type":"llm","key":"a","size_bytes":5000000000,"loaded_instances":[]},{"key":"b","loaded_instances":[{"id":"b","config":{"context_length":8192}}]}]}`,
		"idle/v1/models":       `{"data":[{"id":"a","status":{"value":"loaded"}}]}`, "idle/running": `{"error":"no such page"}`, "idle/api/v1/models": `{}`, "idle/api/ps": `{}`,
		"bad/v1/models": `{"data":[{"id":"a"}]}`, "bad/api/ps": `<html>`,
		"unsized/v1/models": `{"data":[{"id":"a"}]}`, "unsized/api/ps": `{"models":[{"name":"` + strings.Repeat("x", 1<<10) + `"}]}`, "unsized/api/tags": `<html>`,
		"both/v1/models": `{"data":[{"id":"a"}],"models":[{"name":"b"}]}`, "both/api/tags": `{"models":[{"name":"c"}]}`,
		"unlisted/v1/models": `<html>`,
	}
	for _, none := range []string{"metrics", "props", "get_server_info", "server_info", "api/ps", "api/tags", "running"} {
		pages["studio/"+none] = `{"error":"Unexpected endpoint or method. (GET /` + none + `)"}` // with status 200
	}
	return pages
}

// newInspector is an inspector of a router with these endpoints, whose servers at plays.
func newInspector(t testing.TB, config scrape.InspectorConfig, at http.RoundTripper, endpoints ...endpick.Endpoint) (*endpick.Router, *scrape.Inspector, *errorList) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints, Clock: func() time.Time { return time.Now().Add(-time.Hour) }}))
	errs := &errorList{}
	config.Router, config.Client, config.OnError = router, &http.Client{Transport: at}, errs.add
	return router, rig.Must(scrape.NewInspector(config)), errs
}

func TestInspectorReadsEachEngine(t *testing.T) {
	for _, tc := range []struct {
		host string
		rank int // −1: none
		want scrape.Facts
		err  error
	}{
		{"vllm", -1, scrape.Facts{Engine: "vllm", KVTokens: 48000, BlockTokens: 16, Models: []string{"llama"}, Adapters: []string{"sql"}}, nil},
		{"vllm", 1, scrape.Facts{Engine: "vllm", KVTokens: 32000, BlockTokens: 16, Models: []string{"llama"}, Adapters: []string{"sql"}}, nil},
		{"sglang", -1, scrape.Facts{Engine: "sglang", KVTokens: 40960, BlockTokens: 64, MaxSequences: 192, Models: []string{"qwen"}, Adapters: []string{"sql", "qwen:sql"}}, nil},
		{"sglang", 1, scrape.Facts{Engine: "sglang", KVTokens: 20480, BlockTokens: 64, MaxSequences: 64, Models: []string{"qwen"}, Adapters: []string{"sql", "qwen:sql"}}, nil},
		{"newer", 0, scrape.Facts{Engine: "sglang", KVTokens: 20480, BlockTokens: 64, MaxSequences: 128}, nil},
		{"llama", -1, scrape.Facts{Engine: "llama.cpp", KVTokens: 32768, BlockTokens: 1, MaxSequences: 4}, nil},
		{"bare", -1, scrape.Facts{Engine: "llama.cpp", KVTokens: 32768, BlockTokens: 1, MaxSequences: 4}, nil},
		{"old", -1, scrape.Facts{Engine: "vllm", BlockTokens: 16}, nil},
		{"several", -1, scrape.Facts{Models: []string{"a:latest", "a", "b", ":latest"}}, nil},
		{"ollama", -1, scrape.Facts{Models: []string{"a:latest", "a", "b:7b"}}, nil},
		{"ollama2", -1, scrape.Facts{Engine: "ollama", Models: []string{"a:latest", "a", "b:7b"}, Residents: []endpick.Resident{
			{Model: "a:latest", Bytes: 2e9}, {Model: "b:7b", State: endpick.InMemory, Bytes: 3.65e9, Context: 4096, Until: time.Date(2126, 11, 24, 6, 30, 0, 0, time.UTC)}}}, nil},
		{"late", -1, scrape.Facts{Engine: "ollama", Models: []string{"a"}, Residents: []endpick.Resident{{Model: "a", State: endpick.InMemory}}}, nil},
		{"router", -1, scrape.Facts{Engine: "llama.cpp", MaxResidents: 2, Models: []string{"a", "b", "c", "d", "e2", "e"}, Residents: []endpick.Resident{
			{Model: "a", State: endpick.InMemory}, {Model: "b", State: endpick.Loading}, {Model: "c"}, {Model: "d", Aliases: []string{"e2"}}, {Model: "e", State: endpick.Loading}}}, nil},
		{"swap", -1, scrape.Facts{Engine: "llama-swap", Models: []string{"a", "b", "c"}, Residents: []endpick.Resident{
			{Model: "a", State: endpick.InMemory}, {Model: "b", State: endpick.Loading}, {Model: "c"}}}, nil},
		{"named", -1, scrape.Facts{Engine: "llama-swap", Models: []string{"a", "x", "y", "b", "s"}, Residents: []endpick.Resident{
			{Model: "a", State: endpick.InMemory, Aliases: []string{"x", "y"}}, {Model: "b"}, {Model: "s", State: endpick.InMemory}}}, nil},
		{"odd", -1, scrape.Facts{Models: []string{"a", "c"}}, nil},
		{"studio", -1, scrape.Facts{Engine: "lm-studio", Models: []string{"a", "b"}, Residents: []endpick.Resident{
			{Model: "a", Bytes: 5e9}, {Model: "b", State: endpick.InMemory, Context: 8192}}}, nil},
		{"idle", -1, scrape.Facts{Models: []string{"a"}, Residents: []endpick.Resident{{Model: "a", State: endpick.InMemory}}}, nil},
		{"bad", -1, scrape.Facts{}, scrape.ErrFormat},
		{"unsized", -1, scrape.Facts{}, scrape.ErrFormat},
		{"both", -1, scrape.Facts{Models: []string{"a"}}, nil},
		{"unlisted", -1, scrape.Facts{}, scrape.ErrFormat},
		{"other", -1, scrape.Facts{}, scrape.ErrNoFacts},
		{"nobody", -1, scrape.Facts{}, scrape.ErrNoFacts},
		{"garbage", -1, scrape.Facts{}, scrape.ErrFormat},
		{"broken", -1, scrape.Facts{}, scrape.ErrFormat},
		{"liar", -1, scrape.Facts{Engine: "llama.cpp", BlockTokens: 1, MaxSequences: 1 << 20}, nil},
		{"huge", -1, scrape.Facts{Engine: "sglang", KVTokens: 1 << 30, MaxSequences: 1 << 20}, nil},
	} {
		t.Run(fmt.Sprint(tc.host, tc.rank), func(t *testing.T) {
			e := endpick.Endpoint{ID: "e", Address: tc.host, Ranked: tc.rank >= 0, Rank: max(tc.rank, 0)}
			router, s, errs := newInspector(t, scrape.InspectorConfig{}, &site{pages: known()}, e)
			s.Poll(t.Context())
			got, ok := s.Facts(&e)
			if tc.err != nil {
				assert.False(t, ok)
				assert.ErrorIs(t, one(t, errs.take()), tc.err)
				assert.Equal(t, e, *router.Endpoints()[0].Candidate.Endpoint)
				return
			}
			assert.Empty(t, errs.take())
			assert.Equal(t, tc.want, got)
			e.Engine, e.KVTokens, e.MaxSequences, e.Models, e.Adapters = tc.want.Engine, tc.want.KVTokens, tc.want.MaxSequences, tc.want.Models, tc.want.Adapters
			e.Residents, e.MaxResidents = tc.want.Residents, tc.want.MaxResidents
			now := *router.Endpoints()[0].Candidate.Endpoint
			assert.Equal(t, len(e.Residents) > 0, !now.ResidentsAt.IsZero())
			e.ResidentsAt = now.ResidentsAt
			assert.Equal(t, e, now)
		})
	}
}

// What is in memory is asked for thirty times as often as what a server is, and more often while it
// changes, until it says so no longer.
func TestInspectorFollowsTheMemory(t *testing.T) {
	const soon = time.Second / 4
	synctest.Test(t, func(t *testing.T) {
		at := &site{pages: known()}
		router, s, errs := newInspector(t, scrape.InspectorConfig{Interval: time.Minute}, at, endpick.Endpoint{ID: "e", Address: "ollama2"})
		in := func() (all []string) {
			for _, r := range router.Endpoints()[0].Candidate.Endpoint.Residents {
				if r.State == endpick.InMemory {
					all = append(all, r.Model)
				}
			}
			return all
		}
		defer running(t, s.Run)()
		time.Sleep(1500 * time.Millisecond)
		assert.Equal(t, []string{"b:7b"}, in())
		assert.WithinDuration(t, router.Now(), router.Endpoints()[0].Candidate.Endpoint.ResidentsAt, 2*time.Second)
		own := endpick.Endpoint{Address: "ollama2", Residents: []endpick.Resident{{Model: "mine"}}}
		s.Fill(&own)
		assert.Equal(t, []endpick.Resident{{Model: "mine"}}, own.Residents)
		for range 2 {
			own = endpick.Endpoint{Address: "ollama2"}
			s.Fill(&own)
			assert.NotEqual(t, "mine", own.Residents[0].Model, "they are a copy")
			own.Residents[0].Model = "mine"
		}
		time.Sleep(28 * time.Second)
		assert.InDelta(t, 17, at.times("ollama2/api/ps"), 2)
		at.set("ollama2/api/ps", `{"models":[{"name":"a:latest"}]}`)
		for waited := time.Duration(0); in()[0] != "a:latest"; waited += soon {
			require.Less(t, waited, 4*time.Second)
			time.Sleep(soon)
		}
		at.set("ollama2/api/ps", `{"models":[{"name":"b:7b"}]}`)
		time.Sleep(3*soon - time.Millisecond) // it may have been asked once more before, in vain
		assert.Equal(t, []string{"b:7b"}, in())
		assert.Equal(t, 1, at.times("ollama2/metrics"))
		at.change(func() { delete(at.pages, "ollama2/api/ps") })
		time.Sleep(4 * time.Second)
		assert.Empty(t, in())
		assert.Equal(t, 2, at.times("ollama2/metrics"))
		time.Sleep(30 * time.Second)
		assert.Equal(t, 2, at.times("ollama2/metrics"))
		assert.Empty(t, errs.take())
	})
}

// A server that dies when its models have just changed is asked less often again, and one whose models
// come and go each time it is asked no more often than its pages are short.
func TestInspectorAsksNoMoreOftenThanItMust(t *testing.T) {
	for _, tc := range []struct {
		trouble func(*site)
		times   int
	}{
		{func(at *site) {
			time.AfterFunc(100*time.Millisecond, func() { at.change(func() { at.down = errNet500 }) })
		}, 32},
		{func(at *site) {
			at.before = func() {
				at.pages["ollama2/api/ps"] = fmt.Sprintf(`{"models":[{"name":"%d"}]%2000000s}`, at.asked["ollama2/api/ps"]%2, "")
			}
		}, 12},
	} {
		synctest.Test(t, func(t *testing.T) {
			at := &site{pages: known()}
			tc.trouble(at)
			_, s, errs := newInspector(t, scrape.InspectorConfig{Interval: time.Minute}, at, endpick.Endpoint{ID: "e", Address: "ollama2"})
			defer running(t, s.Run)()
			time.Sleep(time.Minute)
			assert.InDelta(t, tc.times, at.times("ollama2/v1/models"), 2)
			for _, err := range errs.take() {
				assert.ErrorIs(t, err, errNet500)
			}
		})
	}
}

// Fields set by the host stay, even if the engine disagrees; unset ones follow the
// engine; and a field that the host sets later is taken over.
func TestInspectorAndTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := &site{pages: known()}
		router, s, _ := newInspector(t, scrape.InspectorConfig{}, at, endpick.Endpoint{ID: "a", Address: "vllm", MaxSequences: 7, Models: []string{"mine"}})
		defer running(t, s.Run)()
		now := func() endpick.Endpoint { return *router.Endpoints()[0].Candidate.Endpoint }
		time.Sleep(1500 * time.Millisecond)
		assert.Equal(t, endpick.Endpoint{ID: "a", Address: "vllm", Engine: "vllm", MaxSequences: 7, Models: []string{"mine"}, KVTokens: 48000}, now())
		lease := rig.Must(router.Route(endpick.Request{Model: "mine", InputTokens: 10}))

		at.set("vllm/metrics", strings.ReplaceAll(vllmInfo, "2000", "3000")) // the engine restarted
		time.Sleep(10 * time.Minute)
		assert.Equal(t, 64000, now().KVTokens)
		assert.Equal(t, 11, at.times("vllm/metrics"), "once a minute, unless told otherwise")
		require.NoError(t, router.Update(endpick.Endpoint{ID: "a", Address: "vllm", Variant: "h100"}))
		time.Sleep(2 * time.Second)
		assert.Equal(t, endpick.Endpoint{ID: "a", Address: "vllm", Engine: "vllm", Variant: "h100", Models: []string{"llama"}, Adapters: []string{"sql"}, KVTokens: 64000}, now())
		require.NoError(t, router.Update(endpick.Endpoint{ID: "a", Address: "vllm", KVTokens: 5}))
		time.Sleep(2 * time.Second)
		assert.Equal(t, 5, now().KVTokens)

		// An unreachable engine is asked again soon, and known facts stay.
		at.change(func() { at.down = errNet500 })
		require.NoError(t, router.Add(endpick.Endpoint{ID: "b", Address: "llama"}))
		time.Sleep(30 * time.Second)
		assert.InDelta(t, 5, at.times("llama/metrics"), 1)
		assert.Equal(t, []string{"llama"}, now().Models)
		at.change(func() { at.down = nil })
		time.Sleep(7 * time.Second)
		assert.Equal(t, 4, router.Endpoints()[1].Candidate.Endpoint.MaxSequences)
		assert.Equal(t, 1, router.Endpoints()[0].Candidate.InFlight.Requests, "the same endpoint all along")
		lease.Done(endpick.Outcome{})
		require.NoError(t, router.Remove("b"))
		time.Sleep(2 * time.Second)
		_, ok := s.Facts(&endpick.Endpoint{Address: "llama"})
		assert.False(t, ok, "forgotten")
	})
}

// A host that fills in what is known and applies its own list has still left those fields
// unset: they follow the engine.
func TestInspectorFollowsWhatFillHasFilled(t *testing.T) {
	at := &site{pages: known()}
	router, s, _ := newInspector(t, scrape.InspectorConfig{}, at, endpick.Endpoint{Address: "vllm"})
	s.Poll(t.Context())
	for i, variant := range []string{"", "h100", "h200"} {
		e := endpick.Endpoint{Address: "vllm", Variant: variant, MaxSequences: 7}
		s.Fill(&e)
		require.Equal(t, 48000+16000*i, e.KVTokens)
		require.NoError(t, router.SetEndpoints([]endpick.Endpoint{e}))
		at.set("vllm/metrics", strings.ReplaceAll(vllmInfo, "2000", fmt.Sprint(3000+1000*i)))
		s.Poll(t.Context())
		want := endpick.Endpoint{ID: "vllm", Address: "vllm", Engine: "vllm", Variant: variant, MaxSequences: 7, Models: []string{"llama"}, Adapters: []string{"sql"}, KVTokens: 64000 + 16000*i}
		require.Equal(t, want, *router.Endpoints()[0].Candidate.Endpoint)
	}
}

func TestNames(t *testing.T) {
	page := "my_queue{kind=\"waiting\"} 7\nmy_queue{kind=\"running\"} 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
	e := engines{"a": says(page)}
	names := scrape.Names{Waiting: `my_queue{kind="waiting"}`, Running: `my_queue{kind="running"}`}
	router, p, errs := newPoller(t, scrape.Config{Names: names}, e, endpick.Endpoint{ID: "a", Address: "a"})
	p.Poll(t.Context())
	assert.Empty(t, errs.take())
	c := candidates(router)["a"]
	assert.Equal(t, []float64{7, 3, 0.5}, []float64{c.Waiting, c.Running, c.KVUsage})
	e["a"] = says(load(4, 5, 0.6))
	p.Poll(t.Context())
	assert.Equal(t, 4.0, candidates(router)["a"].Waiting, "those that are known count where the host's are not there")
	for _, bad := range []string{"two words", `x{a="b",c="d"}`, `x{a=b}`, "{}", "1x"} {
		_, err := scrape.New(scrape.Config{Router: router, Names: scrape.Names{KVUsage: bad}})
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce, bad)
		assert.Equal(t, "scrape.Config.Names.KVUsage", ce.Field)
	}
}
