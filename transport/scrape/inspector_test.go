package scrape_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/scrape"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		"several/v1/models":    `{"data":[{"id":"a:latest"},{"id":"b"},{"id":":latest"}]}`, "several/running": `{"running":[]}`,
		"ollama/api/tags":   `{"models":[{"name":"a:latest"},{"name":"b:7b"},{"name":""}]}`,
		"ollama2/v1/models": `{"data":[{"id":"a:latest"},{"id":"b:7b"}]}`,
		"ollama2/api/ps":    `{"models":[{"name":"b:7b","size":3650000000,"size_vram":0,"expires_at":"2126-11-24T06:30:00Z","context_length":4096}]}`,
		"late/v1/models":    `{"data":[{"id":"a"}]}`, "late/api/ps": `{"models":[{"name":"a","expires_at":"1999-11-24T06:30:00Z"}]}`, "late/api/tags": `{}`, // by its clock
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
func newInspector(config scrape.InspectorConfig, at http.RoundTripper, endpoints ...endpick.Endpoint) (*endpick.Router, *scrape.Inspector, *rig.List[error]) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints, Clock: func() time.Time { return time.Now().Add(-time.Hour) }}))
	errs := &rig.List[error]{}
	config.Router, config.Client, config.OnError = router, &http.Client{Transport: at}, errs.Add
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
			router, s, errs := newInspector(scrape.InspectorConfig{}, &site{pages: known()}, e)
			s.Poll(t.Context())
			got, ok := s.Facts(&e)
			if tc.err != nil {
				assert.False(t, ok)
				assert.ErrorIs(t, one(t, errs.Take()), tc.err)
				assert.Equal(t, e, *router.Endpoints()[0].Candidate.Endpoint)
				return
			}
			assert.Empty(t, errs.Take())
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
		router, s, errs := newInspector(scrape.InspectorConfig{Interval: time.Minute}, at, endpick.Endpoint{ID: "e", Address: "ollama2"})
		in := func() (all []string) {
			for _, r := range router.Endpoints()[0].Candidate.Endpoint.Residents {
				if r.State == endpick.InMemory {
					all = append(all, r.Model)
				}
			}
			return all
		}
		defer rig.Running(t.Context(), s.Run)()
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
		assert.Equal(t, []string{"a:latest", "a", "b:7b"}, router.Endpoints()[0].Candidate.Endpoint.Models)
		at.change(func() { delete(at.pages, "ollama2/api/ps") })
		time.Sleep(4 * time.Second)
		assert.Empty(t, in())
		assert.Equal(t, 2, at.times("ollama2/metrics"))
		time.Sleep(30 * time.Second)
		assert.Equal(t, 2, at.times("ollama2/metrics"))
		assert.Empty(t, errs.Take())
	})
}

