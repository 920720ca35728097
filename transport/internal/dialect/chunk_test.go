package dialect

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The chunk that was asked for is dropped, and a usage of null removed. Other events stay as they are.
func TestHiddenUsage(t *testing.T) {
	const figures = `{"prompt_tokens":3,"completion_tokens":{}}`
	for in, want := range map[string]string{
		`{"a":1,"usage":null}`:                                  `{"a":1}`,
		`{"choices":[],"a":1,"b":null,"usage":` + figures + `}`: "",
		`{"a":1,"b":null,"usage":` + figures + `}`:              `{"a":1,"b":null,"usage":` + figures + `}`,
		`{"usage":null,"a":1}`:                                  `{"a":1}`,
		`{"a":1,"usage":null,"b":2}`:                            `{"a":1,"b":2}`,
		`{"a":1, "usage": null , "b":2}`:                        `{"a":1,  "b":2}`,
		`{"a":1 , "usage" : null}`:                              `{"a":1 }`,
		`{"usage":null}`:                                        `{}`,
		`{"usage":{},"a":1}`:                                    `{"usage":{},"a":1}`,
		`{"a":{"usage":null}}`:                                  `{"a":{"usage":null}}`,
		`{"a":1,"usage":null,"usage":4}`:                        `{"a":1,"usage":null,"usage":4}`,

		`{"usage":` + figures + `}`:                                        "",
		`{"choices":[],"usage":` + figures + `}`:                           "",
		`{"choices":null,"usage":` + figures + `,"trace":null}`:            "",
		`{"id":"x","choices":[],"created":1,"usage":` + figures + `}`:      "",
		`{"choices":[],"usage":` + figures + `,"timings":{"prompt_n":4}}`:  "", // llama.cpp's last event
		`{"choices":[],"usage":` + figures + `,"trace":{"n":4}}`:           "",
		`{"usage":` + figures + `,"trace":{"n":4},"id":"x"}`:               `{"usage":` + figures + `,"trace":{"n":4},"id":"x"}`,
		`{"trace":{"usage":1},"choices":[],"usage":` + figures + `}`:       "",
		`{"error":{"code":500},"usage":` + figures + `}`:                   `{"error":{"code":500},"usage":` + figures + `}`,
		`{"choices":[],"error":{"code":500},"usage":` + figures + `}`:      `{"choices":[],"error":{"code":500},"usage":` + figures + `}`,
		`{"error":{"code":500},"choices":[],"usage":null}`:                 `{"error":{"code":500},"choices":[]}`,
		`{"error":null,"choices":[],"usage":` + figures + `}`:              "",
		`{"choices":[{"delta":{"content":"x"}}],"usage":` + figures + `}`:  `{"choices":[{"delta":{"content":"x"}}],"usage":` + figures + `}`,
		`{"choices":[{"delta":{"content":"x"}}],"usage":null,"timings":1}`: `{"choices":[{"delta":{"content":"x"}}],"timings":1}`,
		`{"choices":[],"timings":{"prompt_n":4}}`:                          `{"choices":[],"timings":{"prompt_n":4}}`,
	} {
		v := unasked([]byte(in), false)
		got := ""
		if !v.drop {
			got = in[:v.cut] + in[v.cutEnd:]
			assert.True(t, json.Valid([]byte(got)), got)
		}
		assert.Equal(t, want, got, in)
	}
}

func TestUsageFinder(t *testing.T) {
	const u = `{"prompt_tokens":12,"completion_tokens":34,"prompt_tokens_details":{"cached_tokens":8}}`
	want := usage{prompt: 12, completion: 34, cached: 8, hasPrompt: true, hasCompletion: true, hasCached: true}
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
		"a brace behind one":    {`{"a":"\"}","usage":` + u + `}`, want},
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
				var got usage
				got.take(&f.found)
				assert.Equal(t, tc.want, got, "in pieces of %d", size)
				assert.LessOrEqual(t, cap(f.member), 2*maxUsage)
			}
		})
	}
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
		e := unasked(b, false)
		var got usage
		got.take(&finder.found)
		r := response{api: chat, most: 1}
		if r.read(b, false); got.prompt < 0 || got.cached < 0 || r.data.bytes < 0 {
			t.Fatal("a negative count")
		}
		if !json.Valid(b) || !utf8.Valid(b) {
			return
		}
		if e.cutEnd > e.cut && !json.Valid(append(b[:e.cut:e.cut], b[e.cutEnd:]...)) {
			t.Fatalf("cut %q", b[e.cut:e.cutEnd])
		}
		var twin map[string]json.RawMessage
		if json.Unmarshal(b, &twin) != nil || strings.Contains(string(b), `\u`) || len(b) > maxUsage {
			return
		}
		var want usage
		want.read(b)
		require.Equal(t, want, got)
		var text []struct{ Text, Finish_reason any }
		if json.Unmarshal(twin["choices"], &text) == nil {
			require.Equal(t, len(text) > 0, r.data.said)
		}
	})
}

const contentChunk = `{"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`
