package bpe_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/tokens/bpe"
)

// Any files yield an error, or a model that encodes text and chats within bounds;
// nothing panics. Impossible ids and merges are rejected.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("testdata/tokenizer.json")
	require.NoError(f, err)
	f.Add(string(text), `{"chat_template":"A"}`, chatTemplate, "Hi there")
	f.Add(string(small(f, nil)), `{"chat_template":[{"name":"default","template":"B"}],"bos_token":{"content":"<s>"}}`, "", "a\xffb \n\n<s>")
	f.Add(string(small(f, nil)), "", `{% for m in messages %}{{ m.content|upper }}{% endfor %}{{ bos_token ~ messages[0]['role'] }}`, "é")
	f.Add(`{"model":{"type":"BPE","vocab":{"a":0,"b":-1},"merges":[["a","b"],"a b"]},"added_tokens":[{"id":4294967296,"content":""}]}`, "{", "{% if %}", "ab")
	f.Add(`{"model":{"type":"BPE","vocab":{},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a*)*b"},"behavior":"Isolated"}}`, "", "", "aaaaaaaaaaaaaaaaaaaaaaaa")
	f.Fuzz(func(t *testing.T, tokenizer, config, template, text string) {
		if len(tokenizer)+len(config)+len(template)+len(text) > 64<<10 {
			return
		}
		m, err := bpe.Parse([]byte(tokenizer), []byte(config), []byte(template))
		if err != nil {
			var bad *bpe.Error
			require.ErrorAs(t, err, &bad)
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		again, err := m.Encode(ctx, text)
		if err == nil {
			twice, err := m.Encode(ctx, text)
			require.NoError(t, err)
			require.Equal(t, again, twice)
			require.LessOrEqual(t, len(again), 64*len(text)+64) // normalisers may lengthen text
		}
		body, err := json.Marshal(map[string]any{"messages": []map[string]string{{"role": "user", "content": text}}})
		require.NoError(t, err)
		_, _ = m.Tokens(ctx, "/v1/chat/completions", body)
	})
}
