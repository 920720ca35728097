package dialect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// The answers are llama.cpp's, shortened.
const (
	nativeLast = `{"index":0,"content":"","tokens":[],"id_slot":1,"stop":true,"model":"tiny.gguf","tokens_predicted":3,"tokens_evaluated":24,` +
		`"generation_settings":{"seed":1},"prompt":"<s> Once upon a time","truncated":false,"stop_type":"limit","tokens_cached":26,` +
		`"timings":{"cache_n":18,"prompt_n":6,"prompt_ms":0.7,"predicted_n":3,"predicted_ms":1.5}}`
	nativeProgress = `{"index":0,"content":"","tokens":[0],"stop":false,"id_slot":-1,"tokens_predicted":0,"tokens_evaluated":24,"prompt_progress":{"total":24,"cache":18,"processed":24}}`
)

func nativePiece(content string) string {
	return `{"index":0,"content":"` + content + `","tokens":[390],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":24}`
}

func TestNativeStreamsAreMetered(t *testing.T) {
	const request = `{"prompt":"Once upon a time","n_predict":3,"stream":true}`
	cached := 18
	whole := events(nativeProgress, nativePiece(" a"), nativePiece(""), nativePiece(" c"), nativeLast)
	for path, request := range map[string]string{
		"/completion": request,
		"/infill":     `{"input_prefix":"def f(","input_suffix":"return","n_predict":3,"stream":true}`,
	} {
		seen, outcome, err := metered(t, path, request, EventStream, whole)
		require.NoError(t, err)
		assert.Equal(t, Seen{InputTokens: 24, OutputTokens: 3, Reported: true, CachedTokens: &cached, FirstToken: seen.FirstToken}, seen, path)
		assert.False(t, seen.FirstToken.IsZero())
		assert.Equal(t, endpick.Outcome{InputTokens: 24, OutputTokens: 3, CachedTokens: 18, HasCachedTokens: true}, outcome, path)
	}
	seen, _, err := metered(t, "/completion", request, EventStream, events(nativeProgress))
	assert.Error(t, err, "it was cut")
	assert.True(t, seen.FirstToken.IsZero(), "progress of the prompt is no token")
	seen, _, err = metered(t, "/completion", request, EventStream, events(nativePiece(" a"), nativePiece(" b")))
	assert.Error(t, err, "it was cut")
	assert.Equal(t, 2, seen.OutputTokens, "tokens are counted as they come")
	_, outcome, err := metered(t, "/completion", request, EventStream, events(`{"error":{"code":500,"message":"no","type":"server_error"}}`))
	require.NoError(t, err)
	assert.Equal(t, endpick.Failed, outcome.Status)

	// Each of the two choices ends, and neither reports the cost of both.
	two := events(nativePiece(" a"), nativeLast, nativePiece(" b"))
	seen, outcome, err = metered(t, "/completion", `{"prompt":["a","b"],"stream":true}`, EventStream, two)
	require.NoError(t, err)
	assert.Equal(t, []any{2, false}, []any{seen.OutputTokens, seen.Reported})
	assert.Equal(t, endpick.Outcome{}, outcome)

	_, outcome, err = metered(t, "/completion", request, "application/json", strings.Replace(nativeLast, `"content":""`, `"content":" a b c"`, 1))
	require.NoError(t, err)
	assert.Equal(t, endpick.Outcome{InputTokens: 24, OutputTokens: 3, CachedTokens: 18, HasCachedTokens: true}, outcome)
	_, outcome, err = metered(t, "/completion", `{"prompt":"a","n_cmpl":2}`, "application/json", "["+nativeLast+","+nativeLast+"]")
	require.NoError(t, err)
	assert.Equal(t, endpick.Outcome{}, outcome)
}

// The blocks follow the engine's order: other files first, then the text before the
// hole.
func TestInfillSharesItsFiles(t *testing.T) {
	file := `{"filename":"a.go","text":"` + words("package a") + `"}`
	read := func(extra, before string) []uint64 {
		return understand(t, infill, `{"input_suffix":"}","input_prefix":"`+before+`","input_extra":[`+extra+`]}`).req.Blocks
	}
	shared := func(a, b []uint64) (n int) {
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	one := read(file, words("func f"))
	assert.Greater(t, shared(one, read(file, words("func g"))), 0)
	assert.Equal(t, 0, shared(one, read(strings.Replace(file, "a.go", "b.go", 1), words("func f"))))
	assert.Less(t, shared(one, read(file, words("func f")+"more")), len(one)+1)
	assert.Equal(t, one, read(`{"text":"`+words("package a")+`","x":[1],"filename":"a.go"}`, words("func f")))
	assert.Equal(t, one[:1], read(file+","+file, words("func f"))[:1], "another file comes after")
	assert.NotEqual(t, one, read(`7,`+file, words("func g")))
}

// Counting requests go where the prompt will go.
func TestCountsHaveThePromptsBlocks(t *testing.T) {
	for _, tc := range []struct {
		counting, of *api
		body         string
	}{
		{chatCount, chat, `{"messages":[{"role":"user","content":"` + words("one") + `"}]}`},
		{responseCount, responses, `{"input":"` + words("one") + `"}`},
		{messageCount, messages, `{"messages":[{"role":"user","content":"` + words("one") + `"}]}`},
	} {
		assert.Equal(t, understand(t, tc.of, tc.body).req.Blocks, understand(t, tc.counting, tc.body).req.Blocks)
		assert.True(t, tc.counting.idle)
	}
	_, outcome, err := metered(t, "/v1/chat/completions/input_tokens", `{"messages":[{}]}`, "application/json", `{"input_tokens":14}`)
	require.NoError(t, err)
	assert.Equal(t, endpick.Canceled, outcome.Status)
}

func checkNativePrompt(t require.TestingT, v []byte) {
	body := append(append([]byte(`{"prompt":`), v...), '}')
	u, err := tryToUnderstand(native, body, manyItems)
	agree(t, native, body, u, err)
}

func TestNativePromptsAreTheirTwins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{T: t}
		long := func() { d.put(`"` + words("long") + `"`) }
		one := func() {
			rapid.SampledFrom([]func(){
				d.str, d.ids, long,
				func() { d.list(rapid.SampledFrom([]func(){long, func() { d.put("7") }, d.str}).Draw(t, "of")) },
				func() { d.put(`[1,`); long(); d.put(`,2]`) },
				func() { d.put(`{"prompt_string":`); long(); d.put(`,"multimodal_data":["x"]}`) },
				func() { d.anything(1) },
			}).Draw(t, "one")()
		}
		if d.often() {
			d.list(one)
		} else {
			one()
		}
		checkNativePrompt(t, []byte(d.b.String()))
	})
}
