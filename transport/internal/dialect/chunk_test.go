package dialect

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestReadChunk(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		content  int
		check    func(*testing.T, chunk)
	}{
		{"role only", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`, 0, func(t *testing.T, c chunk) { assert.True(t, c.any) }},
		{"null content", `{"choices":[{"delta":{"content":null}}]}`, 0, nil},
		{"content", `{"choices":[{"delta":{"content":"Hello"}}]}`, 5, nil},
		{"escapes count by what they stand for", `{"choices":[{"delta":{"content":"\n\u00e9\ud83d\ude00"}}]}`, 7, nil},
		{"reasoning_content", `{"choices":[{"delta":{"reasoning_content":"why"}}]}`, 3, nil},
		{"reasoning", `{"choices":[{"delta":{"reasoning":"why"}}]}`, 3, nil},
		{"refusal", `{"choices":[{"delta":{"refusal":"no"}}]}`, 2, nil},
		{"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\""}}]}}]}`, 5, nil},
		{"empty tool calls", `{"choices":[{"delta":{"tool_calls":[]}}]}`, 0, nil},
		{"function call", `{"choices":[{"delta":{"function_call":{"arguments":"ab"}}}]}`, 2, nil},
		{"completion text", `{"choices":[{"text":" world","index":0}]}`, 6, nil},
		{"two choices", `{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"bc"}}]}`, 3, nil},
		{"finish", `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, 0, func(t *testing.T, c chunk) { assert.True(t, c.finished) }},
		{"no finish yet", `{"choices":[{"delta":{},"finish_reason":null}]}`, 0, func(t *testing.T, c chunk) { assert.False(t, c.finished) }},
		{"usage chunk", `{"choices":[],"usage":{"prompt_tokens":3}}`, 0, func(t *testing.T, c chunk) {
			assert.True(t, c.choices)
			assert.False(t, c.any)
			assert.JSONEq(t, `{"prompt_tokens":3}`, string(c.usage))
		}},
		{"error", `{"error":{"message":"boom","code":500}}`, 0, func(t *testing.T, c chunk) { assert.True(t, c.failed) }},
		{"null error", `{"error":null,"choices":[]}`, 0, func(t *testing.T, c chunk) { assert.False(t, c.failed) }},
		{"not JSON", `oops`, 0, func(t *testing.T, c chunk) { assert.Equal(t, chunk{}, c) }},
		{"text beside choices is none", `{"text":"abc","content":"d"}`, 0, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := readChunk([]byte(tc.in))
			assert.Equal(t, tc.content, c.content)
			if tc.check != nil {
				tc.check(t, c)
			}
		})
	}
}

// Only usage is removed, and the event with it if it contains nothing else.
func TestHiddenUsage(t *testing.T) {
	const figures = `{"prompt_tokens":3,"completion_tokens":{}}`
	for in, want := range map[string]string{
		`{"a":1,"usage":null}`:                                  `{"a":1}`,
		`{"choices":[],"a":1,"b":null,"usage":` + figures + `}`: `{"choices":[],"a":1,"b":null}`,
		`{"usage":null,"a":1}`:                                  `{"a":1}`,
		`{"a":1,"usage":null,"b":2}`:                            `{"a":1,"b":2}`,
		`{"a":1, "usage": null , "b":2}`:                        `{"a":1,  "b":2}`,
		`{"a":1 , "usage" : null}`:                              `{"a":1 }`,
		`{"usage":null}`:                                        `{}`,
		`{"usage":{},"a":1}`:                                    `{"a":1}`,
		`{"a":{"usage":null}}`:                                  `{"a":{"usage":null}}`,
		`{"a":1,"usage":null,"usage":4}`:                        `{"a":1,"usage":null,"usage":4}`,

		`{"usage":` + figures + `}`:                                        "",
		`{"choices":[],"usage":` + figures + `}`:                           "",
		`{"choices":null,"usage":` + figures + `,"trace":null}`:            "",
		`{"id":"x","choices":[],"created":1,"usage":` + figures + `}`:      "",
		`{"choices":[],"usage":` + figures + `,"timings":{"prompt_n":4}}`:  "", // llama.cpp's last event
		`{"choices":[],"usage":` + figures + `,"trace":{"n":4}}`:           `{"choices":[],"trace":{"n":4}}`,
		`{"usage":` + figures + `,"trace":{"n":4},"id":"x"}`:               `{"trace":{"n":4},"id":"x"}`,
		`{"trace":{"usage":1},"choices":[],"usage":` + figures + `}`:       `{"trace":{"usage":1},"choices":[]}`,
		`{"error":{"code":500},"usage":` + figures + `}`:                   `{"error":{"code":500}}`,
		`{"error":null,"choices":[],"usage":` + figures + `}`:              "",
		`{"choices":[{"delta":{"content":"x"}}],"usage":` + figures + `}`:  `{"choices":[{"delta":{"content":"x"}}],"usage":` + figures + `}`,
		`{"choices":[{"delta":{"content":"x"}}],"usage":null,"timings":1}`: `{"choices":[{"delta":{"content":"x"}}],"timings":1}`,
		`{"choices":[],"timings":{"prompt_n":4}}`:                          `{"choices":[],"timings":{"prompt_n":4}}`,
	} {
		c := readChunk([]byte(in))
		v := c.hide()
		got := ""
		if !v.drop {
			got = in[:v.cut] + in[v.cutEnd:]
			assert.True(t, json.Valid([]byte(got)), got)
		}
		assert.Equal(t, want, got, in)
	}
}

func TestUsageAbsentIsNotZero(t *testing.T) {
	for in, want := range map[string]usage{
		`{}`: {},
		`{"prompt_tokens":5,"completion_tokens":0}`:                           {prompt: 5, hasPrompt: true, hasCompletion: true},
		`{"prompt_tokens_details":null}`:                                      {},
		`{"prompt_tokens_details":{}}`:                                        {},
		`{"prompt_tokens_details":{"cached_tokens":null}}`:                    {},
		`{"prompt_tokens_details":{"cached_tokens":0}}`:                       {hasCached: true},
		`{"prompt_tokens_details":{"audio_tokens":3,"cached_tokens":16}}`:     {cached: 16, hasCached: true},
		`{"prompt_tokens":-5,"completion_tokens":"9","cached_tokens":5}`:      {},
		`{"prompt_tokens":1e99,"prompt_tokens_details":{"cached_tokens":-1}}`: {},
	} {
		var u usage
		u.read([]byte(in))
		assert.Equal(t, want, u, in)
	}
}

func TestUsageFinder(t *testing.T) {
	const u = `{"prompt_tokens":12,"completion_tokens":34,"prompt_tokens_details":{"cached_tokens":8}}`
	want := usage{12, 34, 8, true, true, true}
	for name, tc := range map[string]struct {
		in   string
		want usage
	}{
		"last":                  {`{"id":"x","choices":[{"message":{"content":"a \"usage\": {} \\"}}],"usage":` + u + `}`, want},
		"first, with spaces":    {` { "usage" : ` + u + ` , "choices" : [ ] }`, want},
		"twice":                 {`{"usage":{"prompt_tokens":1},"usage":` + u + `}`, want},
		"deeper is not it":      {`{"a":{"usage":` + u + `}}`, usage{}},
		"a value is not it":     {`{"a":"usage","b":["usage",` + u + `]}`, usage{}},
		"null":                  {`{"usage":null}`, usage{}},
		"cut":                   {`{"usage":{"prompt_tokens":12,"compl`, usage{}},
		"an array":              {`[{"usage":` + u + `}]`, usage{}},
		"not JSON":              {`usage: 12`, usage{}},
		"too long":              {`{"usage":{"x":"` + strings.Repeat("y", 2*maxUsage) + `","prompt_tokens":1}}`, usage{}},
		"a key that starts so":  {`{"usages":` + u + `}`, usage{}},
		"a key with an escape":  {`{"usag\e":` + u + `}`, usage{}},
		"an escape beside it":   {`{"us\nage":` + u + `}`, usage{}},
		"an escaped quote":      {`{"a\"":"\"","usage":` + u + `}`, want},
		"an escape over chunks": {`{"a":"\\\\\\","usage":` + u + `}`, want},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 1 << 20} {
				var f usageFinder
				for in := tc.in; in != ""; {
					n := min(size, len(in))
					f.write([]byte(in[:n]))
					in = in[n:]
				}
				assert.Equal(t, tc.want, usageOf(&f), "in pieces of %d", size)
				assert.LessOrEqual(t, cap(f.member)+cap(f.value), 4*maxUsage)
			}
		})
	}
}

