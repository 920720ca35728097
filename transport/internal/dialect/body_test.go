package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The memory of a body is reused once the response is there. Nothing that remains of
// the request by then, or that meters its response, aliases it.
func TestNothingThatLastsRefersToTheBody(t *testing.T) {
	text := strings.Repeat(`Something to read\u002e\n`, 30)
	for name, tc := range map[string]struct{ path, body string }{
		"chat":               {"/v1/chat/completions", `{"model":"gpt-x","stream":true,"user":"somebody","cache_salt":"salty","messages":[{"role":"user","name":"joe","content":"` + text + `"}]}`},
		"a cache key":        {"/v1/chat/completions", `{"model":"gpt-x","prompt_cache_key":"a-key","messages":[{"role":"user","content":"` + text + `"}]}`},
		"a head":             {"/v1/chat/completions", `{"model":"gpt-x","messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}]}]}`},
		"tools":              {"/v1/chat/completions", `{"model":"gpt-x","tools":[{"b":1,"a":2},"c"],"messages":[{"role":"user","content":"` + text + `"},{"tool_calls":[{"id":"i","function":{"name":"f","arguments":"{}"}}]}]}`},
		"messages":           {"/v1/messages", `{"model":"claude-x","metadata":{"user_id":"user-1"},"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}]}]}`},
		"responses":          {"/v1/responses", `{"model":"gpt-x","instructions":"be brief","user":"somebody","input":[{"role":"user","content":"` + text + `"}]}`},
		"a completion":       {"/v1/completions", `{"model":"gpt-x","user":"somebody","prompt":"` + text + `"}`},
		"llama.cpp's native": {"/completion", `{"model":"gpt-x","user":"somebody","prompt":"` + text + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTalkWith(t, Config{Sketch: true, SketchText: true})
			body := []byte(tc.body)
			call := w.read(Incoming{Method: http.MethodPost, Path: tc.path, Body: body}, nil)
			meter := w.meter(call, EventStream)
			sketch, salt := call.Sketch()
			seen := func() string {
				s, err := json.Marshal(sketch)
				require.NoError(t, err)
				r := call.Request
				return fmt.Sprintf("%q %q %v %v %s %v %q %v %q %v", r.Model, r.Session, r.Blocks, r.InputTokens, s, salt, meter.model, meter.origin.head, meter.origin.key, meter.hasher)
			}
			before := seen()
			model := strings.Clone(call.Model())
			for i := range body {
				body[i] = '#'
			}
			// Nor the buffer that its texts were unescaped into.
			next := strings.NewReplacer("Something to read", "########## ## ####", "gpt-x", `g\u0070t-y`, "somebody", `some\u0062ody else`).Replace(tc.body)
			w.ask(tc.path, next, nil)
			assert.Equal(t, before, seen())
			assert.Equal(t, model, call.Model())
			assert.NotEmpty(t, call.Request.Session)
		})
	}
}

// A line that a coding agent puts before its instructions, different in each request, is no part
// of the prompt: engines drop it.
func TestAttributionIsNoPrompt(t *testing.T) {
	long := strings.Repeat("Read files before you change them. ", 40)
	for _, tc := range []struct {
		kind       *api
		with, sans string
	}{
		{messages, `{"system":[{"type":"text","text":"LINE"},{"type":"text","text":"` + long + `"}],"messages":[{"role":"user","content":"hey"}]}`,
			`{"system":[{"type":"text","text":"` + long + `"}],"messages":[{"role":"user","content":"hey"}]}`},
		{messages, `{"system":"LINE\n` + long + `","messages":[{"role":"user","content":"hey"}]}`, `{"system":"` + long + `","messages":[{"role":"user","content":"hey"}]}`},
		{chat, `{"messages":[{"role":"system","content":"LINE\n` + long + `"},{"role":"user","content":"hey"}]}`, `{"messages":[{"role":"system","content":"` + long + `"},{"role":"user","content":"hey"}]}`},
		{chat, `{"messages":[{"role":"developer","content":[{"type":"text","text":"LINE"},{"type":"text","text":"` + long + `"}]}]}`, `{"messages":[{"role":"developer","content":[{"type":"text","text":"` + long + `"}]}]}`},
		{responses, `{"instructions":"LINE\n` + long + `","input":"hey"}`, `{"instructions":"` + long + `","input":"hey"}`},
	} {
		want := blocksOf(t, tc.kind, tc.sans)
		for _, line := range []string{"x-anthropic-billing-header: cc_version=2.1; cch=36ee5;", "x-anthropic-billing-header: cch=1;"} {
			assert.Equal(t, want, blocksOf(t, tc.kind, strings.Replace(tc.with, "LINE", line, 1)))
		}
		assert.NotEqual(t, want, blocksOf(t, tc.kind, strings.Replace(tc.with, "LINE", "x-another: 1", 1)))
	}
	const asked = `{"messages":[{"role":"user","content":"x-anthropic-billing-header: is a text like others here, and long enough for a block of it"}]}`
	assert.NotEmpty(t, blocksOf(t, chat, asked))
}
