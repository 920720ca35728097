package transport

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

func TestAPIOf(t *testing.T) {
	for in, want := range map[string]api{
		"POST /v1/chat/completions": chat, "POST /openai/v1/chat/completions": chat, "POST /v1/completions": completion,
		"GET /v1/chat/completions": other, "POST /v1/embeddings": other, "POST /completions/x": other, "POST /": other,
	} {
		method, path, _ := strings.Cut(in, " ")
		req, err := http.NewRequest(method, "http://x"+path, nil)
		require.NoError(t, err)
		assert.Equal(t, want, apiOf(req), in)
	}
}

func TestPromptLengths(t *testing.T) {
	text128 := strings.Repeat("abcdefgh", 16)
	for _, tc := range []struct {
		name, body string
		kind       api
		tokens     int
		blocks     int
		perBlock   float64
		output     int
		learn      int
	}{
		{"text", `{"prompt":"` + text128 + `"}`, completion, 32, 2, 16, 0, 128},
		{"an empty prompt", `{"prompt":""}`, completion, 1, 0, 16, 0, 0},
		{"texts: the first has the blocks", `{"prompt":["` + text128 + `","` + text128 + `"],"max_tokens":10}`, completion, 64, 2, 16, 20, 256},
		{"token ids are exact", `{"prompt":[` + strings.Repeat("7,", 39) + `7],"max_tokens":5,"n":2}`, completion, 40, 2, 16, 10, 0},
		{"lists of token ids", `{"prompt":[[1,2,3],[4,5]]}`, completion, 5, 0, 16, 0, 0},
		{"escapes count by what they stand for", `{"prompt":"` + strings.Repeat(`\u00e9`, 32) + `"}`, completion, 16, 1, 16, 0, 64},
		{"max_completion_tokens", `{"messages":[{"role":"user","content":"x"}],"max_completion_tokens":9}`, chat, 2, 0, 16, 9, 9},
		{"an image counts as tokens, not bytes", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:` + strings.Repeat("A", 100000) + `"}}]}]}`, chat, 1024 + 10, 0, 16, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(tc.kind, []byte(tc.body))
			require.Equal(t, tc.kind, c.api)
			var req endpick.Request
			learn := c.prompt(&req, prefix.Scope{}, rates{})
			assert.InDelta(t, tc.tokens, req.InputTokens, 3*float64(c.media))
			assert.Len(t, req.Blocks, tc.blocks)
			assert.InDelta(t, tc.perBlock, req.BlockTokens, 1e-9)
			assert.Equal(t, tc.output, req.ExpectedOutputTokens)
			assert.Equal(t, tc.learn, learn)
		})
	}
}

func TestChatIsHashedInItsCanonicalForm(t *testing.T) {
	body := `{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[
		{"role":"system","content":"Be \u0062rief."},
		{"role":"user","name":"ann","content":[{"type":"text","text":"What is this?"},{"type":"image_url","image_url":{"url":"http:\/\/x\/1.png","detail":"low"}}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"4` + strings.Repeat("2", 200) + `"}]}`
	c := parse(chat, []byte(body))
	want := prefix.Conversation{
		Tools: []string{`{"type":"function","function":{"name":"f"}}`},
		Messages: []prefix.Message{
			{Role: "system", Parts: []prefix.Part{{Content: "Be brief."}}},
			{Role: "user", Name: "ann", Parts: []prefix.Part{{Content: "What is this?"}, {Type: "image_url", Content: "http://x/1.png"}}},
			{Role: "assistant", ToolCalls: []prefix.ToolCall{{ID: "c1", Name: "f", Arguments: `{"a":1}`}}},
			{Role: "tool", ToolCallID: "c1", Parts: []prefix.Part{{Content: "4" + strings.Repeat("2", 200)}}},
		},
	}
	assert.Equal(t, want, c.conversation)
	assert.Equal(t, 1, c.media)
	var req endpick.Request
	c.prompt(&req, prefix.Scope{Model: "m", Salt: "salt"}, rates{})
	blocks, _ := prefix.AppendChat(nil, prefix.Scope{Model: "m", Salt: "salt"}.Seed(), &want)
	assert.Equal(t, blocks, req.Blocks)
	assert.NotEmpty(t, blocks)
}

func TestTheHostsOwnTokensStay(t *testing.T) {
	c := parse(completion, []byte(`{"prompt":"some text"}`))
	req := endpick.Request{InputTokens: 3, Blocks: []uint64{7}, ExpectedOutputTokens: 2}
	assert.Zero(t, c.prompt(&req, prefix.Scope{}, rates{}))
	assert.Equal(t, endpick.Request{InputTokens: 3, Blocks: []uint64{7}, ExpectedOutputTokens: 2}, req)
}

