package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ask(t *testing.T, url, path, body string) (status int, answer map[string]any) {
	resp := post(t, t.Context(), url+path, body)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer
}

// at follows keys and indexes.
func at(t *testing.T, v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			require.IsType(t, map[string]any{}, v)
			v = v.(map[string]any)[step]
		case int:
			require.IsType(t, []any{}, v)
			require.Greater(t, len(v.([]any)), step)
			v = v.([]any)[step]
		}
	}
	return v
}

func encoded(v any) string { return string(encode(v)) }

const (
	longQuestion = "What is the weather like in the town where I live, and what was it yesterday? "
	callWeather  = `[[call weather {\"city\":\"Paris\"}]]`
)

// The second step of a tool loop finds the first in the cache up to its end,
// thoughts and call included: the first has at least 47 tokens, all but the last in full blocks of 16.
func TestToolLoops(t *testing.T) {
	t.Run("messages", func(t *testing.T) {
		_, url := start(t, Config{Engine: fast(1000)})
		const head = `{"model":"demo-8b","max_tokens":64,"thinking":{"type":"enabled","budget_tokens":1024},"tools":[{"name":"weather"}],` +
			`"messages":[{"role":"user","content":"` + longQuestion + callWeather + `"}`
		status, one := ask(t, url, "/v1/messages", head+`]}`)
		require.Equal(t, 200, status)
		require.Equal(t, "tool_use", one["stop_reason"])
		require.Equal(t, "thinking", at(t, one, "content", 0, "type"))
		require.Equal(t, map[string]any{"city": "Paris"}, at(t, one, "content", 1, "input"))

		_, two := ask(t, url, "/v1/messages", head+`,{"role":"assistant","content":`+encoded(one["content"])+
			`},{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":"rain"}]}]}`)
		require.Equal(t, "max_tokens", two["stop_reason"], "a result is no question")
		requireWarm(t, two, at(t, one, "usage", "input_tokens").(float64)+at(t, one, "usage", "output_tokens").(float64), at(t, two, "usage", "cache_read_input_tokens"))
	})
	t.Run("responses", func(t *testing.T) {
		_, url := start(t, Config{Engine: fast(1000)})
		const head = `{"model":"demo-8b","reasoning":{"effort":"low"},"tools":[{"type":"function","name":"weather"}],`
		const question = `{"role":"user","content":[{"type":"input_text","text":"` + longQuestion + callWeather + `"}]}`
		const result = `{"type":"function_call_output","call_id":"x","output":"rain"}`
		_, one := ask(t, url, "/v1/responses", head+`"input":[`+question+`]}`)
		require.Equal(t, "reasoning", at(t, one, "output", 0, "type"))
		require.Equal(t, `{"city":"Paris"}`, at(t, one, "output", 1, "arguments"))
		total := at(t, one, "usage", "total_tokens")

		_, two := ask(t, url, "/v1/responses", head+`"input":[`+question+`,`+
			encoded(at(t, one, "output", 0))+`,`+encoded(at(t, one, "output", 1))+`,`+result+`]}`)
		require.Equal(t, "message", at(t, two, "output", 1, "type"))
		requireWarm(t, two, total, at(t, two, "usage", "input_tokens_details", "cached_tokens"))

		_, kept := ask(t, url, "/v1/responses", head+fmt.Sprintf(`"previous_response_id":%q,"input":[%s]}`, one["id"], result))
		require.Equal(t, at(t, two, "output", 1, "content"), at(t, kept, "output", 1, "content"), "the same prompt")
		_, two = ask(t, url, "/v1/responses", head+fmt.Sprintf(`"previous_response_id":%q,"input":"And now?"}`, kept["id"]))
		require.Equal(t, "completed", two["status"])

		status, lost := ask(t, url, "/v1/responses", head+`"previous_response_id":"resp_0","input":"And now?"}`)
		require.Equal(t, 404, status)
		require.Equal(t, 404.0, at(t, lost, "error", "code"))
	})
	t.Run("chat", func(t *testing.T) {
		_, url := start(t, Config{Engine: fast(1000)})
		const head = `{"model":"demo-8b","reasoning_effort":"low","tools":[{"type":"function","function":{"name":"weather"}}],` +
			`"messages":[{"role":"user","content":"` + longQuestion + callWeather + `"},`
		_, one := ask(t, url, "/v1/chat/completions", strings.TrimSuffix(head, ",")+`]}`)
		require.Equal(t, "tool_calls", at(t, one, "choices", 0, "finish_reason"))
		_, two := ask(t, url, "/v1/chat/completions", head+encoded(at(t, one, "choices", 0, "message"))+
			`,{"role":"tool","tool_call_id":"x","content":"rain"}]}`)
		requireWarm(t, two, at(t, one, "usage", "total_tokens"), at(t, two, "usage", "prompt_tokens_details", "cached_tokens"))
	})
}

