package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryAPIIsFound(t *testing.T) {
	for path, want := range map[string]*api{
		"/v1/chat/completions": chat, "/openai/v1/chat/completions": chat, "/v1/batches": other, "/completions/x": other, "/": other,
		"/v1/messages": messages, "/anthropic/v1/messages": messages, "/v1/messages/count_tokens": messageCount, "/v1/responses": responses, "/openai/responses": responses,
		"/embed": embedding, "/v2/embed": embedding, "/api/embed": ollamaEmbed, "/encode": embedding, "/api/show": ollamaShow,
		"/v1/embeddings": embedding, "/pooling": embedding, "/classify": embedding, "/v1/rerank": ranking, "/v2/rerank": ranking, "/rerank": ranking, "/score": ranking, "/v1/score": ranking, "/v1/chat/completions/batch": ranking,
		"/v1/audio/transcriptions": transcription, "/v1/audio/translations": transcription,
		"/generate": generation, "/inference/v1/generate": generation, "/generate_stream": generation, "/tokenize": tokenization, "/detokenize": tokenization,
		"/completion": native, "/x/completion": native, "/completions": completion, "/v1/completions": completion, "/infill": infill, "/embedding": embedding, "/embeddings": embedding,
		"/apply-template": tokenization, "/reranking": ranking, "/v1/chat/completions/input_tokens": chatCount, "/v1/responses/input_tokens": responseCount,
		"/v1/messages/batches": other, "/v1/responses/resp_1": other, "/v1/responses/resp_1/cancel": other, "/messages": other,
	} {
		assert.Equal(t, want, apiOf("POST", path), path)
		assert.Equal(t, other, apiOf("GET", path), path)
	}
}

// words is long enough to fill blocks of its own.
func words(s string) string { return strings.Repeat(s+" ", 40) }

func blocksOf(t testing.TB, kind *api, body string) []uint64 {
	t.Helper()
	u := understand(t, kind, body)
	require.Equal(t, kind, u.api, body)
	return u.req.Blocks
}

// The next turn of a conversation shares all full blocks with the turn before.
func TestConversationsContinue(t *testing.T) {
	for name, tc := range map[string]struct {
		kind *api
		turn func(messages string) string
		msgs []string
	}{
		"chat": {chat, func(s string) string { return `{"tools":[{"a":1}],"messages":[` + s + `]}` }, []string{
			`{"role":"system","content":"` + words("be") + `"}`, `{"role":"user","content":"` + words("one") + `"}`,
			`{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}`, `{"role":"tool","tool_call_id":"1","content":"` + words("two") + `"}`}},
		"messages": {messages, func(s string) string {
			return `{"tools":[{"a":1}],"system":"` + words("be") + `","messages":[` + s + `]}`
		}, []string{
			`{"role":"user","content":"` + words("one") + `"}`, `{"role":"assistant","content":[{"type":"thinking","thinking":"` + words("so") + `"},{"type":"tool_use","id":"1","name":"f","input":{}}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"` + words("two") + `"}]}`}},
		"responses": {responses, func(s string) string { return `{"instructions":"` + words("be") + `","input":[` + s + `]}` }, []string{
			`{"role":"user","content":"` + words("one") + `"}`, `{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}`,
			`{"type":"function_call_output","call_id":"1","output":"` + words("two") + `"}`, `{"type":"web_search_call","id":"ws"}`, `{"role":"user","content":"` + words("three") + `"}`}},
	} {
		last := []uint64{}
		for i := range tc.msgs {
			u := understand(t, tc.kind, tc.turn(strings.Join(tc.msgs[:i+1], ",")))
			require.Greater(t, len(u.req.Blocks), len(last)-1, name)
			require.Equal(t, last, u.req.Blocks[:len(last):len(last)], "%s, turn %d", name, i)
			last = u.req.Blocks
			if i > 0 { // the user has spoken
				assert.Regexp(t, "^head-", u.req.Session, name)
			}
		}
		first, all := understand(t, tc.kind, tc.turn(strings.Join(tc.msgs[:2], ","))), tc.turn(strings.Join(tc.msgs, ","))
		assert.Equal(t, first.req.Session, understand(t, tc.kind, all).req.Session, name)
		// Counting requests go where the prompt will go.
		counting := map[*api]*api{chat: chatCount, messages: messageCount, responses: responseCount}[tc.kind]
		assert.Equal(t, last, blocksOf(t, counting, all), name)
		assert.True(t, counting.idle, name)
	}
}

