package dialect

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tells describes in words what an event says to a response that has just been asked for.
func tells(kind *api, data string) string {
	r := response{api: kind, most: 1}
	r.read([]byte(data), false)
	all := []string{[]string{"silent", "open", "ended", "whole"}[r.state]}
	for _, f := range []struct {
		name string
		is   bool
	}{
		{"said", r.data.said}, {"ended", r.data.ended}, {"failed", r.failed}, {"opening", r.data.usage.opening}, {"own", r.data.usage.own},
	} {
		if f.is {
			all = append(all, f.name)
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"bytes", r.data.bytes}, {"tokens", r.data.tokens}} {
		if n.value > 0 {
			all = append(all, fmt.Sprint(n.value, " ", n.name))
		}
	}
	if u := r.data.usage.value; u != nil {
		all = append(all, string(u))
	}
	return strings.Join(all, ", ")
}

// The meaning of each API's events, from its documentation.
func TestWhatEventsSay(t *testing.T) {
	for kind, table := range map[*api]map[string]string{
		chat: {
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`:                                             `open, said`,
			`{"choices":[{"delta":{"content":null}}]}`:                                                                        `open, said`,
			`{"choices":[{"delta":{"content":"Hello"}}]}`:                                                                     `open, said, 5 bytes`,
			`{"choices":[{"delta":{"content":"\n\u00e9\ud83d\ude00"}}]}`:                                                      `open, said, 20 bytes`, // as it is sent
			`{"choices":[{"delta":{"reasoning_content":"why"}}]}`:                                                             `open, said, 3 bytes`,
			`{"choices":[{"delta":{"reasoning":"why","annotations":[{"content":"no"}]}}]}`:                                    `open, said, 3 bytes, 1 tokens`,
			`{"choices":[{"delta":{"refusal":"no"},"logprobs":{"content":[{"token":"no"}]}}]}`:                                `open, said, 2 bytes`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\""}}]}}]}`: `open, said, 7 bytes`,
			`{"choices":[{"delta":{"tool_calls":[]}}]}`:                                                                       `open, said`,
			`{"choices":[{"delta":{"function_call":{"arguments":"ab"}}}]}`:                                                    `open, said, 2 bytes`,
			`{"choices":[{"text":" world","index":0}]}`:                                                                       `open, said, 6 bytes`,
			`{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"bc"}}]}`:                          `open, said, 3 bytes`,
			`{"choices":[{"delta":{},"finish_reason":"stop"}]}`:                                                               `ended, said, ended`,
			`{"choices":[{"delta":{},"finish_reason":null}]}`:                                                                 `open, said`,
			`{"choices":[{"delta":{"content":"a"},"finish_reason":""}]}`:                                                      `open, said, 1 bytes`,
			`{"choices":[{"delta":{"content":"","images":[{"type":"image_url"}]}}]}`:                                          `open, said, 1 tokens`,
			`{"choices":[{"delta":{"reasoning_text":"so","tool_call_id":"x","annotations":[],"a":{},"b":1}}]}`:                `open, said, 2 bytes`,
			`{"choices":[{"delta":{"content":"a"},"finish_reason":"null"}]}`:                                                  `open, said, 1 bytes`,
			`{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"so"}]}]}}]}`:              `open, said, 1 tokens`,
			`{"choices":[{"finish_reason":"stop"},{"finish_reason":null}]}`:                                                   `ended, said, ended`,
			`{"choices":[],"usage":{"prompt_tokens":3}}`:                                                                      `open, {"prompt_tokens":3}`,
			`{"choices":[{}],"choices":[]}`:                                                                                   `open, said`,
			`{"choices":7}`:                                                                                                   `silent`,
			`{"error":{"message":"boom","code":500}}`:                                                                         `silent, failed`,
			`{"error":null,"choices":[]}`:                                                                                     `open`,
			`oops`:                                                                                                            `silent`,
			`{"text":"abc","content":"d"}`:                                                                                    `silent`,
		},
		messages: {
			`{"type":"message_start","message":{"usage":{"input_tokens":1}}}`:                         `open, opening, {"input_tokens":1}`,
			`{"type":"message_start","message":{"usage":null}}`:                                       `open`,
			`{"type":"content_block_start","content_block":{"type":"text","text":"ab"}}`:              `open, said, 2 bytes`,
			`{"type":"content_block_start","content_block":{"type":"te\u0078t","text":"ab"}}`:         `open, said, 2 bytes`,
			`{"type":"content_block_start","content_block":{"type":"thinking","thinking":"abc"}}`:     `open, said, 3 bytes`,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","name":"f"}}`: `open, said, 1 bytes`,
			`{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"abc"}}`:     `open, said, 3 bytes`,
			`{"type":"content_block_delta","delta":{"thinking":"abcd"}}`:                              `open, said, 4 bytes`,
			`{"type":"content_block_delta","delta":{"partial_json":"{\"a\""}}`:                        `open, said, 6 bytes`,
			`{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"abc"}}`:     `open, said`,
			`{"type":"content_block_stop","index":0}`:                                                 `silent`,
			`{"type":"ping"}`: `silent`,
			`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`: `ended, ended, {"output_tokens":1}`,
			`{"type":"message_delta","delta":{"stop_reason":null},"usage":null}`:                      `open`,
			`{"type":"message_stop"}`:                       `whole, ended`,
			`{"type":"error","error":{"type":"api_error"}}`: `silent, failed`,
			`{"error":{"message":"of another API"}}`:        `silent, failed`,
		},
		responses: {
			`{"type":"response.created","response":{"usage":null}}`:                 `open`,
			`{"type":"response.output_item.added","item":{"type":"x","name":"fg"}}`: `open, said, 2 bytes`,
			`{"type":"response.output_text.delta","delta":"abc"}`:                   `open, said, 3 bytes`,
			`{"type":"response.reasoning_text.delta","delta":"ab"}`:                 `open, said, 2 bytes`,
			`{"type":"response.audio.delta","delta":"abc"}`:                         `open`,
			`{"type":"response.output_text.done","text":"abc"}`:                     `open`,
			`{"type":"response.completed","response":{"usage":{"input_tokens":1}}}`: `whole, ended, {"input_tokens":1}`,
			`{"type":"response.incomplete","response":{}}`:                          `whole, ended`,
			`{"type":"response.cancelled","response":{}}`:                           `whole, ended`,
			`{"type":"response.failed","response":{"error":{}}}`:                    `whole, ended, failed`,
			`{"type":"error","message":"x"}`:                                        `silent, failed`,
			`{"error":{"message":"of another API"}}`:                                `silent, failed`,
		},
		transcription: {
			`{"type":"transcript.text.delta","delta":"ab"}`:                  `open, said, 2 bytes`,
			`{"type":"transcript.text.done","usage":{"input_tokens":1}}`:     `whole, ended, {"input_tokens":1}`,
			`{"type":"transcript.text.done","text":"ab","usage":null}`:       `whole, ended`,
			`{"type":"error","error":{}}`:                                    `silent, failed`,
			`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`: `ended, said, ended, 1 bytes`,
		},
		generation: {
			`{"text":"ab"}`: `open, said, 2 bytes`,
			`{"output_ids":[5,6],"meta_info":{"completion_tokens":2}}`:                 `open, said, own, 1 tokens, {"completion_tokens":2}`,
			`{"text":"ab","meta_info":{"finish_reason":null}}`:                         `open, said, own, 2 bytes, {"finish_reason":null}`,
			`{"text":"ab","meta_info":{"finish_reason":{"type":"stop"}}}`:              `ended, said, ended, own, 2 bytes, {"finish_reason":{"type":"stop"}}`,
			`{"meta_info":{"prompt_tokens":1}}`:                                        `open, {"prompt_tokens":1}`,
			`{"token":{"id":1,"text":"abc"},"generated_text":null}`:                    `open, said, 3 bytes`,
			`{"token":{"id":1,"text":"!"},"generated_text":"abc!"}`:                    `ended, said, ended, 1 bytes`,
			`{"choices":[{"token_ids":[1,2]}]}`:                                        `open, said, 2 tokens`,
			`{"choices":[{"token_ids":[1]},{"token_ids":[2],"finish_reason":"stop"}]}`: `ended, said, ended, 2 tokens`,
			`{"error":{"message":"x"}}`:                                                `silent, failed`,
		},
		native: {
			`{"content":"abc","tokens":[1,2],"tokens_predicted":3}`: `open, said, 3 bytes, 2 tokens`,
			`{"content":"","tokens":[1]}`:                           `open, said`, // the progress of the prompt
			`{"content":"abc","stop":false}`:                        `open, said, 3 bytes`,
			`{"content":"","stop":true,"tokens":[1]}`:               `whole, said, ended, own, {"content":"","stop":true,"tokens":[1]}`,
			`{"stop":false}`:                                        `silent`,
			`{"error":{"code":500}}`:                                `silent, failed`,
			`{"error":null}`:                                        `silent`,
		},
	} {
		for data, want := range table {
			assert.Equal(t, want, tells(kind, data), data)
		}
	}
}

