package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
)

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

// A full queue refuses before the status and after it, in the forms that vLLM has for each API.
func TestAFullQueue(t *testing.T) {
	config := fast(10_000)
	config.MaxSequences = 1
	s, url := start(t, Config{Engine: config, MaxQueued: 1})
	for range 2 { // one runs, one waits
		post(t, t.Context(), url+"/v1/completions", `{"model":"demo-8b","prompt":"x","stream":true,"max_tokens":20000}`)
	}
	require.Eventually(t, func() bool { l := s.Load(); return l.Running == 1 && l.Waiting == 1 }, 10*time.Second, time.Millisecond)
	for path, body := range streamBodies {
		body = strings.Replace(body, "%s", "hi", 1)
		_, _, _, want := rig.Recorded("full_completions")
		if path == "/v1/messages" {
			_, _, _, want = rig.Recorded("full_messages")
		}
		for _, stream := range []string{"true", "false"} {
			resp := post(t, t.Context(), url+path, strings.Replace(body, `"stream":true`, `"stream":`+stream, 1))
			text := string(rig.Must(io.ReadAll(resp.Body)))
			require.Equal(t, 503, resp.StatusCode)
			require.Empty(t, resp.Header.Get("Retry-After"), "vLLM says none")
			require.Contains(t, text, "currently busy")
			same(t, decoded(t, want), decoded(t, text), path)
		}
		resp := post(t, t.Context(), url+path, body)
		b, err := io.ReadAll(resp.Body)
		text := string(b)
		require.Equal(t, 200, resp.StatusCode)
		switch path {
		case "/v1/responses":
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.Equal(t, 2, strings.Count(text, "\n\n"))
			require.Contains(t, text, "event: response.in_progress\n")
		case "/v1/messages":
			require.Regexp(t, `^event: error\ndata: \{.*"internal_error".*\}\n\n$`, text)
		default:
			require.Regexp(t, `^data: \{"error":\{.*"code":503\}\}\n\ndata: \[DONE\]\n\n$`, text)
		}
	}
}

// While a prompt is computed, nothing is answered, and gauges are those of the last step.
func TestABlockingServer(t *testing.T) {
	slow := engine.Config{Profile: engine.Profile{Name: "test", StepMicros: 400_000, TokenMicros: 100}, Blocks: 1000, MaxSequences: 1}
	for _, blocking := range []bool{true, false} {
		s, url := start(t, Config{Blocking: blocking, Engine: slow})
		gauges := func() string {
			resp := rig.Must(http.Get(url + "/metrics"))
			defer resp.Body.Close()
			return string(rig.Must(io.ReadAll(resp.Body)))
		}
		shows := func(name string, n int) bool {
			return strings.Contains(gauges(), fmt.Sprintf("\nvllm:num_requests_%s{engine=\"0\",model_name=\"demo-8b\"} %d\n", name, n))
		}
		prompt := `{"model":"demo-8b","stream":true,"max_tokens":2,"prompt":"` + strings.Repeat("abcd", 500) + `"}`
		first := post(t, t.Context(), url+"/v1/completions", prompt)
		require.Eventually(t, func() bool { return s.Load().Running == 1 }, 10*time.Second, time.Millisecond)
		second := post(t, t.Context(), url+"/v1/completions", prompt)
		begun := time.Now()
		resp := rig.Must(http.Get(url + "/health"))
		resp.Body.Close()
		assert.Equal(t, blocking, time.Since(begun) > 200*time.Millisecond, "half a second")
		assert.Equal(t, 1, s.Load().Waiting)
		assert.Equal(t, !blocking, shows("waiting", 1), "it came after that step had begun")
		_, _ = io.Copy(io.Discard, first.Body)
		_, _ = io.Copy(io.Discard, second.Body)
		require.Eventually(t, func() bool { return shows("waiting", 0) && shows("running", 0) }, 10*time.Second, time.Millisecond)
	}
}