func TestExpectedOutputIsTheMeanOrTheLimit(t *testing.T) {
	learned := rates{output: 300, outputs: 3}
	for body, want := range map[string]int{
		`{"prompt":"x"}`:                    100,
		`{"prompt":"x","max_tokens":20}`:    20,
		`{"prompt":"x","max_tokens":5000}`:  100,
		`{"prompt":"x","n":3}`:              300,
		`{"prompt":"x","n":-1}`:             100,
		`{"prompt":"x","n":2000000000}`:     1<<31 - 1,
		`{"prompt":"x","max_tokens":"20"}`:  100,
		`{"prompt":"x","max_tokens":1e300}`: 100,
	} {
		c := parse(completion, []byte(body))
		assert.Equal(t, want, c.expectedOutput(learned), body)
	}
}

func TestAskForUsage(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		keep           bool
	}{
		{"nothing was said", `{"prompt":"x","stream":true}`, `{"stream_options":{"include_usage":true},"prompt":"x","stream":true}`, true},
		{"white space stays", " {\n \"prompt\" : \"x\" , \"stream\" : true }\n", " {\"stream_options\":{\"include_usage\":true},\n \"prompt\" : \"x\" , \"stream\" : true }\n", true},
		{"empty options", `{"prompt":"x","stream":true,"stream_options":{}}`, `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`, true},
		{"null options", `{"stream_options": null ,"prompt":"x","stream":true}`, `{"stream_options": {"include_usage":true} ,"prompt":"x","stream":true}`, true},
		{"refused", `{"prompt":"x","stream":true,"stream_options":{"include_usage":false}}`, `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`, true},
		{"other options stay", `{"prompt":"x","stream":true,"stream_options":{"a":1,"include_usage":null,"b":[2]}}`,
			`{"prompt":"x","stream":true,"stream_options":{"include_usage":true,"a":1,"b":[2]}}`, true},
		{"asked for", `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`, "", false},
		{"no stream", `{"prompt":"x"}`, "", false},
		{"options that are none", `{"prompt":"x","stream":true,"stream_options":7}`, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(completion, []byte(tc.in))
			assert.Equal(t, tc.keep, c.askForUsage())
			if tc.want == "" {
				tc.want = tc.in
			}
			assert.Equal(t, tc.want, string(c.body))
		})
	}
}

// For every valid body the parser finds what encoding/json finds, and what is
// sent instead of it differs in stream_options only. Others do not make it
// panic.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":"x","stream":true}`, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false,"x":1}}`,
		`{"prompt":[1,2,3],"n":2,"max_tokens":7}`, `{"prompt":[[1],[2]]}`, `{"prompt":["a","b"]}`, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`,
		`{"mod\u0065l":"\ud83d\ude00","prompt":""}`, `{"model":"a","model":"b"`, `[]`, ``, `{"messages":[{"tool_calls":[{"function":{}}],"role":7}],"tools":[{}]}`,
	} {
		f.Add(true, []byte(s))
		f.Add(false, []byte(s))
	}
	f.Fuzz(func(t *testing.T, isChat bool, b []byte) {
		kind := completion
		if isChat {
			kind = chat
		}
		c := parse(kind, b)
		var req endpick.Request
		learn := c.prompt(&req, prefix.Scope{Salt: c.salt}, rates{})
		if req.InputTokens < 1 || learn < 0 || req.ExpectedOutputTokens < 0 || len(req.Blocks) > len(b) {
			t.Fatalf("%q: %+v", b, req)
		}
		kept := c.askForUsage()
		if !json.Valid(b) || !utf8.Valid(b) {
			return
		}
		var twin map[string]json.RawMessage
		if json.Unmarshal(b, &twin) != nil || twin == nil {
			require.Equal(t, other, c.api)
			return
		}
		var model string
		if json.Unmarshal(twin["model"], &model) == nil {
			require.Equal(t, model, c.model)
		}
		if _, has := twin["prompt"]; !has && !isChat {
			require.Equal(t, other, c.api)
		}
		var prompt *string
		if !isChat && json.Unmarshal(twin["prompt"], &prompt) == nil && prompt != nil {
			require.Equal(t, completion, c.api)
			require.Equal(t, []string{*prompt}, c.text)
		}
		require.Equal(t, c.api != other && string(twin["stream"]) == "true", c.stream)
		if !kept {
			require.Equal(t, string(b), string(c.body))
			return
		}
		var sent map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(c.body, &sent), "%s", c.body)
		var options map[string]any
		require.NoError(t, json.Unmarshal(sent["stream_options"], &options))
		require.Equal(t, true, options["include_usage"])
		delete(sent, "stream_options")
		delete(twin, "stream_options")
		require.Equal(t, twin, sent)
	})
}

func BenchmarkParse(b *testing.B) {
	for name, size := range map[string]int{"4KB": 4 << 10, "1MB": 1 << 20} {
		body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("All work and no play.\\n", size/23) + `"}]}`)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				c := parse(chat, body)
				var req endpick.Request
				c.prompt(&req, prefix.Scope{}, rates{})
			}
		})
	}
}