// A server that dies when its models have just changed is asked less often again, and one whose models
// come and go each time it is asked no more often than its pages are short.
func TestInspectorAsksNoMoreOftenThanItMust(t *testing.T) {
	for times, trouble := range map[int]func(*site){
		32: func(at *site) {
			time.AfterFunc(100*time.Millisecond, func() { at.change(func() { at.down = errNet500 }) })
		},
		12: func(at *site) {
			at.before = func() {
				at.pages["ollama2/api/ps"] = fmt.Sprintf(`{"models":[{"name":"%d"}]%2000000s}`, at.asked["ollama2/api/ps"]%2, "")
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			at := &site{pages: known()}
			trouble(at)
			_, s, errs := newInspector(scrape.InspectorConfig{Interval: time.Minute}, at, endpick.Endpoint{ID: "e", Address: "ollama2"})
			defer rig.Running(t.Context(), s.Run)()
			time.Sleep(time.Minute)
			assert.InDelta(t, times, at.times("ollama2/v1/models"), 2)
			for _, err := range errs.Take() {
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
		router, s, _ := newInspector(scrape.InspectorConfig{}, at, endpick.Endpoint{ID: "a", Address: "vllm", MaxSequences: 7, Models: []string{"mine"}})
		defer rig.Running(t.Context(), s.Run)()
		now := func() endpick.Endpoint { return *router.Endpoints()[0].Candidate.Endpoint }
		time.Sleep(1500 * time.Millisecond)
		assert.Equal(t, endpick.Endpoint{ID: "a", Address: "vllm", Engine: "vllm", MaxSequences: 7, Models: []string{"mine"}, KVTokens: 48000}, now())
		lease := rig.Must(router.Route(endpick.Request{Model: "mine", InputTokens: 10}))

		at.set("vllm/metrics", strings.ReplaceAll(vllmInfo, "2000", "3000")) // the engine restarted
		time.Sleep(10 * time.Minute)
		assert.Equal(t, 64000, now().KVTokens)
		assert.Equal(t, 11, at.times("vllm/metrics"), "once a minute, unless told otherwise")
		at.set("vllm/metrics", "# TYPE vllm:lora_requests_info gauge\n"+strings.ReplaceAll(vllmInfo, "2000", "3000"))
		time.Sleep(time.Minute)
		at.set("vllm/v1/models", strings.ReplaceAll(vllmModels, "sql", "new"))
		require.NoError(t, router.Update(endpick.Endpoint{ID: "a", Address: "vllm"}))
		time.Sleep(4 * time.Second)
		assert.Equal(t, []string{"new"}, now().Adapters, "where adapters may be loaded at any time, within seconds")
		at.set("vllm/v1/models", vllmModels)
		time.Sleep(4 * time.Second)
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
	router, s, _ := newInspector(scrape.InspectorConfig{}, at, endpick.Endpoint{Address: "vllm"})
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
	router, p, errs := newPoller(scrape.Config{Names: names}, e, endpick.Endpoint{ID: "a", Address: "a"})
	p.Poll(t.Context())
	assert.Empty(t, errs.Take())
	c := candidates(router)["a"]
	assert.Equal(t, []float64{7, 3, 0.5}, []float64{c.Waiting, c.Running, c.KVUsage})
	e["a"] = says(load(4, 5, 0.6))
	p.Poll(t.Context())
	assert.Equal(t, 4.0, candidates(router)["a"].Waiting, "those that are known count where the host's are not there")
	for _, bad := range []string{"two words", `x{a="b",c="d"}`, `x{a=b}`, "{}", "1x"} {
		assert.Equal(t, "scrape.Config.Names.KVUsage", rig.Field(scrape.New(scrape.Config{Router: router, Names: scrape.Names{KVUsage: bad}})), bad)
	}
}

// poll asks one endpoint whose server has these pages, and returns what is known of it
// and the errors reported.
func poll(t *testing.T, e endpick.Endpoint, config scrape.InspectorConfig, pages map[string]string) (scrape.Facts, []error) {
	for at, page := range pages {
		delete(pages, at)
		pages["h"+at] = page
	}
	return pollSite(t, e, config, &site{pages: pages})
}

func pollSite(t *testing.T, e endpick.Endpoint, config scrape.InspectorConfig, at http.RoundTripper) (scrape.Facts, []error) {
	e.ID, e.Address = "e", "h"
	_, s, errs := newInspector(config, at, e)
	s.Poll(t.Context())
	facts, _ := s.Facts(&e)
	return facts, errs.Take()
}

// A page of facts may be exactly as long as the bound; one that is longer, or breaks off, is
// ignored.
func TestPagesOfFactsAreBounded(t *testing.T) {
	long := llamaProps + strings.Repeat(" ", 100)
	var facts scrape.Facts
	var errs []error
	for _, most := range []int64{int64(len(long)), math.MaxInt64} {
		facts, errs = poll(t, endpick.Endpoint{}, scrape.InspectorConfig{MaxBytes: most}, map[string]string{"/props": long})
		assert.Empty(t, errs)
		assert.Equal(t, 4, facts.MaxSequences)
	}
	for _, tc := range []struct {
		most  int
		pages map[string]string
	}{
		{len(long) - 1, map[string]string{"/props": long}},
		{len(vllmInfo) - 1, map[string]string{"/metrics": vllmInfo}},
		// The list of models is a page too, and what publishes events.
		{1000, map[string]string{"/metrics": vllmInfo, "/v1/models": `{"data":[` + strings.Repeat(" ", 1000) + `]}`}},
		{1000, map[string]string{"/metrics": vllmInfo, "/kv_event_sources": strings.Repeat(" ", 1001)}},
	} {
		facts, errs = poll(t, endpick.Endpoint{}, scrape.InspectorConfig{MaxBytes: int64(tc.most)}, tc.pages)
		require.ErrorIs(t, one(t, errs), scrape.ErrTooLong)
		assert.Zero(t, facts)
	}

	breaks := func(page string) http.RoundTripper {
		return engines{"h": func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != page {
				return new(site).RoundTrip(r)
			}
			return answer(r, io.MultiReader(strings.NewReader(vllmInfo), rig.Reader(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }))), nil
		}}
	}
	for _, page := range []string{"/metrics", "/props", "/server_info"} {
		facts, errs = pollSite(t, endpick.Endpoint{}, scrape.InspectorConfig{}, breaks(page))
		require.ErrorIs(t, one(t, errs), io.ErrUnexpectedEOF, page)
		assert.Zero(t, facts)
	}
}

// An invalid page is reported and ignored as a whole.
func TestFactsThatMakeNoSense(t *testing.T) {
	for _, engine := range []map[string]string{{"/metrics": vllmInfo}, {"/server_info": sglangInfo}} {
		engine["/v1/models"] = `{"data":7}`
		_, errs := poll(t, endpick.Endpoint{}, scrape.InspectorConfig{}, engine)
		require.ErrorIs(t, one(t, errs), scrape.ErrFormat)
		assert.ErrorContains(t, one(t, errs), "/v1/models")
	}
	_, errs := pollSite(t, endpick.Endpoint{}, scrape.InspectorConfig{}, &site{down: errNet500})
	require.ErrorIs(t, one(t, errs), errNet500)
	facts, errs := pollSite(t, endpick.Endpoint{}, scrape.InspectorConfig{}, engines{"h": func(*http.Request) (*http.Response, error) { panic("a bug") }})
	assert.ErrorContains(t, one(t, errs), "panic: a bug")
	assert.Zero(t, facts)
	for page, text := range map[string]string{"/get_server_info": `{"page_size":"x"}`, "/server_info": "7", "/props": "[]"} {
		facts, errs := poll(t, endpick.Endpoint{}, scrape.InspectorConfig{}, map[string]string{page: text})
		require.ErrorIs(t, one(t, errs), scrape.ErrFormat, page)
		assert.ErrorContains(t, one(t, errs), page)
		assert.Zero(t, facts, page)
	}
	// Of two ranks, one with impossible values, the other counts.
	info := "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000\"} 1\nvllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"-900\"} 1\n"
	facts, errs = poll(t, endpick.Endpoint{}, scrape.InspectorConfig{}, map[string]string{"/metrics": info})
	assert.Empty(t, errs)
	assert.Equal(t, 16000, facts.KVTokens)
	_, errs = poll(t, endpick.Endpoint{}, scrape.InspectorConfig{}, map[string]string{"/v1/models": `{"data":[{"id":"\u0001","status":{"value":"loaded"}}]}`})
	require.ErrorIs(t, one(t, errs), endpick.ErrBadEndpoint, "the router does not take it")
}

// SGLang reports on the whole server, on each of its ranks, or on both; values of a rank take
// precedence.
func TestFactsOfSGLang(t *testing.T) {
	rank := func(tokens, most int) string {
		return fmt.Sprintf(`{"effective_max_running_requests_per_dp":%d,"memory_usage":{"token_capacity":%d}}`, most, tokens)
	}
	for _, tc := range []struct {
		info              string
		kv, sequences     int
		rankKV, rankSeqOf int // of rank 1
	}{
		{`{"max_total_num_tokens":1000,"max_running_requests":9}`, 1000, 9, 1000, 9},
		{`{"max_total_num_tokens":1000}`, 1000, 0, 1000, 0},
		{`{"max_total_num_tokens":1000,"internal_states":[{}]}`, 1000, 0, 0, 0},
		{`{"max_total_num_tokens":1000,"max_running_requests":9,"internal_states":[` + rank(700, 5) + `,` + rank(600, 3) + `]}`, 1300, 8, 600, 3},
		{`{"internal_states":[` + rank(700, 0) + `,` + rank(600, 0) + `],"max_running_requests":9}`, 1300, 9, 600, 9},
		{`{"max_total_num_tokens":1000,"internal_states":[` + rank(0, 5) + `,` + rank(600, 3) + `]}`, 1600, 8, 600, 3},
	} {
		// A server that has a page of another engine, with nothing in it.
		pages := func() map[string]string { return map[string]string{"/props": "{}", "/server_info": tc.info} }
		facts, errs := poll(t, endpick.Endpoint{}, scrape.InspectorConfig{}, pages())
		assert.Empty(t, errs)
		assert.Equal(t, []int{tc.kv, tc.sequences}, []int{facts.KVTokens, facts.MaxSequences}, tc.info)
		facts, errs = poll(t, endpick.Endpoint{Ranked: true, Rank: 1}, scrape.InspectorConfig{}, pages())
		assert.Empty(t, errs)
		assert.Equal(t, []int{tc.rankKV, tc.rankSeqOf}, []int{facts.KVTokens, facts.MaxSequences}, tc.info)
	}
}

// What vLLM 0.32.0 says of itself: with events at ports of its own choice, whatever host it names.
func TestFactsOfVLLM(t *testing.T) {
	for _, tc := range []struct {
		models, sources, events, replay string
		adapters                        []string
	}{
		{"models", "kv_event_sources", "127.0.0.1:9201", "127.0.0.1:10201", nil},
		{"models_lora", "scale_out/kv_event_sources", "127.0.0.1:9202", "127.0.0.1:10202", []string{"adapter"}},
	} {
		server := httptest.NewServer(rig.VLLM("metrics_idle", tc.models, tc.sources))
		e := endpick.Endpoint{ID: "e", Address: server.URL}
		_, s, errs := newInspector(scrape.InspectorConfig{}, http.DefaultTransport, e)
		s.Poll(t.Context())
		server.Close()
		facts, _ := s.Facts(&e)
		assert.Equal(t, scrape.Facts{
			Engine: "vllm", KVTokens: 131072, BlockTokens: 128, Models: []string{"tiny"}, Adapters: tc.adapters, Events: tc.events, Replay: tc.replay,
		}, facts)
		assert.Empty(t, errs.Take())
	}
}

// Events are those of the endpoint's rank, at the server's own host, or none.
func TestWhereEventsAre(t *testing.T) {
	two := `{"0":{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":null},"1":{"publisher":"zmq","endpoint":"tcp://10.0.0.9:5558","replay_endpoint":"tcp://*:6558"}}`
	ranked := func(n int) endpick.Endpoint { return endpick.Endpoint{Ranked: true, Rank: n} }
	one := func(members string) string { return `{"0":{"publisher":"zmq",` + members + `}}` }
	for _, tc := range []struct {
		page           string
		e              endpick.Endpoint
		events, replay string
	}{
		{two, ranked(0), "h:5557", ""}, {two, ranked(1), "h:5558", "h:6558"}, {two, ranked(2), "", ""}, {two, endpick.Endpoint{}, "", ""},
		{`[{"data_parallel_rank":1,"endpoint":"tcp://10.0.0.1:5558","topic":""}]`, ranked(1), "h:5558", ""},
		{one(`"endpoint":"tcp://*:0","replay_endpoint":"tcp://*:1"`), endpick.Endpoint{}, "", ""},
		{one(`"endpoint":"tcp://*:65536"`), endpick.Endpoint{}, "", ""},
		{one(`"endpoint":"inproc://cache:7"`), endpick.Endpoint{}, "", ""},
		{one(`"endpoint":"tcp://*:1","replay_endpoint":"7"`), endpick.Endpoint{}, "h:1", ""},
		{`{"0":{"publisher":"null","endpoint":"tcp://*:5557"}}`, endpick.Endpoint{}, "", ""},
		{"{}", endpick.Endpoint{}, "", ""}, {"<html>", endpick.Endpoint{}, "", ""},
	} {
		facts, errs := poll(t, tc.e, scrape.InspectorConfig{}, map[string]string{"/metrics": vllmInfo, "/kv_event_sources": tc.page})
		assert.Empty(t, errs)
		assert.Equal(t, []string{"vllm", tc.events, tc.replay}, []string{facts.Engine, facts.Events, facts.Replay}, tc.page)
	}
}

// Names that no request can have are dropped, and so are those beyond 4,096.
func TestNamesThatAreServed(t *testing.T) {
	list := func(all ...string) string { return `{"data":[` + strings.Join(all, ",") + `]}` }
	model := func(id string) string { return `{"id":"` + id + `"}` }
	served := func(page string) ([]string, []string) {
		facts, errs := poll(t, endpick.Endpoint{}, scrape.InspectorConfig{}, map[string]string{"/metrics": vllmInfo, "/v1/models": page})
		require.Empty(t, errs)
		return facts.Models, facts.Adapters
	}
	longest := strings.Repeat("n", 256)
	models, adapters := served(list(model("a"), model(longest), model(longest+"n"), `{"id":"b","parent":""}`, `{"id":"c","parent":"a"}`))
	assert.Equal(t, []string{"a", longest, "b"}, models)
	assert.Equal(t, []string{"c"}, adapters)
	var many []string
	for i := range 2500 {
		many = append(many, model(fmt.Sprint(i)), fmt.Sprintf(`{"id":"a%d","parent":"0"}`, i))
	}
	models, adapters = served(list(many...))
	assert.Len(t, models, 2048)
	assert.Len(t, adapters, 2048)
	models, _ = served(list(`{"id":"a","aliases":["` + longest + `n","` + strings.Repeat(`b","`, 100) + `"]}`))
	assert.Equal(t, append([]string{"a"}, slices.Repeat([]string{"b"}, 64)...), models)

	at := &site{pages: known()}
	router, inspector, panicked := newInspector(scrape.InspectorConfig{Skip: func(e *endpick.Endpoint) bool { return e.ID == "a" || e.Labels["p"][0] == 'p' }}, at,
		endpick.Endpoint{ID: "a", Address: "vllm"}, endpick.Endpoint{ID: "b", Address: "bare"},
		endpick.Endpoint{ID: "c", Address: "llama", Labels: map[string]string{"p": "q"}})
	inspector.Poll(t.Context())
	assert.Zero(t, at.times("vllm/metrics"), "it is skipped")
	assert.Len(t, panicked.Take(), 1, "and where that panics, it is asked")
	assert.Equal(t, 32768, router.Endpoints()[1].Candidate.Endpoint.KVTokens)
	assert.Equal(t, 1, at.times("llama/metrics"))

	at = &site{pages: map[string]string{"h/metrics": vllmInfo, "h/v1/models": list(model("a"))}}
	facts, errs := pollSite(t, endpick.Endpoint{}, scrape.InspectorConfig{DisableModels: true}, at)
	assert.Empty(t, errs)
	assert.Nil(t, facts.Models)
	assert.Zero(t, at.times("h/v1/models"), "nobody wants to know")

	router, inspector, bad := newInspector(scrape.InspectorConfig{DisableModels: true}, &site{pages: known()}, endpick.Endpoint{ID: "e", Address: "ollama2"})
	inspector.Poll(t.Context())
	assert.Empty(t, bad.Take())
	e := router.Endpoints()[0].Candidate.Endpoint
	assert.Equal(t, []any{"ollama", 2, 0}, []any{e.Engine, len(e.Residents), len(e.Models)})
}

// The ranks of a server are told apart, and removed endpoints are not asked while their
// requests finish.
func TestWhoIsAsked(t *testing.T) {
	at := &site{pages: known()}
	router, s, errs := newInspector(scrape.InspectorConfig{}, at, endpick.Endpoint{ID: "0", Address: "vllm", Ranked: true},
		endpick.Endpoint{ID: "1", Address: "vllm", Ranked: true, Rank: 1}, endpick.Endpoint{ID: "gone", Address: "llama"})
	lease := rig.Must(router.Route(endpick.Request{Exclude: []string{"0", "1"}}))
	require.NoError(t, router.Remove("gone"))
	s.Poll(t.Context())
	assert.Empty(t, errs.Take())
	assert.Equal(t, 16000, candidates(router)["0"].Endpoint.KVTokens)
	assert.Equal(t, 32000, candidates(router)["1"].Endpoint.KVTokens)
	assert.Equal(t, 2, at.times("vllm/metrics"))
	assert.Zero(t, at.times("llama/props"))
	lease.Done(endpick.Outcome{})

	// Discovery asks for facts of endpoints that the router does not know yet.
	e := endpick.Endpoint{Address: "vllm", Ranked: true, Rank: 1, MaxSequences: 3}
	s.Fill(&e)
	assert.Equal(t, endpick.Endpoint{Address: "vllm", Ranked: true, Rank: 1, Engine: "vllm", MaxSequences: 3, KVTokens: 32000, Models: []string{"llama"}, Adapters: []string{"sql"}}, e)
	e.Models[0] = "mine"
	again, _ := s.Facts(&e)
	assert.Equal(t, []string{"llama"}, again.Models, "each has a list of its own")
	for _, own := range []endpick.Endpoint{{Address: "nobody"}, {Address: "vllm", Ranked: true, Engine: "mine", Adapters: []string{"x"}, KVTokens: 1}, {Address: "vllm", Ranked: true, Engine: "mine", Models: []string{"y"}, Adapters: []string{"x"}, KVTokens: 1}} {
		e = own
		s.Fill(&e)
		assert.Equal(t, own, e)
	}
}

// A slow engine has one question at a time; it may be removed meanwhile; an inspector that
// stops waits for it and reports nothing.
func TestASlowEngineIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, open atomic.Int64
		release := make(chan struct{})
		e := engines{"slow": func(*http.Request) (*http.Response, error) { // it ignores its context
			asked.Add(1)
			open.Add(1)
			defer open.Add(-1)
			<-release
			return nil, errNet500
		}}
		router, s, errs := newInspector(scrape.InspectorConfig{Interval: 100 * time.Millisecond, Timeout: time.Hour}, e, endpick.Endpoint{ID: "slow", Address: "slow"})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		ended := false
		run.Go(func() { s.Run(ctx); ended = true })
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 1, asked.Load())
		require.NoError(t, router.Remove("slow"))
		time.Sleep(time.Second)
		release <- struct{}{}
		synctest.Wait()
		require.Len(t, errs.Take(), 1)
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, asked.Load(), "it is gone")

		time.Sleep(50 * time.Millisecond)
		require.NoError(t, router.Add(endpick.Endpoint{ID: "slow", Address: "slow"}))
		time.Sleep(100 * time.Millisecond)
		assert.EqualValues(t, 2, asked.Load(), "each tenth of a second there is a look")
		cancel()
		synctest.Wait()
		assert.False(t, ended, "it leaves no goroutine")
		release <- struct{}{}
		run.Wait()
		assert.Zero(t, open.Load())
		assert.Empty(t, errs.Take())
	})
}