// A stream that has failed stays failed, whatever follows. A client that leaves is not a failure of the
// engine, even after an error.
func TestAnErrorIsNotTakenBack(t *testing.T) {
	const failed = "data: {\"error\":{\"message\":\"x\"}}\n\n"
	for _, rest := range []string{"", string(oneChunk), "data: [DONE]\n\n"} {
		for given, want := range map[endpick.Status]endpick.Status{
			endpick.Completed: endpick.Failed, endpick.Failed: endpick.Failed, endpick.Canceled: endpick.Canceled,
		} {
			m := startedMeter(t)
			m.Feed(nil, oneChunk)
			m.Feed(nil, []byte(failed+rest))
			assert.NoError(t, rig.Err(m.End(nil)), "the engine has said what there is to say")
			assert.Equal(t, want, m.Outcome(given).Status, given)
		}
	}
}

// Only responses of an API whose engines store them are looked up where they were stored.
func TestOnlyResponsesAreStored(t *testing.T) {
	for path, want := range map[string]string{"/v1/chat/completions": "", "/v1/messages": "", "/v1/responses": "a"} {
		w := newTalk(t)
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}],"input":"hi"}`
		w.answer(w.ask(path, body, nil), "application/json", `{"id":"x1","choices":[{"message":{"content":"a"}}],"content":[{"type":"text","text":"a"}],"output":[{"type":"message","content":"a"}]}`, endpick.Completed)
		assert.Equal(t, want, w.holder(http.MethodGet, "/v1/responses/x1", ""), path)
	}
	// Nor those that the client does not want stored, that have failed, or that have no name.
	for _, x := range []struct {
		body, response string
		status         endpick.Status
	}{
		{`{"model":"m","input":"hi","store":false}`, `{"id":"x1","output":[]}`, endpick.Completed},
		{`{"model":"m","input":"hi"}`, `{"id":"x1","output":[]}`, endpick.Failed},
		{`{"model":"m","input":"hi"}`, `{"id":"` + strings.Repeat("x", maxName+1) + `","output":[]}`, endpick.Completed},
	} {
		w := newTalk(t)
		w.answer(w.ask("/v1/responses", x.body, nil), "application/json", x.response, x.status)
		assert.Empty(t, w.reader.stored.byKey, x)
	}
}

// A name set by a host must satisfy the same rules as a client's.
func TestNamesOfTheHost(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	for field, set := range map[string]func(*endpick.Request, string){
		"model": func(r *endpick.Request, s string) { r.Model = s }, "adapter": func(r *endpick.Request, s string) { r.Adapter = s },
		"tenant": func(r *endpick.Request, s string) { r.Tenant = s }, SessionHeader: func(r *endpick.Request, s string) { r.Session = s },
	} {
		for name, bad := range map[string]bool{long: true, "\xff": true, long[1:]: false, "é": false} {
			c := newTalk(t).ask("/v1/chat/completions", `{"model":"m","messages":[{}]}`, nil)
			assert.Empty(t, c.Warnings)
			set(&c.Request, name)
			err := c.Prompt(t.Context())
			if !bad {
				require.NoError(t, err, field)
				continue
			}
			var refused *endpick.RequestError
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, field, refused.Field)
		}
	}
}

// The tokens of a stream are estimated from what is known of the model's answers.
func TestStreamsAreCountedByTheirModel(t *testing.T) {
	const path = "/v1/chat/completions"
	w := newTalk(t)
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	answer := `data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 400) + `"}}]}` + "\n\n"
	usage := `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":400}}` + "\n\ndata: [DONE]\n\n"
	for range 100 {
		w.answer(w.ask(path, body, nil), EventStream, answer+usage, endpick.Completed)
	}
	m := w.streaming(path, body)
	m.Feed(nil, []byte(answer))
	assert.InDelta(t, 400, m.Seen().OutputTokens, 20, "a token a byte")
}

