package scrape

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// of is a page that vLLM 0.32.0 has served.
func of(name string) string {
	_, _, _, page := rig.Recorded(name)
	return page
}

const vllm = `vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.42
vllm:lora_requests_info{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 1.788e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql, poem",waiting_lora_adapters="x"} 1.789e+09
`

const vllmRanks = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 5
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0
vllm:num_requests_waiting{engine="1",model_name="m"} 4
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
`

const sglang = `# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",priority="",tp_rank="0"} 2
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",priority="",tp_rank="1"} 2
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",priority="0",tp_rank="0"} 2
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",priority="",tp_rank="2"} 1
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 3
sglang:num_queue_reqs{dp_rank="1",engine_type="unified",model_name="m",tp_rank="2"} 1
# TYPE sglang:token_usage gauge
sglang:token_usage{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 0.3
sglang:token_usage{dp_rank="0",engine_type="unified",model_name="m",tp_rank="1"} 0.3
sglang:token_usage{dp_rank="1",engine_type="unified",model_name="m",tp_rank="2"} 0.1
`

const triton = `# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
`

var known = signals{waiting, running, kvUsage}

func TestLoadOfEachEngine(t *testing.T) {
	rank := func(n int) endpick.Endpoint { return endpick.Endpoint{Ranked: true, Rank: n} }
	for _, tc := range []struct {
		name, page string
		endpoint   endpick.Endpoint
		want       endpick.Load
	}{
		{"vLLM", vllm, endpick.Endpoint{}, endpick.Load{Waiting: 7, Running: 3, KVUsage: 0.42, Adapters: []string{"sql", "poem"}}},
		{"vLLM 0.32 at work", of("metrics_busy"), endpick.Endpoint{}, endpick.Load{Running: 3, KVUsage: 0.04105571847507328}},
		{"vLLM 0.32 with nothing to do", of("metrics_idle"), rank(0), endpick.Load{}},
		{"vLLM 0.32 with an adapter that has run", of("metrics_lora"), endpick.Endpoint{}, endpick.Load{Adapters: []string{}, Absent: endpick.KVUsageSignal}},
		{"vLLM 0.32 asleep", strings.NewReplacer(`"awake"} 1.0`, `"awake"} 0.0`, `"discard_all"} 0.0`, `"discard_all"} 1.0`).Replace(of("metrics_idle")), endpick.Endpoint{}, endpick.Load{Asleep: true}},
		{"a rank of vLLM beside one that sleeps", vllmRanks + "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 1\n", rank(1), endpick.Load{Waiting: 4, Running: 5, KVUsage: 0.6}},
		{"vLLM before 0.10", "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 1, Running: 2, KVUsage: 0.5}},
		{"vLLM, colons written as underscores", strings.ReplaceAll(vllmRanks, "vllm:", "vllm_"), rank(1), endpick.Load{Waiting: 4, Running: 5, KVUsage: 0.6}},
		{"a rank of vLLM", vllmRanks, rank(0), endpick.Load{Waiting: 0, Running: 3, KVUsage: 0.2}},
		{"all ranks of vLLM: sums, and the mean of usage", vllmRanks, endpick.Endpoint{}, endpick.Load{Waiting: 4, Running: 8, KVUsage: 0.4}},
		{"usage is the mean of those that tell it", "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.6\n",
			endpick.Endpoint{}, endpick.Load{Running: 8, KVUsage: 0.6, Absent: endpick.WaitingSignal}},
		{"vLLM without adapters running", "vllm:num_requests_running 2\nvllm:lora_requests_info{running_lora_adapters=\"\"} 1\n", endpick.Endpoint{},
			endpick.Load{Running: 2, Adapters: []string{}, Absent: endpick.WaitingSignal | endpick.KVUsageSignal}},
		{"SGLang: tensor-parallel copies and priorities count once", sglang, endpick.Endpoint{}, endpick.Load{Waiting: 4, Running: 3, KVUsage: 0.2}},
		{"a rank of SGLang", sglang, rank(1), endpick.Load{Waiting: 1, Running: 1, KVUsage: 0.1}},
		{"trtllm-serve", "trtllm_num_requests_waiting{model_name=\"m\"} 1\ntrtllm_num_requests_running{model_name=\"m\"} 3\ntrtllm_kv_cache_utilization{model_name=\"m\"} 0.42\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 1, Running: 3, KVUsage: 0.42}},
		{"llama.cpp", "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\n# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 2\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 2, Running: 3, Absent: endpick.KVUsageSignal}},
		{"an older one, which counts caches as used", "llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n",
			endpick.Endpoint{}, endpick.Load{Running: 1, Absent: endpick.KVUsageSignal}},
		{"Triton", triton, endpick.Endpoint{}, endpick.Load{Waiting: 3, Running: 4, KVUsage: 0.25}},
		{"processes of which one knows", "vllm:kv_cache_usage_perc{engine=\"0\",pid=\"1\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\",pid=\"2\"} 0.6\nvllm:kv_cache_usage_perc{engine=\"1\",pid=\"3\"} 0.2\n",
			endpick.Endpoint{}, endpick.Load{KVUsage: 0.4, Absent: endpick.WaitingSignal | endpick.RunningSignal}},
		{"OpenMetrics", openMetrics, endpick.Endpoint{}, endpick.Load{Waiting: 4, Running: 7, KVUsage: 0.25}},
		// Series are told apart by the names of their labels too; a metric counts if it is a gauge, a counter or
		// untyped, and not if it is a histogram.
		{"other labels", "vllm:num_requests_waiting{a=\"x\"} 2\nvllm:num_requests_waiting{b=\"x\"} 3\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 5, Absent: endpick.RunningSignal | endpick.KVUsageSignal}},
		{"labels of the same letters", "vllm:num_requests_waiting{a=\"bc\"} 2\nvllm:num_requests_waiting{ab=\"c\"} 3\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 5, Absent: endpick.RunningSignal | endpick.KVUsageSignal}},
		{"ranks with another label", "vllm:num_requests_waiting{engine=\"0\",a=\"x\"} 2\nvllm:num_requests_waiting{engine=\"1\",a=\"x\"} 3\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 5, Absent: endpick.RunningSignal | endpick.KVUsageSignal}},
		{"blanks", "vllm:num_requests_waiting{ engine = \"0\" , A = \"x\" } 5\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 5, Absent: endpick.RunningSignal | endpick.KVUsageSignal}},
		{"a counter", "# TYPE vllm:num_requests_waiting counter\nvllm:num_requests_waiting 4\n",
			endpick.Endpoint{}, endpick.Load{Waiting: 4, Absent: endpick.RunningSignal | endpick.KVUsageSignal}},
		{"histograms", "# TYPE vllm:num_requests_waiting histogram\nvllm:num_requests_waiting_sum 4\nvllm:num_requests_running_count 1\n" +
			"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 6\n",
			endpick.Endpoint{}, endpick.Load{Running: 6, Absent: endpick.WaitingSignal | endpick.KVUsageSignal}},
		{"the only rank is not named", "vllm:num_requests_running 2\n", rank(0), endpick.Load{Running: 2, Absent: endpick.WaitingSignal | endpick.KVUsageSignal}},
	} {
		l := rig.Must(rig.Must(parse(tc.page)).load(&tc.endpoint, &known))
		assert.InDelta(t, tc.want.KVUsage, l.KVUsage, 1e-12, tc.name)
		l.KVUsage = tc.want.KVUsage
		assert.Equal(t, tc.want, l, tc.name)
	}
}

// What the parser of the older format does not know: kinds, units, exemplars, times with a fraction,
// and lines that no format has.
const openMetrics = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a} 9",engine="0"} 7 1789095808.837
# TYPE vllm:num_requests_waiting unknown
vllm:num_requests_waiting{model_name="a\"b"} 4
vllm:kv_cache_usage_perc 0.25
# TYPE vllm:cache_config info
vllm:cache_config_info{block_size="16"} 1
# UNIT vllm:ttft_seconds seconds
vllm:ttft_seconds_bucket{le="0.5"} 12 # {trace_id="4b"} 0.43 1789095808.837
vllm:ttft_seconds_bucket{le="0.5"
vllm:num_requests_running
vllm:num_requests_running{=} 5
vllm:num_requests_running{a="b" 5
<b> 5
# EOF
`