func usageOf(f *usageFinder) (u usage) {
	u.read(f.value)
	return u
}

// Content in any of its places, as an encoder writes it, counts by its length;
// content elsewhere does not.
func TestContentAgainstEncoder(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~\n"\\]{0,40}`))
	rapid.Check(t, func(t *rapid.T) {
		want := 0
		content := func(name string) string {
			s := text.Draw(t, name)
			want += len(s)
			return s
		}
		maybe := func(m map[string]any, key string, value func() any) {
			switch rapid.IntRange(0, 2).Draw(t, key+"?") {
			case 1:
				m[key] = nil
			case 2:
				m[key] = value()
			}
		}
		var choices []any
		for range rapid.IntRange(0, 3).Draw(t, "choices") {
			delta := map[string]any{"role": text.Draw(t, "role"), "annotations": []any{map[string]any{"content": "no"}}}
			for _, key := range []string{"content", "reasoning_content", "reasoning", "refusal"} {
				maybe(delta, key, func() any { return content(key) })
			}
			maybe(delta, "function_call", func() any { return map[string]any{"name": content("name"), "arguments": content("arguments")} })
			maybe(delta, "tool_calls", func() any {
				return []any{map[string]any{"id": "c", "index": 1, "function": map[string]any{"name": content("name"), "arguments": content("arguments")}}}
			})
			choice := map[string]any{"index": 0, "delta": delta, "logprobs": map[string]any{"content": []any{map[string]any{"token": "no"}}}}
			maybe(choice, "text", func() any { return content("text") })
			choices = append(choices, choice)
		}
		data, err := json.Marshal(map[string]any{"id": text.Draw(t, "id"), "choices": choices, "content": "no", "error": nil})
		if err != nil {
			t.Fatal(err)
		}
		c := readChunk(data)
		if c.content != want || c.any != (len(choices) > 0) || c.failed {
			t.Fatalf("%s: %+v, want %d bytes", data, c, want)
		}
	})
}