var errNet500 = errors.New("connection refused")

// body is a page that records whether it was closed and how much of it was read.
type body struct {
	io.Reader
	closed chan struct{}
	read   int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *body) Close() error { close(b.closed); return nil }

// Each response is closed, and a short one with another status is read so that its
// connection can be reused; the engine's own format is requested, and the question ends.
func TestAnswersAreClosed(t *testing.T) {
	var all []*body
	var questions []context.Context
	var code int
	var accepts string
	at := engines{"h": func(r *http.Request) (*http.Response, error) {
		accepts = r.Header.Get("Accept")
		b := &body{Reader: strings.NewReader(load(1, 2, 0.3)), closed: make(chan struct{})}
		all, questions = append(all, b), append(questions, r.Context())
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: b, Request: r}, nil
	}}
	for _, code = range []int{200, 503} {
		_, p, _ := newPoller(scrape.Config{}, at, endpick.Endpoint{ID: "a", Address: "h"})
		p.Poll(t.Context())
		assert.Equal(t, "text/plain;version=0.0.4", accepts)
		pollSite(t, endpick.Endpoint{}, scrape.InspectorConfig{}, at)
	}
	require.GreaterOrEqual(t, len(all), 6)
	for i, b := range all {
		<-b.closed
		assert.Equal(t, len(load(1, 2, 0.3)), b.read, "%d", i)
		assert.Error(t, questions[i].Err(), "%d", i)
	}
}

