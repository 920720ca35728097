package prefix

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/endpick/endpick/prefix/internal/blockhash"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naiveForm is what is hashed of a conversation, as documented.
func naiveForm(s *blockhash.Secret, c *Conversation) string {
	var b strings.Builder
	field := func(kind fieldKind, text string) {
		b.WriteString("\xff" + string([]byte{byte(kind)}) + strings.ReplaceAll(text, "\xff", "\xff\x00"))
	}
	left := maxCompact
	compact := func(s string) string {
		c := withoutSpace(s)
		if len(c) == len(s) || len(s) > left {
			return s
		}
		if left -= len(s); !json.Valid([]byte(s)) {
			return s
		}
		return c
	}
	for _, tool := range c.Tools {
		field(toolField, compact(tool))
	}
	for _, m := range c.Messages {
		field(roleField, m.Role)
		if m.Name != "" {
			field(nameField, m.Name)
		}
		if m.ToolCallID != "" {
			field(answersField, m.ToolCallID)
		}
		for _, p := range m.Parts {
			if p.Type == "" || p.Type == "text" {
				field(textField, p.Content)
				continue
			}
			filled := p.Content + strings.Repeat("\x00", BlockBytes-len(p.Content)%BlockBytes)
			sums := naive(s, blockhash.OfMedia+4*uint64(len(p.Content)), []byte(filled))
			field(mediaTypeField, p.Type)
			field(mediaField, fmt.Sprintf("%016x", sums[len(sums)-1]))
		}
		for _, call := range m.ToolCalls {
			field(callField, call.ID)
			field(callNameField, call.Name)
			field(argumentsField, compact(call.Arguments))
		}
	}
	return b.String()
}

func withoutSpace(s string) string {
	var b strings.Builder
	for i, inside := 0, false; i < len(s); i++ {
		switch {
		case inside && s[i] == '\\':
			b.WriteByte(s[i])
			if i++; i == len(s) {
				return b.String()
			}
		case s[i] == '"':
			inside = !inside
		case !inside && strings.IndexByte(" \t\r\n", s[i]) >= 0:
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// drawJSON draws a text that is mostly JSON.
func drawJSON(t *rapid.T) string {
	pieces := []string{`{"a" : `, `"b\" c"`, " ", ",", `:`, "}", "[1 ,\t2.50]", "\n", `{"b":1, "a": 2}`, `"\u0061\\"`, "\"\xff \"", "null"}
	all := rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 6).Draw(t, "json")
	if rapid.Bool().Draw(t, "list") {
		return "[ " + strings.Join(all, " , ") + "] "
	}
	return strings.Join(all, "")
}

func TestChatIsTheNaiveForm(t *testing.T) { rapid.Check(t, checkChat) }

func FuzzChat(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkChat)) }

func checkChat(t *rapid.T) {
	s := someSecret(9)
	some := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "é", "\xff", "\x00", "\xff\x05", "\xc3", "{", strings.Repeat("\xff", 100), strings.Repeat("long ", 60)}), 0, 6),
		func(pieces []string) string { return strings.Join(pieces, "") })
	text := rapid.OneOf(some, rapid.Custom(drawJSON))
	var c Conversation
	for range rapid.IntRange(0, 2).Draw(t, "tools") {
		c.Tools = append(c.Tools, text.Draw(t, "tool"))
	}
	for range rapid.IntRange(0, 3).Draw(t, "messages") {
		m := Message{Role: text.Draw(t, "role"), Name: text.Draw(t, "name"), ToolCallID: text.Draw(t, "answers")}
		for range rapid.IntRange(0, 2).Draw(t, "parts") {
			m.Parts = append(m.Parts, Part{Type: rapid.SampledFrom([]string{"", "text", "image_url"}).Draw(t, "type"), Content: text.Draw(t, "content")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "calls") {
			m.ToolCalls = append(m.ToolCalls, ToolCall{ID: text.Draw(t, "id"), Name: text.Draw(t, "function"), Arguments: text.Draw(t, "arguments")})
		}
		c.Messages = append(c.Messages, m)
	}
	want := naiveForm(s, &c)
	blocks, n := AppendChat([]uint64{7}, seedOf(s), &c)
	require.Equal(t, len(want), n)
	require.Equal(t, AppendText([]uint64{7}, seedOf(s), want), blocks)
}

// Only so much of a conversation is compacted, whatever it contains.
func TestChatCompactsSoMuch(t *testing.T) {
	s := someSecret(9)
	tool := func(n int) string { return `{"a": "` + strings.Repeat("x", n-len(`{"a": ""}`)) + `"}` }
	var h Hasher
	for _, tools := range [][]string{
		{tool(maxCompact)}, {tool(maxCompact + 1), tool(20)}, {tool(maxCompact), tool(20)}, {tool(maxCompact - 50), tool(51), tool(30), tool(21), tool(20)},
		{tool(maxCompact - 50), strings.Replace(tool(51), " ", "", 1), tool(50), tool(20)}, {"no JSON" + strings.Repeat(" ", maxCompact/2), tool(maxCompact / 2), tool(20)}, {strings.Repeat("[ ", 100_000)},
	} {
		c := Conversation{Tools: tools, Messages: []Message{{ToolCalls: []ToolCall{{Arguments: tool(20)}}}}}
		want := naiveForm(s, &c)
		for range 2 { // Reset begins anew
			h.Reset(seedOf(s), nil)
			for _, tool := range c.Tools {
				h.WriteTool(tool)
			}
			h.WriteMessage(&c.Messages[0])
			require.Equal(t, len(want), h.Len())
			require.Equal(t, AppendText(nil, seedOf(s), want), h.Blocks())
		}
	}
}

// Media of different lengths differ, even if the rest is zeros.
func TestMediaCountTheirLength(t *testing.T) {
	seed := seedOf(someSecret(1))
	seen := map[uint64]int{}
	for n := range 5 * BlockBytes {
		h := blockhash.Sum(seed.secret(), make([]byte, n))
		other, ok := seen[h]
		require.False(t, ok, "%d and %d", n, other)
		seen[h] = n
	}
	long := make([]byte, 300*BlockBytes)
	whole := blockhash.Sum(seed.secret(), long)
	for i := range 300 {
		long[i*BlockBytes] = 1
		require.NotEqual(t, whole, blockhash.Sum(seed.secret(), long), "block %d", i)
		long[i*BlockBytes] = 0
	}
}