// A response is complete at the end of its object, not of a nested one.
func TestWhenAResponseIsWhole(t *testing.T) {
	m := newTalk(t).ask("/v1/chat/completions", `{"model":"m","messages":[{}]}`, nil).Meter(endpick.Lease{}, time.Now)
	assert.False(t, m.Header(http.StatusOK, http.Header{"Content-Type": {lineStream}}), "streams of this API have another form")
	assert.False(t, m.Header(http.StatusOK, http.Header{"Content-Type": {"application/json; charset=utf-8"}}))
	for _, piece := range []string{`{"choices":[`, `{"message":{"content":"}"}}`, `]`, `,"usage":{"prompt_tokens":1}`} {
		assert.Equal(t, piece, string(m.Feed(nil, []byte(piece))))
		assert.False(t, m.Whole(), piece)
	}
	m.Feed(nil, []byte(`}`))
	assert.True(t, m.Whole())
	m.Feed(nil, []byte("\n"))
	assert.True(t, m.Whole())
}

// A stream that begins with an error can be retried elsewhere, in whatever form it says so, and
// after whatever announces an answer; one that has said something can't.
func TestFails(t *testing.T) {
	const body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],"prompt":"a","input":"a","query":"a","documents":["b"],"text":"a","content":"a","tokens":[1]}`
	w := newTalk(t)
	for path, firsts := range map[string]map[string]bool{
		"/v1/chat/completions": {
			"data: {\"error\":{}}\n":                 true,
			"data:{\"error\":{}}\n\ndata: {}\n\n":    true,
			": hello\n\ndata: {\"error\":{}}\n\n":    true,
			"event: error\ndata: {\"error\":{}}\n\n": true,
			"event: error\ndata: {\"message\":1}\n":  true,
			"event:error\ndata: busy\n\n":            true,
			"error: {\"code\":500}\n\n":              true, // llama.cpp in 2025
			"{\"error\":{\"code\":400}}":             true, // as the engine has said it before the stream
			"event: errors\ndata: busy\n\n":          false,
			"event: error\n\ndata: {}\n\n":           false, // it is of one event alone, which has no data
			"data: {\"error\":":                      false, // the rest of it may be null
			"data: {\"error\":null}\n\n":             false,
			"data: {}\n\ndata: {\"error\":{}}\n\n":   false,
			"data: [DONE]\n":                         false,
			"":                                       false,
			"data: {\"error\":{}}\r\r":               true,
			"event: error\rdata: {\"error\":{}}\r":   true,
			": a\r\n\r\ndata: {\"error\":{}}\r\n":    true,
			`data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":502}}`:                                                                            true,
			`data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}`:                                                                                                             true,
			`data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`:                                                                                                             true,
			`data: {"choices":[{"index":0,"delta":{},"error":{"code":502}}]}`:                                                                                                                true,
			`data: {"object":"error","message":"no memory","code":500}`:                                                                                                                      true,
			"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: c\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: {\"error\":\"full\"}\n\n": true,
			"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{}}\n\n":                                                                                              false,
			"data: {\"choices\":[{\"delta\":{\"audio\":{}}}]}\n\ndata: {\"error\":{}}\n\n":                                                                                                   false,
			"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"error\":{}}\n\n":                                                                                    false,
			"data: {\"choices\":[{\"delta\":{}}],\"prompt_progress\":{}}\n\ndata: {\"error\":{}}\n\n":                                                                                        false,
			"data: " + strings.Repeat("x", maxEvent) + "\n\ndata: {\"error\":{}}\n\n":                                                                                                        false,
		},
		"/v1/responses": {
			"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"error\":null}}\n\n" +
				"data: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"r\"}}\n\n" +
				"data: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\"}}\n\ndata: {\"type\":\"response.failed\",\"response\":{}}\n\n": true,
			"data: {\"type\":\"response.output_item.added\",\"item\":{\"name\":\"f\"}}\n\ndata: {\"type\":\"error\"}\n\n": false,
			"data: {\"type\":\"response.audio.delta\",\"delta\":\"a\"}\n\ndata: {\"type\":\"error\"}\n\n":                 false,
		},
		"/v1/messages": {
			"data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"ping\"}\n\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: error\ndata: {\"type\":\"error\"}\n\n": true,
			"data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"web_search\"}}\n\ndata: {\"type\":\"error\"}\n\n":                                                                                                         false,
		},
		"/generate": {
			`data: {"text":"","meta_info":{"finish_reason":{"type":"abort","message":"The request queue is full.","status_code":503}}}`: true,
			`data: {"text":"","meta_info":{"finish_reason":{"type":"length"}}}`:                                                         false,
		},
		"/v1/other": {"data: {\"error\":{}}\n": false}, // nothing is known of that API
	} {
		for first, want := range firsts {
			c := w.ask(path, body, nil)
			assert.Equal(t, want, c.Fails(EventStream, []byte(first)), first[:min(len(first), 200)])
			assert.False(t, c.Fails("", []byte(first)))
			o := c.Opening(EventStream)
			if o == nil {
				continue
			}
			for i := range min(len(first), 1000) { // in pieces
				o.Feed([]byte(first[i : i+1]))
			}
			if len(first) <= 1000 {
				o.Ends()
				assert.Equal(t, want, o.failed, first)
			}
		}
	}
	for whole, want := range map[string]bool{
		`{"error":{"message":"no"}}`: true, `{"error":"no"}`: true, `{"error":null}`: false, `{"error":""}`: false, `{"choices":[],"error":{}}`: true, `{"choices":[]}`: false, ``: false,
		`{"object":"error","message":"no"}`: true, `{"choices":[{"finish_reason":"abort"}],"object":"chat.completion"}`: true, `{"choices":[{"finish_reason":"stop"}]}`: false,
	} {
		assert.Equal(t, want, w.ask("/v1/chat/completions", body, nil).Fails("application/json", []byte(whole)), whole)
		assert.False(t, w.ask("/v1/other", body, nil).Fails("application/json", []byte(whole)))
		assert.True(t, w.ask("/v1/chat/completions", body, nil).Fails("text/html", []byte(whole)))
	}
	// A server may stream where its API does not provide for it.
	for _, kind := range apis {
		for _, path := range kind.paths {
			if c := w.ask(path, body, nil); kind.event == nil {
				assert.True(t, c.Metered(), path)
				assert.False(t, c.Fails(EventStream, []byte("data: {\"error\":{}}\n\n")), path)
			}
		}
	}
}

