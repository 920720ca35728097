package modelserver

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