func TestOtherPromptsAreRead(t *testing.T) {
	text128 := strings.Repeat("abcdefgh", 16)
	ids := strings.Repeat("7,", 31) + "7"
	for name, tc := range map[string]struct {
		kind           *api
		body           string
		tokens, blocks int
		output, learn  int
	}{
		"an embedding":              {embedding, `{"input":"` + text128 + `"}`, 32, 2, 1, 128},
		"embeddings":                {embedding, `{"input":["` + text128 + `","x234"],"stream":true}`, 33, 2, 1, 132},
		"an embedding of tokens":    {embedding, `{"input":[` + ids + `]}`, 32, 2, 1, 0},
		"of a conversation":         {embedding, `{"messages":[{"role":"user","content":"` + text128 + `"}]}`, 34, 2, 1, 136},
		"ranking":                   {ranking, `{"query":"` + text128 + `","documents":["a123",{"text":"b123"}],"top_n":1}`, -1, 0, 0, 0},
		"a score":                   {ranking, `{"text_1":"` + text128 + `","text_2":"a123"}`, -1, 0, 0, 0},
		"SGLang, text":              {generation, `{"text":"` + text128 + `","sampling_params":{"max_new_tokens":7,"n":2},"stream":true}`, 32, 2, 14, 128},
		"SGLang, tokens":            {generation, `{"input_ids":[` + ids + `],"sampling_params":{"max_new_tokens":7}}`, 32, 2, 7, 0},
		"vLLM, tokens":              {generation, `{"token_ids":[` + ids + `],"sampling_params":{"max_tokens":7}}`, 32, 2, 7, 0},
		"TGI":                       {generation, `{"inputs":"` + text128 + `","parameters":{"max_new_tokens":7}}`, 32, 2, 7, 128},
		"tokens of a text":          {tokenization, `{"prompt":"` + text128 + `"}`, 1, 0, 1, 0},
		"tokens of a conversation":  {tokenization, `{"messages":[{}]}`, 1, 0, 1, 0},
		"the text of tokens":        {tokenization, `{"tokens":[1,2]}`, 1, 0, 1, 0},
		"llama.cpp, text":           {native, `{"prompt":"` + text128 + `","n_predict":7,"stream":true}`, 32, 2, 7, 128},
		"without an end":            {native, `{"prompt":"` + text128 + `","n_predict":-1}`, 32, 2, 0, 128},
		"several responses":         {native, `{"prompt":"` + text128 + `","n_predict":7,"n_cmpl":3}`, 32, 2, 21, 128},
		"a picture":                 {native, `{"prompt":{"prompt_string":"` + text128 + `","multimodal_data":["abc"]}}`, 1056, 2, 0, 0},
		"two pictures":              {native, `{"prompt":{"prompt_string":"` + text128 + `","multimodal_data":["abc","def"]}}`, 2080, 2, 0, 0},
		"a picture each":            {native, `{"prompt":[{"prompt_string":"` + text128 + `","multimodal_data":["abc"]},{"prompt_string":"x234","multimodal_data":["def"]}]}`, 2081, 2, 0, 0},
		"another object":            {native, `{"prompt":{"a":1}}`, -1, 0, 0, 0},
		"code":                      {infill, `{"input_prefix":"` + text128 + `","input_suffix":"x","n_predict":7}`, 37, 2, 7, 149},
		"code without a suffix":     {infill, `{"input_prefix":"x"}`, -1, 0, 0, 0},
		"code in tokens":            {infill, `{"input_prefix":[1,2,3],"input_suffix":"x","prompt":"y"}`, -1, 0, 0, 0},
		"content":                   {embedding, `{"content":"` + text128 + `"}`, 32, 2, 1, 128},
		"TEI, and Cohere":           {embedding, `{"inputs":"` + text128 + `","texts":["` + text128 + `"]}`, 32, 2, 1, 128},
		"SGLang, to be encoded":     {embedding, `{"input_ids":[` + ids + `]}`, 32, 2, 1, 0},
		"documents beside a chat":   {chat, `{"documents":[{"title":"t","text":"` + text128 + `"}],"messages":[{"role":"user","content":"x"}]}`, 37, 2, 0, 147},
		"contents of two kinds":     {embedding, `{"content":["` + text128 + `",[1,2]]}`, -1, 0, 0, 0},
		"an empty prompt":           {completion, `{"prompt":""}`, 1, 0, 0, 0},
		"also an empty prompt":      {completion, `{"prompt":["","` + text128 + `"]}`, 32, 0, 0, 128},
		"escapes for what they are": {completion, `{"prompt":"` + strings.Repeat(`\u00e9`, 32) + `"}`, 16, 1, 0, 64},
		"max_completion_tokens":     {chat, `{"messages":[{"role":"user","content":"x"}],"max_completion_tokens":9}`, 2, 0, 9, 9},
		"an image, by no bytes":     {chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:` + strings.Repeat("A", 100000) + `"}}]}]}`, 1033, 0, 0, 0},
		"a template":                {tokenization, `{"messages":[{}]}`, 1, 0, 1, 0},
		"texts to rank":             {ranking, `{"query":"` + text128 + `","texts":["a123"]}`, -1, 0, 0, 0},
		"an embedding of an object": {embedding, `{"input":{"a":1},"messages":[{}]}`, -1, 0, 0, 0},
	} {
		u := understand(t, tc.kind, tc.body)
		if tc.tokens < 0 {
			assert.Equal(t, other, u.api, name)
			continue
		}
		require.Equal(t, tc.kind, u.api, name)
		assert.Equal(t, []int{tc.tokens, tc.blocks, tc.output, tc.learn}, []int{u.req.InputTokens, len(u.req.Blocks), u.req.ExpectedOutputTokens, u.learn}, name)
		assert.InDelta(t, 16, u.req.BlockTokens, 1e-9, name)
		assert.Equal(t, tc.kind.event != nil && strings.Contains(tc.body, `"stream":true`), u.stream, name)
		pieces, hide := u.askForUsage()
		assert.False(t, hide)
		assert.Equal(t, tc.body, joined(pieces), name)
	}
}

// A transcription streams only if its form says true.
func TestTranscriptionIsReadFromItsForm(t *testing.T) {
	field := func(name, content string) string {
		return "--B\r\nContent-Disposition: form-data; name=" + name + "\r\n\r\n" + content + "\r\n"
	}
	header := http.Header{"Content-Type": {"multipart/form-data; boundary=B"}}
	for stream, want := range map[string]bool{"true": true, "false": false, "": false, "True": false} {
		body := field(`"model"`, "whisper") + field(`"stream"`, stream) + field(`"file"; filename="a.wav"`, strings.Repeat("x", 32000)) + "--B--\r\n"
		c := newTalk(t).read(Incoming{Method: "POST", Path: "/v1/audio/transcriptions", Header: header, Body: []byte(body)}, nil)
		assert.Equal(t, "whisper", c.Request.Model)
		assert.Equal(t, want, c.Request.Stream, stream)
		assert.InDelta(t, 100, c.Request.InputTokens, 2)
		assert.Equal(t, body, joined(c.Body(true)))
	}
}

// metered feeds a response to a meter.
func metered(t testing.TB, path, request, kind, response string) (Seen, endpick.Outcome, error) {
	w := newTalk(t)
	m := w.meter(w.ask(path, request, nil), kind)
	out, err := m.End(fed(m, response, 1))
	assert.Equal(t, response, string(out), "passed on as it is")
	outcome := m.Outcome(endpick.Completed)
	return m.Seen(), outcome, err
}

// fed is what a meter passes on of a response that arrives in pieces of a size.
func fed(m *Meter, response string, size int) (out []byte) {
	for piece := range slices.Chunk([]byte(response), size) {
		out = m.Feed(out, piece)
	}
	return out
}

func events(of ...string) string {
	var b strings.Builder
	for _, data := range of {
		if _, kind, ok := strings.Cut(data, `"type":"`); ok {
			fmt.Fprintf(&b, "event: %s\n", kind[:strings.IndexByte(kind, '"')])
		}
		fmt.Fprintf(&b, "data: %s\n\n", data)
	}
	return b.String()
}

const aMessage = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}`

// The examples are from the APIs' documentation.
func TestStreamsAreMetered(t *testing.T) {
	start := `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":64,"cache_creation_input_tokens":11,"output_tokens":1}}}`
	created := `{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null}}`
	cached := func(n int) *int { return &n }
	native := events(nativeProgress, nativePiece(" a"), nativePiece(""), nativePiece(" c"), nativeLast)
	const aPrompt = `{"prompt":"Once upon a time","n_predict":3,"stream":true}`
	for name, tc := range map[string]struct {
		path, request, response string
		in, out                 int
		reported                bool
		cached                  *int
		first, cut              bool
		status                  endpick.Status
	}{
		"messages": {"/v1/messages", aMessage, events(start,
			`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type": "ping"}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`,
			`{"type":"content_block_stop","index":0}`,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"get_weather","input":{}}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"location\":"}}`,
			`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":15}}`,
			`{"type":"message_stop"}`), 100, 15, true, cached(64), true, false, endpick.Completed},
		"messages that are cut": {"/v1/messages", aMessage, events(start, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`), 0, 1, false, cached(64), true, true, endpick.Completed},
		"messages that fail":    {"/v1/messages", aMessage, events(start, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`), 0, 0, false, cached(64), false, false, endpick.Failed},
		"later figures without the cache's": {"/v1/messages", aMessage, events(start,
			`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hello"}}`,
			`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":25,"output_tokens":2}}`), 100, 2, true, cached(64), true, false, endpick.Completed},
		"responses": {"/v1/responses", `{"model":"m","input":"hi","stream":true}`, events(created,
			`{"type":"response.output_item.added","output_index":0,"item":{"id":"msg_1","type":"message","role":"assistant","content":[]}}`,
			`{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hello"}`,
			`{"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":16},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":123}}}`),
			36, 87, true, cached(16), true, false, endpick.Completed},
		"a call of a tool": {"/v1/responses", `{"model":"m","input":"hi","stream":true}`, events(created,
			`{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f"}}`,
			`{"type":"response.function_call_arguments.delta","delta":"{\"a\":1}"}`,
			`{"type":"response.incomplete","response":{"status":"incomplete","usage":{"input_tokens":3,"output_tokens":4}}}`), 3, 4, true, nil, true, false, endpick.Completed},
		"a response that fails":  {"/v1/responses", `{"model":"m","input":"hi","stream":true}`, events(created, `{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}`), 0, 0, false, nil, false, false, endpick.Failed},
		"a response that is cut": {"/v1/responses", `{"model":"m","input":"hi","stream":true}`, events(created, `{"type":"response.reasoning_text.delta","delta":"hm"}`), 0, 1, false, nil, true, true, endpick.Completed},
		"SGLang, from its beginning": {"/generate", `{"text":"hi","stream":true}`, events(
			`{"text":"a","meta_info":{"prompt_tokens":3,"completion_tokens":1,"cached_tokens":2,"finish_reason":null}}`,
			`{"text":"a b","meta_info":{"prompt_tokens":3,"completion_tokens":2,"cached_tokens":2,"finish_reason":{"type":"stop"}}}`) + "data: [DONE]\n\n", 3, 2, true, cached(2), true, false, endpick.Completed},
		"TGI":                       {"/generate_stream", `{"inputs":"hi","stream":true}`, events(`{"token":{"id":1,"text":"Hello"},"generated_text":null}`, `{"token":{"id":2,"text":"!"},"generated_text":"Hello!","details":{"generated_tokens":2}}`), 0, 1, false, nil, true, false, endpick.Completed},
		"vLLM, tokens":              {"/inference/v1/generate", `{"token_ids":[1],"stream":true}`, events(`{"request_id":"r","choices":[{"index":0,"token_ids":[5,6]}]}`, `{"choices":[{"index":0,"token_ids":[7],"finish_reason":"stop"}]}`) + "data: [DONE]\n\n", 0, 3, false, nil, true, false, endpick.Completed},
		"llama.cpp":                 {"/completion", aPrompt, native, 24, 3, true, cached(18), true, false, endpick.Completed},
		"llama.cpp, code":           {"/infill", `{"input_prefix":"def f(","input_suffix":"return","n_predict":3,"stream":true}`, native, 24, 3, true, cached(18), true, false, endpick.Completed},
		"progress is no token":      {"/completion", aPrompt, events(nativeProgress), 0, 0, false, nil, false, true, endpick.Completed},
		"tokens count as they come": {"/completion", aPrompt, events(nativePiece(" a"), nativePiece(" b")), 0, 2, false, nil, true, true, endpick.Completed},
		"llama.cpp fails":           {"/completion", aPrompt, events(`{"error":{"code":500,"message":"no","type":"server_error"}}`), 0, 0, false, nil, false, false, endpick.Failed},
		"neither of two has it all": {"/completion", `{"prompt":["a","b"],"stream":true}`, events(nativePiece(" a"), nativeLast, nativePiece(" b")), 0, 2, false, nil, true, false, endpick.Completed},
	} {
		seen, outcome, err := metered(t, tc.path, tc.request, EventStream, tc.response)
		assert.Equal(t, tc.cut, err != nil, "%s: %v", name, err)
		assert.Equal(t, []any{tc.out, tc.reported, tc.first, tc.status}, []any{seen.OutputTokens, seen.Reported, !seen.FirstToken.IsZero(), outcome.Status}, name)
		assert.Equal(t, tc.cached, seen.CachedTokens, name)
		if !tc.reported {
			assert.Zero(t, outcome.OutputTokens, name)
			continue
		}
		assert.Equal(t, []int{tc.in, tc.in, tc.out}, []int{seen.InputTokens, outcome.InputTokens, outcome.OutputTokens}, name)
	}
}

