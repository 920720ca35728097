package modelserver

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func promptOf(t *testing.T, body string) tokens {
	q, err := parseChat(&Server{block: 4}, []byte(body))
	require.Nil(t, err)
	return q.prompt
}

func common(a, b tokens) (n int) {
	for n < min(len(a.blocks), len(b.blocks)) && a.blocks[n] == b.blocks[n] {
		n++
	}
	return n
}

func TestChatTokens(t *testing.T) {
	const user, assistant = 3, 5 // tokens of a header
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"text":       {`{"messages":[{"role":"user","content":"abcdefghi"}]}`, user + 3 + 1 + assistant},
		"parts":      {`{"messages":[{"role":"user","content":[{"type":"text","text":"abcd"},{"type":"text","text":"e"}]}]}`, user + 2 + 1 + assistant},
		"tool call":  {`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{}]}]}`, user + 2 + assistant + 2 + 1 + assistant},
		"tools":      {`{"tools":[1],"messages":[{"role":"user","content":"a"}]}`, 3 + user + 2 + assistant},
		"tools null": {`{"tools":null,"messages":[{"role":"user","content":"a"}]}`, user + 2 + assistant},
		"continued":  {`{"continue_final_message":true,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"bbbbcccc"}]}`, user + 2 + assistant + 2},
		"not ASCII":  {`{"messages":[{"role":"user","content":"ééé"}]}`, user + 2 + 1 + assistant},
	} {
		got := promptOf(t, c.body)
		require.Equal(t, c.want, got.length, name)
		require.Len(t, got.blocks, c.want/4, name)
	}
}

func TestSaltsShareNothing(t *testing.T) {
	body := func(salt string) string {
		return fmt.Sprintf(`{"cache_salt":%q,"messages":[{"role":"user","content":"0123456789abcdef"}]}`, salt)
	}
	one := promptOf(t, body(""))
	require.Equal(t, len(one.blocks), common(one, promptOf(t, body(""))))
	require.Zero(t, common(one, promptOf(t, body("tenant"))))
}

// The next turn of a conversation shares all full blocks of the turn before,
// output included; one that differs in a message shares none after it.
func TestTurnsShareTheirHead(t *testing.T) {
	type said struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab é漢")), 0, 60, -1)
		var messages []said
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			messages = append(messages, said{rapid.SampledFrom([]string{"system", "user", "assistant"}).Draw(t, "role"), text.Draw(t, "text")})
		}
		parse := func(m []said) tokens {
			q, e := parseChat(&Server{block: 4}, rig.Must(json.Marshal(map[string]any{"messages": m})))
			require.Nil(t, e)
			return q.prompt
		}
		prompt := parse(messages)
		expected := rapid.IntRange(1, 30).Draw(t, "tokens")
		s := newSequence(&prompt, spoken{output: outputFor(&prompt, 0)}, expected)
		require.Len(t, s.blocks, (prompt.length+expected)/4)
		answer := string(s.output.appendText(nil, 0, expected))
		require.Len(t, answer, expected*bytesPerToken)

		next := parse(append(messages, said{"assistant", answer}, said{"user", text.Draw(t, "question")}))
		require.Equal(t, s.blocks, next.blocks[:len(s.blocks)])

		other := append([]said{}, messages...)
		i := rapid.IntRange(0, len(other)-1).Draw(t, "changed")
		other[i].Content += "x"
		before := 0
		if i > 0 {
			before = parse(other[:i]).length - 5 // without the header of the answer
		}
		require.LessOrEqual(t, common(prompt, parse(other))*4, before+3+5+len(messages[i].Content)/bytesPerToken)
		require.GreaterOrEqual(t, common(prompt, parse(other)), before/4)
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
		`{"prompt":"a"}`, `{"prompt":3}`, `{"messages":null,"n":-1}`, `[]`, ``,
		`{"max_tokens":3,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":"r"}]}]}`,
		`{"input":[{"type":"reasoning","summary":[]},{"type":"function_call","name":"n"},{"type":"function_call_output","output":"r"}]}`,
		`{"input":"[[call n {}]] [[error 429]] [[cut 1]]","tools":[1]}`,
	} {
		f.Add([]byte(s))
	}
	s := rig.Must(New(Config{}))
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []func(*Server, []byte) (*question, *apiError){parseChat, parseCompletion, parseMessages, parseResponses} {
			q, e := parse(s, body)
			if e != nil {
				continue
			}
			n := q.prompt.length
			require.True(t, n >= 1 && len(q.prompt.blocks) == n/16, "%d blocks of %d tokens", len(q.prompt.blocks), n)
			q.model = s.config.Model
			if g, e := s.newGeneration(q); e == nil && len(g.sequences) == 0 {
				t.Fatal("nothing to generate")
			}
		}
	})
}