// How much of a stream is read before the client may see it.
func TestOpening(t *testing.T) {
	c := newTalk(t).ask("/v1/chat/completions", `{"model":"m","stream":true,"messages":[{}]}`, nil)
	const role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n"
	for first, want := range map[string]struct{ decided, cut bool }{
		"":                          {false, false},
		": ping\n\n":                {false, false},
		"event: error\n":            {false, false},
		role:                        {false, true},
		role + "data: {\"choices\"": {false, true},
		role + ": ping\n\n" + "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n": {true, false},
		role + "data: [DONE]\n\n":                  {true, false},
		role + "data: {\"error\":{}}\n\n":          {true, false},
		"data: {}\n\n":                             {true, false},
		"data: {}\r\r":                             {false, false}, // a LF may follow
		"data: no JSON\n\n":                        {true, false},
		"data: {\"choices\":[{\"text\":\"a\"}]}\n": {false, false}, // it ends with the stream
		"data: " + strings.Repeat("x", maxEvent):   {true, false},
		strings.Repeat(": ping\n\n", maxEvent/8+9): {false, false},
	} {
		o := c.Opening(EventStream)
		assert.Equal(t, want.decided, o.Feed([]byte(first)), "%.200q", first)
		assert.Equal(t, want.cut, o.Ends(), "%.200q", first)
	}
	for text, want := range map[string]struct{ whole, cut, idle bool }{
		``: {false, false, true}, "\n": {false, false, true}, ` {"a":[1]} x`: {true, false, true}, `x`: {false, false, true}, `{"a":[1]`: {false, true, false}, `["}]`: {false, true, false},
	} {
		o := c.Opening("application/json")
		assert.Equal(t, want.whole, o.Feed([]byte(text)), text)
		assert.Equal(t, want.idle, o.Idles(), text)
		assert.Equal(t, want.cut, o.Ends(), text)
	}
	assert.Nil(t, c.Opening("text/plain"))
}

