package dialect

import (
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The answers are those of Ollama 0.17.4, shortened.
const (
	ollamaPiece = `{"model":"a","created_at":"2026-11-24T06:30:00Z","message":{"role":"assistant","content":" so"},"done":false}` + "\n"
	ollamaLast  = `{"model":"a","created_at":"2026-11-24T06:30:01Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop",` +
		`"total_duration":4648000000,"load_duration":3000000000,"prompt_eval_count":26,"prompt_eval_duration":130000000,"eval_count":2,"eval_duration":43000000}` + "\n"
	generatePiece = `{"model":"a","response":" so","done":false}` + "\n"
	generateLast  = `{"model":"a","response":"","done":true,"done_reason":"length","load_duration":3000000000,"prompt_eval_count":26,"eval_count":2}` + "\n"
)

func TestOllamaIsMetered(t *testing.T) {
	want := endpick.Outcome{InputTokens: 26, OutputTokens: 2, LoadTime: 3 * time.Second}
	for name, tc := range map[string]struct{ path, request, kind, response string }{
		"chat":              {"/api/chat", `{"model":"a","messages":[{"role":"user","content":"hi"}]}`, lineStream, ollamaPiece + ollamaPiece + ollamaLast},
		"generate":          {"/api/generate", `{"model":"a","prompt":"hi","stream":true}`, lineStream, generatePiece + generatePiece + generateLast},
		"thinking":          {"/api/chat", `{"model":"a","messages":[{"role":"user","content":"hi"}]}`, lineStream, strings.Replace(ollamaPiece, "content", "thinking", 1) + ollamaPiece + ollamaLast},
		"a tool":            {"/api/chat", `{"model":"a","messages":[{"role":"user","content":"hi"}]}`, lineStream, strings.Replace(ollamaPiece, `"content":" so"`, `"content":"","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]`, 1) + ollamaLast},
		"CRLF":              {"/api/chat", `{"model":"a","messages":[{"role":"user","content":"hi"}]}`, lineStream, strings.ReplaceAll(ollamaPiece+"\n"+ollamaLast, "\n", "\r\n")},
		"no line end":       {"/api/chat", `{"model":"a","messages":[{"role":"user","content":"hi"}]}`, lineStream, ollamaPiece + strings.TrimSpace(ollamaLast)},
		"chat, whole":       {"/api/chat", `{"model":"a","stream":false,"messages":[{"role":"user","content":"hi"}]}`, "application/json", strings.Replace(ollamaLast, `"content":""`, `"content":" so so"`, 1)},
		"generate, whole":   {"/api/generate", `{"model":"a","stream":false,"prompt":"hi"}`, "application/json", generateLast},
		"whole, indented":   {"/api/generate", `{"model":"a","stream":false,"prompt":"hi"}`, "application/json", strings.ReplaceAll(generateLast, ",", " ,\n  ")},
		"with usage inside": {"/api/generate", `{"model":"a","stream":false,"prompt":"hi"}`, "application/json", strings.Replace(generateLast, `"response":""`, `"response":"{\"eval_count\":7}","context":[{"eval_count":7}]`, 1)},
	} {
		seen, outcome, err := metered(t, tc.path, tc.request, tc.kind, tc.response)
		require.NoError(t, err, name)
		outcome.Blocks = nil
		assert.Equal(t, want, outcome, name)
		assert.Equal(t, tc.kind == lineStream, !seen.FirstToken.IsZero(), name)
	}
	_, _, err := metered(t, "/api/chat", `{"messages":[{"role":"user","content":"hi"}]}`, lineStream, ollamaPiece)
	assert.Error(t, err, "it was cut")
	_, outcome, err := metered(t, "/api/chat", `{"messages":[{"role":"user","content":"hi"}]}`, lineStream, ollamaPiece+`{"error":"it died"}`+"\n")
	require.NoError(t, err)
	assert.Equal(t, endpick.Failed, outcome.Status)
}

// Lines pass as they are, each when it is whole; a stream that breaks off ends with an error of its API.
func TestOllamaPassesLines(t *testing.T) {
	whole := ollamaPiece + ollamaPiece + ollamaLast
	for end := range len(whole) {
		w := newTalk(t)
		m := w.meter(w.ask("/api/chat", `{"model":"a","messages":[{"role":"user","content":"hi"}]}`, nil), lineStream)
		got := m.Feed(nil, []byte(whole[:end]))
		require.Equal(t, whole[:strings.LastIndexByte(whole[:end], '\n')+1], string(got))
		require.Equal(t, `{"error":"it died"}`+"\n", string(m.Break(nil, Problem{Status: 502, Message: "it died"})))
	}
	for path, own := range map[string]bool{"/api/chat": true, "/base/api/tags": true, "/api/pull": true, "/api/v1/models": false, "/api/completions": false} {
		assert.Equal(t, own, string(Problem{Status: 404, Message: "x"}.Body(path)) == `{"error":"x"}`, path)
	}
}

// Chats have blocks as in other APIs, a turn continues the one before, and options limit the answer.
func TestOllamaPrompts(t *testing.T) {
	w := newTalk(t)
	long := strings.Repeat("word ", 100)
	first := w.ask("/api/chat", `{"model":"a","options":{"num_predict":9,"num_ctx":8192},"messages":[{"role":"user","content":"`+long+`"}]}`, nil)
	assert.True(t, first.Request.Stream, "it is the default")
	assert.Equal(t, []int{9, 8192}, []int{first.MaxTokens(), first.Request.Context})
	host := func(r *endpick.Request) { r.Context, r.ExpectedOutputTokens = 4096, 7 }
	known := w.ask("/api/chat", `{"model":"a","options":{"num_predict":9,"num_ctx":8192},"messages":[{}]}`, host).Request
	assert.Equal(t, []int{4096, 7}, []int{known.Context, known.ExpectedOutputTokens}, "the host knows better")
	said := w.answer(first, lineStream, strings.Replace(ollamaPiece, " so", long, 1)+ollamaLast, endpick.Completed).Blocks
	second := w.ask("/api/chat", `{"model":"a","stream":false,"messages":[{"role":"user","content":"`+long+`"},{"role":"assistant","content":"`+long+`"},{"role":"user","content":"`+long+`"}]}`, nil)
	require.Greater(t, len(said), len(first.Request.Blocks))
	assert.Equal(t, said, second.Request.Blocks[:len(said)])
	assert.False(t, second.Request.Stream)
	call := `{"function":{"name":"f","arguments":{"x":"` + long + `"}}}`
	calls := strings.Replace(ollamaPiece, `"content":" so"`, `"content":"","tool_calls":[`+call+`]`, 1) // one in each event, at the same index
	said = w.answer(first, lineStream, calls+calls+ollamaLast, endpick.Completed).Blocks
	third := w.ask("/api/chat", `{"model":"a","messages":[{"role":"user","content":"`+long+`"},{"role":"assistant","content":"","tool_calls":[`+call+`,`+call+`]}]}`, nil)
	require.Greater(t, len(said), len(first.Request.Blocks)+15)
	assert.Equal(t, said, third.Request.Blocks)
	for path, body := range map[string]string{"/api/chat": `{"model":"a","messages":[{"role":"user","content":"x","images":["aGk="]}]}`, "/api/generate": `{"model":"a","prompt":"x","images":["aGk="]}`} {
		assert.Greater(t, w.ask(path, body, nil).Request.InputTokens, 1000)
	}
	context := "[1,2" + strings.Repeat(",345", 100)
	before := w.ask("/api/generate", `{"model":"a","context":`+context+`],"prompt":"x"}`, nil).Request.Blocks
	require.Equal(t, before[:3], w.ask("/api/generate", `{"model":"a","context":`+context+`,6,7],"prompt":"y"}`, nil).Request.Blocks[:3])
	for path, body := range map[string]string{
		"/api/generate": `{"model":"a","system":"` + long + `","prompt":"` + long + `"}`, "/api/embed": `{"model":"a","input":["` + long + `","x"]}`, "/api/embeddings": `{"model":"a","prompt":"` + long + `"}`,
	} {
		c := w.ask(path, body, nil)
		assert.Greater(t, c.Request.InputTokens, 50, path)
		assert.NotEmpty(t, c.Request.Blocks, path)
	}
}
