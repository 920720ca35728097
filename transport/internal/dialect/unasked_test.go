package dialect

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A client that has not asked for usage sees the stream as if the gateway had not either: without
// what engines add, or move, when they are asked.
func TestUsageThatWasNotAskedFor(t *testing.T) {
	const usage, timings = `"usage":{"prompt_tokens":3,"completion_tokens":2}`, `"timings":{"prompt_n":3}`
	w := newTalk(t)
	for name, tc := range map[string]struct{ asked, unasked []string }{
		"an event at the end": {
			[]string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, `{"choices":[],` + usage + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`},
		},
		"null before it": {
			[]string{`{"choices":[{"delta":{"content":"a"}}],"usage":null}`, `{"usage":null,"choices":[{"delta":{},"finish_reason":"stop"}]}`, `{"choices":[],` + usage + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"}}],"usage":null}`, `{"usage":null,"choices":[{"delta":{},"finish_reason":"stop"}]}`},
		},
		"llama.cpp's timings, which are in the last event": {
			[]string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"finish_reason":"stop","delta":{}}],"id":"x"}`, `{"choices":[],` + usage + `,` + timings + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"finish_reason":"stop","delta":{}}],"id":"x",` + timings + `}`},
		},
		"something else in the last event": {
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`, `{"choices":[],` + usage + `,"kv_transfer_params":{"a":1}}`},
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"kv_transfer_params":{"a":1}}`},
		},
		"LiteLLM's, which has a choice": {
			[]string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, `{"choices":[{"index":0,"delta":{}}],"x":1,` + usage + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}],"x":1}`},
		},
		"what each event has": {
			[]string{`{"x":1,"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`, `{"x":2,"system_fingerprint":"f","y":null,"choices":[],` + usage + `}`},
			[]string{`{"x":1,"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"system_fingerprint":"f"}`},
		},
		"something else in an event after the end": {
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],` + usage + `}`, `{"trace":1}`, `{"choices":[],` + usage + `,"x":1}`},
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],` + usage + `}`, `{"trace":1}`},
		},
		"continuous figures": {
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],` + usage + `}`, `{"choices":[],` + usage + `,"x":1}`},
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],` + usage + `,"x":1}`},
		},
		"figures in events that have content, and would have been there": {
			[]string{`{"choices":[{"delta":{"content":"a"}}],` + usage + `}`, `{"choices":[{"delta":{"content":"b"}}],"x":1,` + usage + `}`, `{"choices":[{"delta":{},"finish_reason":"stop"}],` + usage + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"}}],` + usage + `}`, `{"choices":[{"delta":{"content":"b"}}],"x":1,` + usage + `}`, `{"choices":[{"delta":{},"finish_reason":"stop"}],` + usage + `}`},
		},
		"what follows the end, and is no figure": {
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`, `{"choices":[{"delta":{"content":"b"}}],` + usage + `}`, `{"error":{},` + usage + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`, `{"choices":[{"delta":{"content":"b"}}],` + usage + `}`, `{"error":{},` + usage + `}`},
		},
		"timings of a stream without usage": {
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],` + timings + `}`},
			[]string{`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],` + timings + `}`},
		},
	} {
		for asks, want := range map[string][]string{`{"stream":true,"messages":[{}]}`: tc.unasked, `{"stream":true,"stream_options":{"include_usage":true},"messages":[{}]}`: tc.asked} {
			m := w.streaming("/v1/chat/completions", asks)
			got, err := m.End(fed(m, stream(tc.asked), 1))
			assert.NoError(t, err)
			assert.Equal(t, stream(want), string(got), "%s: %s", name, asks)
		}
	}
}

func stream(of []string) (all string) {
	for _, data := range of {
		all += "data: " + data + "\n\n"
	}
	return all + "data: [DONE]\n\n"
}
