package scrape

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// An engine's facts are either within bounds or ignored.
func FuzzFacts(f *testing.F) {
	for _, s := range []string{
		`{"total_slots":4,"default_generation_settings":{"n_ctx":8192}}`, `{"total_slots":-1e300,"default_generation_settings":{"n_ctx":1e300}}`,
		`{"max_total_num_tokens":1e9,"page_size":64,"max_running_requests":4096,"internal_states":[{"effective_max_running_requests_per_dp":7,"memory_usage":{"token_capacity":5}},{}]}`,
		`{"data":[{"id":"m"},{"id":"lora","parent":"m"},{"id":"\xff"},{"id":""}]}`, `{"data":null}`, `[`, `{"total_slots":1e999}`,
		vllm, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1e30\"} 1\n",
	} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, text []byte, rank int) {
		for _, e := range []endpick.Endpoint{{}, {Ranked: true, Rank: rank}} {
			for _, read := range []func([]byte, *endpick.Endpoint) (Facts, error){llamaFacts, sglangFacts, func(b []byte, e *endpick.Endpoint) (Facts, error) {
				p, err := parsePage(b)
				if err != nil {
					return Facts{}, err
				}
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
		models, adapters, err := servedNames(text)
		if err != nil {
			require.Empty(t, append(models, adapters...))
		}
		require.LessOrEqual(t, len(models)+len(adapters), maxNames)
		for _, name := range append(models, adapters...) {
			if name == "" || len(name) > maxName {
				t.Fatalf("%q", name)
			}
		}
	})
}
