package dialect

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The next turn continues an answer with newlines and quotes, whatever escapes engine
// and client use.
func TestAnswersWithEscapesAreContinued(t *testing.T) {
	const ask = `{"role":"user","content":"Write a line of code, \u0022quoted\u0022,\nand then another."}`
	pieces := []string{`a \"line\"\n`, `\u0022\u00e9\u0022\t`, `\/\\n\u000a`, `and more of it `}
	var text string
	require.NoError(t, json.Unmarshal([]byte(`"`+strings.Join(pieces, "")+`"`), &text))
	text = strings.Repeat(text, 20)
	byGo, err := json.Marshal(text)
	require.NoError(t, err)
	answers := []string{string(byGo), `"` + written(text) + `"`, `"` + strings.Repeat(strings.Join(pieces, ""), 20) + `"`}

	var chatEvents, messageEvents []string
	for range 20 {
		for _, p := range pieces {
			chatEvents = append(chatEvents, `{"choices":[{"index":0,"delta":{"content":"`+p+`"}}]}`)
			messageEvents = append(messageEvents, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"`+p+`"}}`)
		}
	}
	chatEvents = append(chatEvents, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	messageEvents = append(messageEvents, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}`, `{"type":"message_stop"}`)
	for name, tc := range map[string]struct {
		path, way, responded string
	}{
		"chat":              {"/v1/chat/completions", EventStream, events(chatEvents...) + "data: [DONE]\n\n"},
		"chat, at once":     {"/v1/chat/completions", "application/json", `{"choices":[{"message":{"role":"assistant","content":` + answers[2] + `}}]}`},
		"messages":          {"/v1/messages", EventStream, events(append([]string{`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`}, messageEvents...)...)},
		"messages, at once": {"/v1/messages", "application/json", `{"content":[{"type":"text","text":` + answers[0] + `}],"usage":{"input_tokens":1,"output_tokens":6}}`},
	} {
		_, outcome, err := metered(t, tc.path, `{"model":"m","messages":[`+ask+`]}`, tc.way, tc.responded)
		require.NoError(t, err, name)
		require.GreaterOrEqual(t, len(outcome.Blocks), len(text)/64, name)
		for _, answer := range answers {
			c := newTalk(t).ask(tc.path, `{"model":"m","messages":[`+ask+`,{"role":"assistant","content":`+answer+`},{"role":"user","content":"Go on."}]}`, nil)
			require.GreaterOrEqual(t, len(c.Request.Blocks), len(outcome.Blocks), "%s, %s", name, answer)
			require.Equal(t, outcome.Blocks, c.Request.Blocks[:len(outcome.Blocks)], "%s, %s", name, answer)
		}
	}
}