// A prompt's sketch has as many pieces as the prompt.
func TestSketchesOfPrompts(t *testing.T) {
	body := `{"model":"m","cache_salt":"s","tools":[{"a":1},{"b":2}],"messages":[{"role":"system","content":"be"},{"role":"user","content":"hello"}]}`
	for _, sketch := range []bool{false, true} {
		prompt, salt := newTalkWith(t, Config{Sketch: sketch, SketchText: true}).ask("/v1/chat/completions", body, nil).Sketch()
		if !sketch {
			assert.Nil(t, prompt)
			assert.Zero(t, salt)
			continue
		}
		assert.NotZero(t, salt)
		require.Len(t, prompt.Tools, 2)
		require.Len(t, prompt.Messages, 2)
		assert.Equal(t, []string{"system", "user"}, []string{prompt.Messages[0].Role, prompt.Messages[1].Role})
		assert.Equal(t, "hello", prompt.Messages[1].Text)
		assert.Greater(t, prompt.Messages[1].End, prompt.Messages[0].End)
	}
	// So has the text of a completion.
	w := newTalkWith(t, Config{Sketch: true, SketchText: true})
	prompt, _ := w.ask("/v1/completions", `{"model":"m","prompt":"why"}`, nil).Sketch()
	require.NotNil(t, prompt)
	require.Len(t, prompt.Messages, 1)
	assert.Equal(t, "why", prompt.Messages[0].Text)
}