func TestResponsesAtOnceAreMetered(t *testing.T) {
	for name, tc := range map[string]struct {
		path, request, response string
		want                    endpick.Outcome
	}{
		"messages": {"/v1/messages", aMessage, `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"Hi!"}],"stop_reason":"end_turn","usage":{"input_tokens":10,"cache_creation_input_tokens":5,"cache_read_input_tokens":20,"output_tokens":6}}`,
			endpick.Outcome{InputTokens: 35, OutputTokens: 6, CachedTokens: 20, HasCachedTokens: true}},
		"messages without caches": {"/v1/messages", aMessage, `{"usage":{"input_tokens":10,"output_tokens":6}}`, endpick.Outcome{InputTokens: 10, OutputTokens: 6}},
		"responses": {"/v1/responses", `{"input":"hi"}`, `{"id":"resp_1","output":[],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":87}}`,
			endpick.Outcome{InputTokens: 36, OutputTokens: 87, HasCachedTokens: true}},
		"embeddings":     {"/v1/embeddings", `{"input":"hi"}`, `{"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":5,"total_tokens":5}}`, endpick.Outcome{InputTokens: 5}},
		"ranking":        {"/rerank", `{"query":"q","documents":["d"]}`, `{"results":[],"usage":{"total_tokens":56}}`, endpick.Outcome{InputTokens: 56}},
		"SGLang":         {"/generate", `{"text":"x"}`, `{"text":"y","meta_info":{"prompt_tokens":3,"completion_tokens":4,"cached_tokens":1}}`, endpick.Outcome{InputTokens: 3, OutputTokens: 4, CachedTokens: 1, HasCachedTokens: true}},
		"counting":       {"/v1/messages/count_tokens", aMessage, `{"input_tokens":14}`, endpick.Outcome{Status: endpick.Canceled}},
		"counting, chat": {"/v1/chat/completions/input_tokens", `{"messages":[{}]}`, `{"input_tokens":14}`, endpick.Outcome{Status: endpick.Canceled}},
		"llama.cpp": {"/completion", `{"prompt":"a"}`, strings.Replace(nativeLast, `"content":""`, `"content":" a b c"`, 1),
			endpick.Outcome{InputTokens: 24, OutputTokens: 3, CachedTokens: 18, HasCachedTokens: true}},
		"of two, none": {"/completion", `{"prompt":"a","n_cmpl":2}`, "[" + nativeLast + "," + nativeLast + "]", endpick.Outcome{}},
		"tokenizing":   {"/tokenize", `{"prompt":"x"}`, `{"tokens":[1],"count":1}`, endpick.Outcome{Status: endpick.Canceled}},
	} {
		seen, outcome, err := metered(t, tc.path, tc.request, "application/json", tc.response)
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, outcome, name)
		assert.Equal(t, tc.want.InputTokens > 0, seen.Reported, name)
	}
}