func requireWarm(t *testing.T, answer, before, cached any) {
	require.InDelta(t, before, cached, 16, "%v", answer)
}

var streamBodies = map[string]string{
	"/v1/messages": `{"model":"demo-8b","max_tokens":20,"stream":true,"thinking":{"type":"enabled"},"tools":[{"name":"weather"}],
		"messages":[{"role":"user","content":"%s"}]}`,
	"/v1/responses": `{"model":"demo-8b","max_output_tokens":20,"stream":true,"reasoning":{"effort":"low"},"tools":[{"name":"weather"}],
		"input":"%s"}`,
	"/v1/chat/completions": `{"model":"demo-8b","max_tokens":20,"stream":true,"n":2,"stream_options":{"include_usage":true},
		"reasoning_effort":"low","tools":[{"name":"weather"}],"messages":[{"role":"user","content":"%s"}]}`,
	"/v1/completions": `{"model":"demo-8b","max_tokens":20,"stream":true,"n":2,"prompt":"%s"}`,
}

var idsAndTimes = regexp.MustCompile(`(chatcmpl-|cmpl-|msg_|resp_|rs_|fc_)[0-9a-f]{16}|"created(_at)?":\d+`)

func TestSameRequestsSameBytes(t *testing.T) {
	for path, body := range streamBodies {
		for _, question := range []string{longQuestion, longQuestion + callWeather} {
			var all []string
			for _, speed := range []float64{1, 100} {
				_, url := start(t, Config{Engine: fast(1000), Speed: speed})
				data := rig.Must(io.ReadAll(post(t, t.Context(), url+path, fmt.Sprintf(body, question)).Body))
				all = append(all, idsAndTimes.ReplaceAllString(string(data), "$1"))
			}
			require.Equal(t, all[0], all[1])
		}
	}
}

// A stream has the same contents as the whole response.
func TestStreamsEndWithTheWhole(t *testing.T) {
	_, url := start(t, Config{Engine: fast(1000)})
	for _, question := range []string{longQuestion, longQuestion + callWeather} {
		body := fmt.Sprintf(streamBodies["/v1/responses"], question)
		data := rig.Must(io.ReadAll(post(t, t.Context(), url+"/v1/responses", body).Body))
		events := strings.Split(strings.TrimSpace(string(data)), "\n\n")
		_, last, _ := strings.Cut(events[len(events)-1], "data: ")
		var ended map[string]any
		require.NoError(t, json.Unmarshal([]byte(last), &ended))
		_, whole := ask(t, url, "/v1/responses", strings.Replace(body, `"stream":true`, `"stream":false`, 1))
		for i, item := range at(t, whole, "output").([]any) {
			for _, key := range []string{"type", "content", "summary", "arguments", "name", "status"} {
				require.Equal(t, at(t, item, key), at(t, ended, "response", "output", i, key))
			}
		}
		require.Equal(t, whole["status"], at(t, ended, "response", "status"))
	}
}

