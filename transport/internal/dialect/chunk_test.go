package dialect

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The chunk that was asked for is dropped. Others stay as they are.
func TestHiddenUsage(t *testing.T) {
	const figures = `"usage":{"prompt_tokens":3,"completion_tokens":{}}`
	for in, want := range map[string]bool{
		`{"choices":[],"a":1,"b":null,` + figures + `}`:                    true,
		`{` + figures + `}`:                                                true,
		`{"choices":null,` + figures + `,"trace":null}`:                    true,
		`{"choices":[],` + figures + `,"timings":{"prompt_n":4}}`:          true, // llama.cpp's last event
		`{"error":null,"choices":[],` + figures + `}`:                      true,
		`{"usage":{},"a":1}`:                                               true,
		`{"a":1,"usage":null}`:                                             false,
		`{"choices":[],"usage":null}`:                                      false,
		`{"a":{` + figures + `}}`:                                          false,
		`{"choices":[],"usage":4}`:                                         false,
		`{"error":{"code":500},` + figures + `}`:                           false,
		`{"choices":[],"error":{"code":500},` + figures + `}`:              false,
		`{"choices":[{"delta":{"content":"x"}}],` + figures + `}`:          false,
		`{"choices":[{"delta":{"content":"x"}}],"usage":null,"timings":1}`: false,
		`{"choices":[],"timings":{"prompt_n":4}}`:                          false,
	} {
		assert.Equal(t, want, isUsage([]byte(in)), in)
	}
}

func TestUsageFinder(t *testing.T) {
	const u = `{"prompt_tokens":12,"completion_tokens":34,"prompt_tokens_details":{"cached_tokens":8}}`
	want := figuresSaid{prompt: 12, completion: 34, cached: 8, hasPrompt: true, hasCompletion: true, hasCached: true}
	for name, tc := range map[string]struct {
		in   string
		want figuresSaid
	}{
		"last":                  {`{"id":"x","choices":[{"message":{"content":"a \"usage\": {} \\"}}],"usage":` + u + `}`, want},
		"first, with spaces":    {` { "usage" : ` + u + ` , "choices" : [ ] }`, want},
		"twice":                 {`{"usage":{"prompt_tokens":1},"usage":` + u + `}`, want},
		"deeper is not it":      {`{"a":{"usage":` + u + `}}`, figuresSaid{}},
		"a value is not it":     {`{"a":"usage","b":["usage",` + u + `]}`, figuresSaid{}},
		"null":                  {`{"usage":null}`, figuresSaid{}},
		"cut":                   {`{"usage":{"prompt_tokens":12,"compl`, figuresSaid{}},
		"an array":              {`[{"usage":` + u + `}]`, figuresSaid{}},
		"not JSON":              {`usage: 12`, figuresSaid{}},
		"too long":              {`{"usage":{"x":"` + strings.Repeat("y", 2*maxUsage) + `","prompt_tokens":1}}`, figuresSaid{}},
		"a key that starts so":  {`{"usages":` + u + `}`, figuresSaid{}},
		"a key with an escape":  {`{"usag\e":` + u + `}`, figuresSaid{}},
		"an escape beside it":   {`{"us\nage":` + u + `}`, figuresSaid{}},
		"an escaped quote":      {`{"a\"":"\"","usage":` + u + `}`, want},
		"a brace behind one":    {`{"a":"\"}","usage":` + u + `}`, want},
		"an escape over chunks": {`{"a":"\\\\\\","usage":` + u + `}`, want},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 1 << 20} {
				var f usageFinder
				for piece := range slices.Chunk([]byte(tc.in), size) {
					f.write(piece)
				}
				assert.Equal(t, tc.want, saidOf(f.found), "in pieces of %d", size)
				assert.LessOrEqual(t, cap(f.member), 2*maxUsage)
			}
		})
	}
}

const contentChunk = `{"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`