// The finder, fed in pieces, and the scanner agree with encoding/json.
func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":8}}}`), 3)
	f.Add([]byte(`{"choices":[{"delta":{"content":"a\n","tool_calls":[{"function":{"name":"f"}}]}}],"usage":null}`), 1)
	f.Add([]byte(`{"choices":[{"text":"\ud83d\ude00"}],"error":{}}`), 2)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		size = max(1, size%64)
		var finder usageFinder
		for i := 0; i < len(b); i += size {
			finder.write(b[i:min(i+size, len(b))])
		}
		got, c := usageOf(&finder), readChunk(b)
		if got.prompt < 0 || got.cached < 0 || c.content < 0 {
			t.Fatal("a negative count")
		}
		if !json.Valid(b) || !utf8.Valid(b) {
			return
		}
		if c.usageEnd > c.usageAt && !json.Valid(append(b[:c.usageAt:c.usageAt], b[c.usageEnd:]...)) {
			t.Fatalf("cut %q", b[c.usageAt:c.usageEnd])
		}
		var twin map[string]json.RawMessage
		if json.Unmarshal(b, &twin) != nil || strings.Contains(string(b), `\u`) || len(twin["usage"]) > maxUsage {
			return
		}
		var want usage
		want.read(twin["usage"])
		require.Equal(t, want, got)
		var text []struct{ Text, Finish_reason any }
		if json.Unmarshal(twin["choices"], &text) == nil {
			require.Equal(t, len(text) > 0, c.any)
		}
	})
}

const contentChunk = `{"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`

func TestReadChunkAllocatesNothing(t *testing.T) {
	b := []byte(contentChunk)
	assert.Zero(t, testing.AllocsPerRun(100, func() { readChunk(b) }))
}

func BenchmarkReadChunk(b *testing.B) {
	data := []byte(contentChunk)
	b.Run("scan", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			readChunk(data)
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			var c struct {
				Choices []struct {
					Delta struct {
						Content string `json:"content"`
					} `json:"delta"`
				} `json:"choices"`
			}
			if json.Unmarshal(data, &c) != nil {
				b.Fatal()
			}
		}
	})
}