// A question whose long answer gets no slot in time counts as unanswered: known facts stay. Short ones need none.
func TestNoPlaceToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engines{"good": says(load(7, 3, 0.4))}
		endpoints := []endpick.Endpoint{{ID: "good", Address: "good"}, {ID: "short", Address: "good"}}
		router, p, errs := newPoller(scrape.Config{Timeout: time.Second, URL: func(e *endpick.Endpoint) string { return "http://" + e.Address + "/" + e.ID }}, e, endpoints...)
		p.Poll(t.Context())
		long := strings.Repeat("#\n", 64<<10)
		release := make(chan struct{})
		time.AfterFunc(2*time.Second, func() { close(release) })
		for i := range 64 {
			id := fmt.Sprint("stalls-", i)
			e[id] = func(r *http.Request) (*http.Response, error) { // longer than the timeout
				return answer(r, io.MultiReader(strings.NewReader(long), rig.Reader(func([]byte) (int, error) { <-release; return 0, errNet500 }))), nil
			}
			require.NoError(t, router.Add(endpick.Endpoint{ID: id, Address: id}))
		}
		e["good"] = func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Millisecond) // until all slots are taken
			if r.URL.Path == "/short" {
				return says(load(9, 3, 0.4))(r)
			}
			return says(load(9, 3, 0.4) + long)(r)
		}
		p.Poll(t.Context())
		late := 0
		reports := errs.Take()
		assert.Len(t, reports, 65)
		for _, err := range reports {
			if errors.Is(err, context.DeadlineExceeded) {
				late++
			}
		}
		assert.Equal(t, 1, late)
		assert.Equal(t, []float64{7, 9}, []float64{candidates(router)["good"].Waiting, candidates(router)["short"].Waiting})
		assert.Equal(t, allSignals, candidates(router)["good"].Reported)
		p.Poll(t.Context())
		assert.Equal(t, 9.0, candidates(router)["good"].Waiting, "the others have given their slots back")
	})
}