func TestSessions(t *testing.T) {
	r := newTalk(t).reader
	body := `{"prompt_cache_key":"key","metadata":{"user_id":"meta"},"user":"user","model":"m"}`
	header := http.Header{"X-Endpick-Session": {"ours"}, "X-Claude-Code-Session-Id": {"claude"}, "X-Session-Affinity": {"affinity"}, "Session-Id": {"sid"}, "Session_id": {"under"}}
	read := func() string {
		c, err := r.Read(Incoming{Method: "POST", Path: "/v1/chat/completions", Header: header, Body: []byte(body)})
		require.NoError(t, err)
		return c.Request.Session
	}
	for _, step := range []struct{ want, header, member string }{
		{"ours", "X-Endpick-Session", ""}, {"claude", "X-Claude-Code-Session-Id", ""}, {"affinity", "X-Session-Affinity", ""}, {"sid", "Session-Id", ""}, {"under", "Session_id", ""},
		{"key", "", `"prompt_cache_key":"key",`}, {"meta", "", `"metadata":{"user_id":"meta"},`}, {"user", "", `"user":"user",`}, {"", "", ""},
	} {
		assert.Equal(t, step.want, read())
		header.Del(step.header)
		delete(header, step.header)
		body = strings.Replace(body, step.member, "", 1)
	}
	// A session's name in other APIs may be anything; ours has limits.
	body = `{"user":"` + strings.Repeat("x", 300) + `"}`
	assert.Regexp(t, "^hash-[0-9a-f]+$", read())
	body = `{"user":"` + strings.Repeat("x", 256) + `"}`
	assert.Len(t, read(), 256)
	for _, v := range []string{`7`, `null`, `""`, `{}`} {
		body = `{"user":` + v + `,"metadata":7,"prompt_cache_key":[]}`
		assert.Empty(t, read())
	}
	header = http.Header{"X-Session-Affinity": {"\xff"}}
	assert.Regexp(t, "^hash-", read())
	header = http.Header{"X-Endpick-Session": {strings.Repeat("x", 257)}}
	_, err := r.Read(Incoming{Method: "POST", Path: "/", Header: header})
	assert.ErrorAs(t, err, new(*endpick.RequestError))
}

