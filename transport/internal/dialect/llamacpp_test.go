package dialect

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

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

func TestNativePromptsAreRead(t *testing.T) {
	text128 := strings.Repeat("abcdefgh", 16)
	ids := strings.Repeat("7,", 31) + "7"
	for name, tc := range map[string]struct {
		kind                            *api
		body                            string
		tokens, blocks, output, prompts int
		learn                           int
	}{
		"a text":                 {native, `{"prompt":"` + text128 + `","n_predict":7,"stream":true}`, 32, 2, 7, 1, 128},
		"without an end":         {native, `{"prompt":"` + text128 + `","n_predict":-1}`, 32, 2, 0, 1, 128},
		"texts":                  {native, `{"prompt":["` + text128 + `","x234"],"n_predict":7}`, 33, 2, 14, 2, 132},
		"several responses":      {native, `{"prompt":"` + text128 + `","n_predict":7,"n_cmpl":3}`, 32, 2, 21, 1, 128},
		"token ids":              {native, `{"prompt":[` + ids + `]}`, 32, 2, 0, 1, 0},
		"lists of token ids":     {native, `{"prompt":[[` + ids + `],[1,2]]}`, 34, 2, 0, 2, 0},
		"ids and texts":          {native, `{"prompt":[` + ids + `,"` + text128 + `",7]}`, 65, 0, 0, 1, 0},
		"texts and ids":          {native, `{"prompt":["` + text128 + `",1]}`, 33, 0, 0, 1, 0},
		"a mixed one and a text": {native, `{"prompt":[["` + text128 + `",1],"x234"]}`, 34, 0, 0, 2, 0},
		"a text and ids":         {native, `{"prompt":["` + text128 + `",[1,2]]}`, 34, 2, 0, 2, 0},
		"a picture":              {native, `{"prompt":{"prompt_string":"` + text128 + `","multimodal_data":["abc"]}}`, 1056, 2, 0, 1, 0},
		"two pictures":           {native, `{"prompt":{"prompt_string":"` + text128 + `","multimodal_data":["abc","def"]}}`, 2080, 2, 0, 1, 0},
		"a picture each":         {native, `{"prompt":[{"prompt_string":"` + text128 + `","multimodal_data":["abc"]},{"prompt_string":"x234","multimodal_data":["def"]}]}`, 2081, 2, 0, 2, 0},
		"a text in an object":    {native, `{"prompt":[{"prompt_string":"` + text128 + `"}]}`, 32, 2, 0, 1, 128},
		"nothing":                {native, `{"prompt":[]}`, -1, 0, 0, 0, 0},
		"another object":         {native, `{"prompt":{"a":1}}`, -1, 0, 0, 0, 0},
		"another list":           {native, `{"prompt":[null]}`, -1, 0, 0, 0, 0},
		"no id":                  {native, `{"prompt":[1.5]}`, -1, 0, 0, 0, 0},
		"code":                   {infill, `{"input_prefix":"` + text128 + `","input_suffix":"x","n_predict":7}`, 37, 2, 7, 1, 149},
		"code without a suffix":  {infill, `{"input_prefix":"x"}`, -1, 0, 0, 0, 0},
		"code in tokens":         {infill, `{"input_prefix":[1,2,3],"input_suffix":"x","prompt":"y"}`, 8, 0, 0, 1, 0},
		"content":                {embedding, `{"content":"` + text128 + `"}`, 32, 2, 1, 1, 128},
		"contents":               {embedding, `{"content":["` + text128 + `",[1,2]]}`, 34, 2, 1, 2, 0},
		"a template":             {tokenization, `{"messages":[{}]}`, 1, 0, 1, 1, 0},
		"texts to rank":          {ranking, `{"query":"` + text128 + `","texts":["a123"]}`, 33, 2, 1, 1, 0},
	} {
		u := understand(t, tc.kind, tc.body)
		if tc.tokens < 0 {
			assert.Equal(t, other, u.api, name)
			continue
		}
		require.Equal(t, tc.kind, u.api, name)
		assert.Equal(t, []int{tc.tokens, tc.blocks, tc.output, tc.prompts, tc.learn}, []int{u.req.InputTokens, len(u.req.Blocks), u.req.ExpectedOutputTokens, u.prompts, u.learn}, name)
		pieces, hide := u.askForUsage()
		assert.False(t, hide)
		assert.Equal(t, tc.body, joined(pieces), name)
	}
	for path, want := range map[string]*api{
		"/completion": native, "/x/completion": native, "/completions": completion, "/v1/completions": completion, "/infill": infill, "/embedding": embedding, "/embeddings": embedding,
		"/apply-template": tokenization, "/reranking": ranking, "/v1/chat/completions/input_tokens": chatCount, "/v1/responses/input_tokens": responseCount,
	} {
		assert.Equal(t, want, apiOf("POST", path), path)
	}
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

func FuzzNativePrompt(f *testing.F) {
	for _, s := range []string{`"a"`, `[1,2]`, `[1,"a"]`, `["a",1]`, `[["a",1],"b"]`, `{"prompt_string":"a"}`, `[{"prompt_string":"a","multimodal_data":["x"]}]`, `[]`, `[[]]`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if json.Valid(b) && utf8.Valid(b) && len(b) < 4096 {
			if depthOf(b) < 50 {
				checkNativePrompt(t, b)
			}
		}
	})
}

func depthOf(b []byte) int { return strings.Count(string(b), "[") + strings.Count(string(b), "{") }
