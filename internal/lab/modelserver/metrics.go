package modelserver

import (
	"fmt"
	"net/http"
	"strings"
)

// health answers 200 while the server accepts requests.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if s.driver.state().stopped {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// labelValue escapes a value for the Prometheus text format.
var labelValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// metrics writes the engine's state with vLLM's names.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	totals := s.driver.state()
	load := totals.now
	model := labelValue.Replace(s.config.Model)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	write := func(kind, name, help string, value any) {
		fmt.Fprintf(w, "# HELP vllm:%s %s\n# TYPE vllm:%[1]s %[3]s\nvllm:%[1]s{engine=\"0\",model_name=\"%[4]s\"} %[5]v\n",
			name, help, kind, model, value)
	}
	write("gauge", "num_requests_running", "Number of requests in model execution batches.", load.Running)
	write("gauge", "num_requests_waiting", "Number of requests waiting to be processed.", load.Waiting)
	write("gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", load.KVUsage)
	config := s.driver.engine.Config()
	fmt.Fprintf(w, "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n"+
		"vllm:cache_config_info{block_size=\"%d\",engine=\"0\",num_gpu_blocks=\"%d\"} 1.0\n", config.BlockTokens, config.Blocks)
	write("counter", "prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", totals.PrefixQueryTokens)
	write("counter", "prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", totals.PrefixHitTokens)
	write("counter", "num_preemptions_total", "Cumulative number of preemptions from the engine.", totals.Preemptions)
	write("counter", "prompt_tokens_total", "Number of prefill tokens processed.", totals.PrefillTokens)
	write("counter", "generation_tokens_total", "Number of generation tokens processed.", totals.OutputTokens)
}