// Errors are reported without passwords, and not for an endpoint that was removed
// meanwhile.
func TestWhatIsTold(t *testing.T) {
	e := engines{
		"down":   func(*http.Request) (*http.Response, error) { return nil, errNet500 },
		"panics": func(*http.Request) (*http.Response, error) { panic("a bug") },
		"bad":    says("garbage"),
	}
	reports := func(u string) *scrape.Error {
		_, p, errs := newPoller(scrape.Config{URL: func(*endpick.Endpoint) string { return u }}, e, endpick.Endpoint{ID: "a", Address: "x"})
		p.Poll(t.Context())
		var own *scrape.Error
		require.ErrorAs(t, one(t, errs.Take()), &own, u)
		return own
	}
	require.ErrorIs(t, reports("http://down/metrics"), errNet500)
	require.ErrorContains(t, reports("http://panics"), "panic: a bug")
	require.ErrorContains(t, reports("http://[::1"), "missing ']'")
	own := reports("http://user:secret@bad/metrics")
	assert.Equal(t, "http://user:xxxxx@bad/metrics", own.URL)
	assert.NotContains(t, own.Error(), "secret")

	var router *endpick.Router
	e["a"] = func(r *http.Request) (*http.Response, error) {
		assert.NoError(t, router.Remove("a"))
		return says(load(1, 2, 0.3))(r)
	}
	router, p, errs := newPoller(scrape.Config{}, e, endpick.Endpoint{ID: "a", Address: "a"}, endpick.Endpoint{ID: "nowhere"})
	p.Poll(t.Context())
	assert.Empty(t, errs.Take(), "nor is one that has no address")
	assert.Len(t, router.Endpoints(), 1)

	// The error callback is optional.
	quiet := rig.Must(scrape.New(scrape.Config{Router: router, Client: &http.Client{Transport: e}, URL: func(*endpick.Endpoint) string { return "http://down" }}))
	quiet.Poll(t.Context())
	assert.Zero(t, quiet.Panics())
}