// The figures of each API's usage, under each of their names. Absent is not zero.
func TestWhatUsageSays(t *testing.T) {
	all := figuresSaid{prompt: 5, completion: 4, cached: 2, hasPrompt: true, hasCompletion: true, hasCached: true}
	for text, want := range map[string]figuresSaid{
		`{"prompt_tokens":5,"completion_tokens":4,"prompt_tokens_details":{"audio_tokens":3,"cached_tokens":2}}`: all,
		`{"prompt_tokens":5,"completion_tokens":0}`:                                                              {prompt: 5, hasPrompt: true, hasCompletion: true},
		`{"prompt_tokens_details":{"cached_tokens":0}}`:                                                          {hasCached: true},
		`{"prompt_tokens_details":{"cached_tokens":null}}`:                                                       {},
		`{"prompt_tokens":null,"prompt_tokens_details":null}`:                                                    {},
		`{"prompt_tokens":-5,"completion_tokens":"9"}`:                                                           {},
		`{"prompt_tokens":1e99,"prompt_tokens_details":{"cached_tokens":-1}}`:                                    {},
		`{"input_tokens":5,"output_tokens":4,"input_tokens_details":{"cached_tokens":2},"total_tokens":9}`:       all,
		`{"input_tokens":2,"cache_read_input_tokens":2,"cache_creation_input_tokens":1,"output_tokens":4}`:       all,
		`{"input_tokens":5}`:                                                               {prompt: 5, hasPrompt: true},
		`{"cache_read_input_tokens":2}`:                                                    {cached: 2, hasCached: true},
		`{"prompt_tokens":5,"completion_tokens":4,"cached_tokens":2}`:                      all, // SGLang's
		`{"total_tokens":7}`:                                                               {prompt: 7, hasPrompt: true},
		`{"total_tokens":7,"prompt_tokens":5}`:                                             {prompt: 5, hasPrompt: true},
		`{"total_tokens":7,"completion_tokens":4}`:                                         {completion: 4, hasCompletion: true},
		`{"cache_n":2,"prompt_n":3,"predicted_n":4}`:                                       all, // llama.cpp's
		`{"tokens_evaluated":5,"tokens_predicted":4,"timings":{"prompt_n":3}}`:             all,
		`{"tokens_evaluated":9,"tokens_cached":12}`:                                        {prompt: 9, hasPrompt: true},
		`{"tokens_evaluated":9,"timings":{"prompt_n":10}}`:                                 {prompt: 9, hasPrompt: true},
		`{"tokens_evaluated":9,"timings":{"cache_n":0,"prompt_n":7}}`:                      {prompt: 9, hasPrompt: true, hasCached: true},
		`{"timings":7,"tokens_predicted":-1}`:                                              {},
		`{"timings":{"cache_n":null,"prompt_n":3},"tokens_evaluated":4,"tokens_cached":1}`: {prompt: 4, cached: 1, hasPrompt: true, hasCached: true},
		`{"usage":{"prompt_tokens":5,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}},"n":{"prompt_tokens":1}}`: all,
	} {
		var u usage
		u.read([]byte(text), depthOfUsage)
		assert.Equal(t, want, saidOf(u), text)
	}
	var u usage
	u.read([]byte(`{"input_tokens":2,"cache_read_input_tokens":2,"output_tokens":4}`), depthOfUsage)
	u.read([]byte(`{"input_tokens":3,"output_tokens":9}`), depthOfUsage)
	assert.Equal(t, figuresSaid{5, 9, 2, true, true, true}, saidOf(u), "an earlier figure remains if there is no other")
}