// Whatever a response is made of, nothing panics and no figure is negative; the finder of usage, fed in pieces,
// finds what encoding/json finds.
func FuzzResponses(f *testing.F) {
	for _, s := range []string{
		`{"type":"message_start","message":{"usage":{"input_tokens":1}}}`, `{"type":"content_block_delta","delta":{"text":"a"}}`, `{"type":"message_delta","delta":{"stop_reason":"x"},"usage":{}}`,
		`{"type":"response.completed","response":{"usage":{"input_tokens_details":{"cached_tokens":1}}}}`, `{"type":"response.output_text.delta","delta":"x"}`, `{"type":"error","error":{}}`,
		`{"choices":[{"message":{"content":"a","tool_calls":[{"function":{"name":"f"}}]}}]}`, `{"content":[{"type":"text","text":"a"},{"type":"tool_use","input":{}}]}`,
		`{"output":[{"type":"message","content":[{"text":"a"}]},{"type":"function_call"}]}`, `{"type":"response.completed","response":{"id":"r","output":[{}]}}`,
		`{"text":"a","meta_info":{"completion_tokens":1}}`, `{"choices":[{"token_ids":[1]}]}`, `{"type":"transcript.text.done","usage":{}}`,
		`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":8}}}`, `{"choices":[{"text":"\ud83d\ude00"}],"error":{}}`,
		`{"choices":[{"delta":{"content":"a\n","tool_calls":[{"function":{"name":"f"}}]}}],"usage":null}`,
	} {
		for kind := range apis {
			f.Add(uint8(kind), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		kind := apis[int(which)%len(apis)]
		said := false
		if kind.event != nil {
			r := response{api: kind, most: 2, answer: answer{wanted: true, repeats: kind.output != nil}}
			if r.read(b, false); r.data.bytes < 0 || r.data.tokens < 0 || r.data.bytes > 4*len(b) {
				t.Fatalf("%q: %+v", b, r)
			}
			said = r.data.said
			r.answer.writeTo(new(prefix.Hasher), kind)
		}
		if kind.whole != nil {
			r := response{api: kind, answer: answer{wanted: true}}
			kind.whole(&r, b)
			r.answer.writeTo(new(prefix.Hasher), kind)
		}
		var u usage
		u.read(b, depthOfUsage)
		if s := saidOf(u); s.prompt < 0 || s.cached < 0 || s.completion < 0 {
			t.Fatalf("%q: %+v", b, u)
		}
		var finder usageFinder
		for piece := range slices.Chunk(b, 1+int(which%64)) {
			finder.write(piece)
		}
		hidden := isUsage(b)
		var twin map[string]json.RawMessage
		if !utf8.Valid(b) || json.Unmarshal(b, &twin) != nil || strings.Contains(string(b), `\u`) || len(b) > maxUsage {
			return
		}
		require.Equal(t, saidOf(u), saidOf(finder.found))
		var text []struct{ Text, Finish_reason any }
		if json.Unmarshal(twin["choices"], &text) == nil && kind == chat {
			require.Equal(t, len(text) > 0, said)
			require.False(t, hidden && len(text) > 0)
		}
	})
}