// A line that can't be read costs that line, wherever it stands.
func TestBrokenLines(t *testing.T) {
	page := rig.Must(parse(vllm))
	whole := rig.Must(page.load(&endpick.Endpoint{}, &known))
	for _, broken := range []string{"x", "{} 1", "a{", "a{b=\"", "a{b=\"c\"}", "a{b=c} 1", "a b", "a 1e", "9a 1", "a{b=\"c\",b} 1", "\xff 1", "a{b=\"\xff\"} 1",
		"vllm:num_requests_running{a=\"1\",a=\"2\"} 9"} {
		for _, page := range []string{broken + "\n" + vllm, vllm + broken, vllm + broken + "\n" + vllm} {
			p, err := parse(page)
			require.NoError(t, err, "%q", broken)
			got, err := p.load(&endpick.Endpoint{}, &known)
			require.NoError(t, err, "%q", broken)
			assert.Equal(t, whole, got, "%q", broken)
		}
	}
}

func TestPagesThatMakeNoSense(t *testing.T) {
	for in, want := range map[string]error{
		"<html>404</html>":                  ErrFormat,
		`[{"numActiveRequests":1}]`:         ErrFormat,
		"vllm:num_requests_running{engine=": ErrFormat,
		"vllm:num_requests_running x\n":     ErrFormat,
		"":                                  ErrNoSignal,
		"go_goroutines 148\n":               ErrNoSignal,
	} {
		p, err := parse(in)
		if err == nil {
			_, err = p.load(&endpick.Endpoint{}, &known)
		}
		assert.ErrorIs(t, err, want, "%.40q", in)
	}
	p := rig.Must(parse(vllmRanks))
	assert.ErrorIs(t, rig.Err(p.load(&endpick.Endpoint{Ranked: true, Rank: 7}, &known)), ErrNoSignal, "a rank that is not there")
	p = rig.Must(parse("vllm:num_requests_running 1"))
	assert.ErrorIs(t, rig.Err(p.load(&endpick.Endpoint{Ranked: true, Rank: 1}, &known)), ErrNoSignal, "it is the first one's")
}