// In two minutes, a server that works is asked every second, however many hang or have pages that can't be
// read, which give back their places all the same; one that refuses is asked ever less often, one whose page is long as often as it costs a percent of a core; one that is back is found
// soon. A poller that stops waits for its questions.
func TestHowOftenServersAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := map[string]int{}
		began := time.Now()
		long := load(1, 2, 0.3) + strings.Repeat("# nothing\n", 800_000)
		release := make(chan struct{})
		e := engines{"slow": func(*http.Request) (*http.Response, error) { <-release; return nil, errNet500 }}
		endpoints := []endpick.Endpoint{
			{ID: "works", Address: "https://works"}, {ID: "long", Address: "long"}, {ID: "refuses", Address: "refuses"},
			{ID: "back", Address: "back"}, {ID: "slow", Address: "slow"}, {ID: "lacks", Address: "lacks"},
		}
		for i := range 100 {
			id := fmt.Sprint("broken-", i)
			if e[id] = silent; i%2 == 0 {
				e[id] = panics
			}
			endpoints = append(endpoints, endpick.Endpoint{ID: id, Address: id})
		}
		for name, answer := range map[string]func(*http.Request) (*http.Response, error){
			"works": says(load(1, 2, 0.3)), "long": says(long), "lacks": new(site).RoundTrip, "refuses": func(*http.Request) (*http.Response, error) { return nil, errNet500 },
			"back": func(r *http.Request) (*http.Response, error) {
				if time.Since(began) < time.Minute {
					return nil, errNet500
				}
				return says(load(1, 2, 0.3))(r)
			},
		} {
			e[name] = func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				asked[name]++
				mu.Unlock()
				assert.Equal(t, name == "works", r.URL.Scheme == "https")
				return answer(r)
			}
		}
		router, p, errs := newPoller(scrape.Config{}, e, endpoints...)
		require.NoError(t, router.Drain("works"))
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		ended := false
		run.Go(func() { p.Run(ctx); ended = true })
		time.Sleep(2*time.Minute + time.Millisecond)
		require.NoError(t, router.Remove("refuses"))
		time.Sleep(time.Second)
		require.NoError(t, router.Add(endpick.Endpoint{ID: "refuses", Address: "refuses"}))
		time.Sleep(time.Second)
		errs.Take()
		cancel()
		synctest.Wait()
		assert.False(t, ended)
		close(release)
		run.Wait()
		assert.Empty(t, errs.Take(), "who is not waited for has not failed")
		assert.Equal(t, 123, asked["works"])
		assert.Equal(t, 4+11+1, asked["refuses"], "after 1, 3, 7 and 15 s, then every ten, and at once when it has come anew")
		assert.Equal(t, 4+11, asked["lacks"], "likewise")
		assert.Equal(t, 9+58, asked["back"], "found after 65 s")
		assert.Equal(t, 7, asked["long"], "20 s apart")
		p.Poll(t.Context())
		assert.Equal(t, []int{124, 17}, []int{asked["works"], asked["refuses"]}, "who polls once, polls all")
	})
}