func TestErrorsThatPromptsAskFor(t *testing.T) {
	_, url := start(t, Config{Engine: fast(1000)})
	for path, body := range streamBodies {
		resp := post(t, t.Context(), url+path, fmt.Sprintf(body, "[[error 429 retry-after=7]]"))
		require.Equal(t, 429, resp.StatusCode)
		require.Equal(t, "7", resp.Header.Get("Retry-After"))
		var v struct {
			Type  string
			Error struct{ Type, Message string }
		}
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&v))
		require.Equal(t, "Too Many Requests", v.Error.Type)
		if path == "/v1/messages" {
			require.Equal(t, "error", v.Type)
		}

		_, fresh := start(t, Config{Engine: fast(1000)})
		for _, want := range []int{503, 503, 200} {
			require.Equal(t, want, post(t, t.Context(), fresh+path, fmt.Sprintf(body, "[[error 503 times=2]]")).StatusCode)
		}

		data, err := io.ReadAll(post(t, t.Context(), url+path, fmt.Sprintf(body, "[[cut 3]]")).Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NotContains(t, string(data), "finish_reason\":\"")
		whole := strings.Replace(fmt.Sprintf(body, "[[cut 3]]"), `"stream":true`, `"stream":false`, 1)
		require.ErrorIs(t, rig.Err(io.ReadAll(post(t, t.Context(), url+path, whole).Body)), io.ErrUnexpectedEOF)

		require.Equal(t, http.StatusNotFound, post(t, t.Context(), url+path,
			strings.Replace(fmt.Sprintf(body, "hi"), "demo-8b", "other", 1)).StatusCode)
	}
}

func TestCountTokens(t *testing.T) {
	_, url := start(t, Config{Engine: fast(1000)})
	const body = `{"model":"demo-8b","max_tokens":1,"system":"abcd","messages":[{"role":"user","content":[{"type":"text","text":"abcdefgh"}]}]}`
	_, counted := ask(t, url, "/v1/messages/count_tokens", body)
	_, answered := ask(t, url, "/v1/messages", body)
	// Headers of six bytes, four and nine: 4, 3 and 5 tokens; two ends of messages.
	require.EqualValues(t, 4+1+1+3+2+1+5, counted["input_tokens"])
	require.Equal(t, counted["input_tokens"], at(t, answered, "usage", "input_tokens"))
	status, refused := ask(t, url, "/v1/messages/count_tokens", `{"model":"demo-8b"}`)
	require.Equal(t, 400, status)
	require.Equal(t, "BadRequestError", at(t, refused, "error", "type"))
}

// same requires that two values have the same members of the same kinds; texts and numbers may differ.
func same(t *testing.T, want, got any, at string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		require.True(t, ok, "%s: %v", at, got)
		for k := range w {
			if k == "param" { // of some errors
				continue
			}
			same(t, w[k], g[k], at+"."+k)
		}
		require.Len(t, g, len(w), "%s: %v", at, g)
	case nil:
	default:
		require.IsType(t, want, got, at)
	}
}

func decoded(t *testing.T, text string) (v any) {
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// Errors and pages look as those of vLLM.
func TestItLooksLikeVLLM(t *testing.T) {
	_, url := start(t, Config{Model: "tiny", Engine: fast(8)})
	for _, name := range []string{"error_model", "error_model_messages", "error_json", "error_long", "error_long_messages", "render_chat", "render_messages", "version"} {
		request, body, status, want := rig.Recorded(name)
		method, path, _ := strings.Cut(request, " ")
		if body == "(9000 words)" {
			body = `{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 9000) + `"}]}`
		}
		resp := rig.Must(http.DefaultClient.Do(rig.Must(http.NewRequest(method, url+path, strings.NewReader(body)))))
		text := string(rig.Must(io.ReadAll(resp.Body)))
		resp.Body.Close()
		require.Equal(t, status, resp.StatusCode, "%s: %s", name, text)
		same(t, decoded(t, want), decoded(t, text), name)
	}
	_, chat, _, _ := rig.Recorded("tokenize_chat")
	_, v := ask(t, url, "/tokenize", chat)
	assert.EqualValues(t, len(v["tokens"].([]any)), v["count"])
	_, again := ask(t, url, "/tokenize", chat)
	assert.Equal(t, v, again)
	_, answer := ask(t, url, "/v1/chat/completions", chat[:len(chat)-1]+`,"max_tokens":1}`)
	assert.Equal(t, v["count"], at(t, answer, "usage", "prompt_tokens"))
	_, text := ask(t, url, "/tokenize", `{"model":"tiny","prompt":"abcdabcdabce"}`)
	ids := text["tokens"].([]any)
	assert.Len(t, ids, 3)
	assert.Equal(t, ids[0], ids[1])
	assert.NotEqual(t, ids[0], ids[2])
	status, _ := ask(t, url, "/tokenize", "{}")
	assert.Equal(t, 400, status)
}