// Of duplicate series the largest counts, but NaN is not hidden by another
// value, in whatever order they come.
func TestCopiesOfASeries(t *testing.T) {
	for text, want := range map[string]float64{
		"a{tp_rank=\"0\"} 2\na{tp_rank=\"1\"} 3\n":   3,
		"a{tp_rank=\"0\"} 3\na{tp_rank=\"1\"} 2\n":   3,
		"a{tp_rank=\"0\"} NaN\na{tp_rank=\"1\"} 2\n": math.NaN(),
		"a{tp_rank=\"0\"} 2\na{tp_rank=\"1\"} NaN\n": math.NaN(),
		// Each process of an SGLang server may report its rank's number.
		"a{pp_rank=\"0\"} 2\na{pp_rank=\"1\"} 2\n":                             2,
		"a{moe_ep_rank=\"0\"} 2\na{moe_ep_rank=\"1\"} 2\n":                     2,
		"a{pp_rank=\"0\",tp_rank=\"0\"} 2\na{pp_rank=\"1\",tp_rank=\"1\"} 2\n": 2,
	} {
		got, n := rig.Must(parse(text)).sum(series{family: "a"}, &endpick.Endpoint{})
		assert.Equal(t, 1, n)
		assert.Equal(t, fmt.Sprint(want), fmt.Sprint(got), text)
	}
}

// Reading a page takes time linear in its length: these are seconds if it is not.
func TestALineOfManyLabels(t *testing.T) {
	var page strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&page, ",a%d=\"\\\\\\n\\\"\"", i)
	}
	start := time.Now()
	p := rig.Must(parse("a{" + page.String()[1:] + "} 1"))
	require.Less(t, time.Since(start), time.Minute)
	require.Len(t, p["a"][0].labels, 200_000)
	value, _ := p["a"][0].label("a7")
	require.Equal(t, "\\\n\"", value)
	p = rig.Must(parse("vllm:lora_requests_info{running_lora_adapters=\"" + strings.Repeat("a,", 10_000) + "\"} 1"))
	require.Len(t, p.adapters(), maxNames)
}

// Whatever a page says, it can be read, and an engine's facts are either within bounds or ignored.
func FuzzFacts(f *testing.F) {
	for _, s := range []string{
		`{"total_slots":4,"default_generation_settings":{"n_ctx":8192}}`, `{"total_slots":-1e300,"default_generation_settings":{"n_ctx":1e300}}`,
		`{"max_total_num_tokens":1e9,"page_size":64,"max_running_requests":4096,"internal_states":[{"effective_max_running_requests_per_dp":7,"memory_usage":{"token_capacity":5}},{}]}`,
		`{"data":[{"id":"m"},{"id":"lora","parent":"m"},{"id":"\xff"},{"id":""}]}`, `{"data":null}`, `[`, `{"models":[{"name":"` + strings.Repeat("x", 300) + `"}]}`, `{"total_slots":1e999}`,
		vllm, vllmRanks, sglang, triton, "vllm:num_requests_running NaN\n", "\xff", "a{b=\"c\"} 1 2\n", "# TYPE a summary\na 1\n",
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1e30\"} 1\n",
	} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, text []byte, rank int) {
		for _, e := range []endpick.Endpoint{{}, {Ranked: true, Rank: rank}} {
			for _, read := range []func([]byte, *endpick.Endpoint) (Facts, error){llamaFacts, sglangFacts, func(b []byte, e *endpick.Endpoint) (Facts, error) {
				p, err := parse(string(b))
				if err != nil {
					return Facts{}, err
				}
				_, _ = p.load(e, &known)
				return p.vllm(e), nil
			}} {
				facts, err := read(text, &e)
				if err != nil {
					require.Zero(t, facts)
				}
				if facts.KVTokens < 0 || facts.KVTokens > maxKVTokens || facts.MaxSequences < 0 || facts.MaxSequences > maxSequences || facts.BlockTokens < 0 || facts.BlockTokens > maxKVTokens {
					t.Fatalf("%+v", facts)
				}
			}
		}
		var f Facts
		var p memoryPage
		_, _ = f.serves(text), json.Unmarshal(text, &p)
		for _, page := range memory {
			page.read(&f, &p)
		}
		require.LessOrEqual(t, max(len(f.Models)/2+len(f.Adapters), len(f.Residents)), maxNames)
		for _, r := range f.Residents {
			f.Models = append(f.Models, r.Model)
			require.True(t, r.Bytes >= 0 && r.Context >= 0)
		}
		for _, name := range append(f.Models, f.Adapters...) {
			require.NotEmpty(t, name)
			require.LessOrEqual(t, len(name), maxName)
		}
	})
}