type figuresSaid struct {
	prompt, completion, cached          int
	hasPrompt, hasCompletion, hasCached bool
}

func saidOf(u usage) (s figuresSaid) {
	s.prompt, s.hasPrompt = u.prompt()
	s.completion, s.hasCompletion = u.output()
	s.cached, s.hasCached = u.cached()
	return s
}

func TestUsageOfSeveralChoices(t *testing.T) {
	w := newTalk(t)
	o := w.answer(w.ask("/v1/chat/completions", `{"model":"m","n":2,"stream":true,"messages":[{}]}`, nil), EventStream,
		string(oneChunk)+`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":70}}`+"\n\ndata: [DONE]\n\n", endpick.Completed)
	assert.Equal(t, [2]int{3, 70}, [2]int{o.InputTokens, o.OutputTokens})
	assert.Nil(t, o.Blocks, "which of them the client goes on from is not known")
	assert.InDelta(t, 70, w.ask("/v1/chat/completions", `{"model":"m","n":2,"messages":[{}]}`, nil).Request.ExpectedOutputTokens, 1)
}

// The length is removed from the header only if the body may change.
func TestLengthsOfStreams(t *testing.T) {
	for _, x := range []struct {
		path, body string
		stays      [2]bool // the second: although it may go on elsewhere
	}{
		{"/v1/chat/completions", `{"model":"m","stream":true,"messages":[{}]}`, [2]bool{}},
		{"/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{}]}`, [2]bool{true, false}},
		{"/v1/messages", `{"model":"m","stream":true,"messages":[{}]}`, [2]bool{true, true}},
	} {
		for i, stays := range x.stays {
			m := newTalkWith(t, Config{Resume: i == 1}).ask(x.path, x.body, nil).Meter(endpick.Lease{}, time.Now)
			h := http.Header{"Content-Type": {EventStream}, "Content-Length": {"7"}}
			assert.True(t, m.Header(http.StatusOK, h))
			assert.Equal(t, stays, h.Get("Content-Length") == "7", x)
		}
	}
	// A response of an API without streams is passed on, whatever type it claims.
	m := newTalk(t).ask("/v1/embeddings", `{"model":"m","input":"x"}`, nil).Meter(endpick.Lease{}, time.Now)
	assert.False(t, m.Header(http.StatusOK, http.Header{"Content-Type": {EventStream}}))
	assert.Equal(t, string(oneChunk), string(m.Feed(nil, oneChunk)))
	assert.Equal(t, endpick.Completed, m.Outcome(endpick.Completed).Status)
}

// A client may move its cache marks from turn to turn.
func TestMarksOfTheCacheAreNoContent(t *testing.T) {
	block := func(more string) string {
		return `{"messages":[{"role":"user","content":[{"type":"text","text":"` + words("x") + `"` + more + `},{"type":"image","source":{"data":"z"}` + more + `},
			{"type":"tool_result","tool_use_id":"1","content":"` + words("y") + `"` + more + `}]}]}`
	}
	assert.Equal(t, blocksOf(t, messages, block("")), blocksOf(t, messages, block(`,"cache_control":{"type":"ephemeral"}`)))
}

// The body of a known API is read or refused: what engines may read nevertheless would not be
// counted. Others are passed on.
func TestBodiesThatCannotBeRead(t *testing.T) {
	utf16 := func(s string) (b string) {
		for i := range s {
			b += s[i:i+1] + "\x00"
		}
		return b
	}
	const valid = `{"model":"m","messages":[{}],"prompt":"x"}`
	for _, kind := range []*api{chat, completion, messages, tokenization} {
		for _, body := range []string{" ", "x", "7", "null", `"{}"`, "[" + valid + "]", valid[:len(valid)-1], valid[:20], `{"model":"m",]`, `{7:8}`, utf16(valid), "\xff\xfe" + utf16(valid), "\x00" + valid} {
			assert.Equal(t, ErrMalformed, rig.Err(parse(kind, nil, []byte(body), manyItems)), "%q", body)
			assert.Equal(t, other, rig.Must(parse(other, nil, []byte(body), manyItems)).api)
		}
		c := rig.Must(parse(kind, nil, nil, manyItems))
		assert.Equal(t, kind, c.api, "nothing was sent, or the host does not see it")
		for _, body := range []string{valid, " " + valid + "\n", "\xef\xbb\xbf" + valid, valid[:len(valid)-1] + `,"x":NaN,"y":[-Infinity]}`} {
			c, err := parse(kind, http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}, []byte(body), manyItems)
			require.NoError(t, err, body)
			require.NoError(t, rig.Err(c.readPrompt(t.Context(), new(endpick.Request), prefix.Scope{}, rates{})), body)
			assert.Equal(t, kind, c.api)
			assert.False(t, c.unread, body)
			assert.Equal(t, "m", c.model)
		}
	}
}

// A prompt of unknown form is as long as the body, and its response is read like others.
func TestUnknownPromptsAreCounted(t *testing.T) {
	w := newTalk(t)
	body := `{"prompt_embeds":"` + strings.Repeat("x", 4000) + `","max_tokens":7}`
	c := w.ask("/v1/completions", body, nil)
	assert.InDelta(t, len(body)/4, c.Request.InputTokens, 10)
	assert.Empty(t, c.Request.Blocks)
	o := w.answer(c, "application/json", `{"choices":[{"text":"a"}],"usage":{"prompt_tokens":900,"completion_tokens":7}}`, endpick.Completed)
	assert.Equal(t, 7, o.OutputTokens)
}

// A length set by the host replaces the estimate for any API's prompt.
func TestWhatTheHostKnowsOfAnyAPI(t *testing.T) {
	for kind, body := range map[*api]string{chat: `{"messages":[{}]}`, completion: `{"prompt":["a","b"],"max_tokens":5}`, messages: `{"messages":[{}]}`, responses: `{"input":"x"}`, embedding: `{"input":"x"}`, infill: `{"input_prefix":"a","input_suffix":"b"}`, native: `{"prompt":"x"}`} {
		u := understood{req: endpick.Request{InputTokens: 77}}
		require.NoError(t, u.read(kind, []byte(body), manyItems, rates{}))
		assert.Equal(t, kind, u.api, body)
		assert.Equal(t, 77, u.req.InputTokens, body)
		assert.Empty(t, u.req.Blocks, body)
		assert.Nil(t, u.hasher)
		if kind == completion {
			assert.Equal(t, 10, u.req.ExpectedOutputTokens, "two prompts have two responses, whoever has counted their tokens")
		}
	}
}

// A priority that is not a number, or out of range, is ignored.
func TestPriorities(t *testing.T) {
	for value, want := range map[string]int{"3": 3, "-2": -2, "": 0, "x": 0, "99999999999999999999": 0, "-99999999999999999999": 0} {
		header := http.Header{PriorityHeader: {value}}
		c := newTalk(t).read(Incoming{Method: http.MethodPost, Path: "/v1/chat/completions", Header: header, Body: []byte("{}")}, nil)
		assert.Equal(t, want, c.Request.Priority, value)
		assert.Equal(t, want == 0 && value != "", len(c.Warnings) == 1, value)
	}
}

func TestPlausible(t *testing.T) {
	for _, x := range []struct {
		tokens, bytes int
		want          bool
	}{{0, 0, false}, {1, 0, false}, {0, 1, false}, {1, 1, true}, {1026, 1, true}, {1027, 1, false}, {3024, 1000, true}, {3025, 1000, false}, {1, 511, true}, {1, 512, false}, {2, 512, true}} {
		assert.Equal(t, x.want, plausible(x.tokens, x.bytes), x)
	}
}
