package prefix

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// naiveForm is the canonical form of a conversation, as documented.
func naiveForm(s *blockhash.Secret, c *Conversation) string {
	var b strings.Builder
	field := func(kind fieldKind, text string) {
		b.WriteString("\xff" + string([]byte{byte(kind)}) + strings.ReplaceAll(text, "\xff", "\xff\x00"))
	}
	spent, punctuation := 0, 0
	json := func(s string) string {
		n := naiveParts(s)
		if spent+len(s) > maxCanonical || punctuation+n > maxParts {
			return s
		}
		spent, punctuation = spent+len(s), punctuation+n
		return naiveCanonical(s)
	}
	for _, tool := range c.Tools {
		field(toolField, json(tool))
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
			field(argumentsField, json(call.Arguments))
		}
	}
	return b.String()
}

func naiveParts(s string) int {
	return len(s) - len(strings.NewReplacer(",", "", ":", "", "[", "", "{", "").Replace(s))
}

func TestChatIsTheNaiveForm(t *testing.T) { rapid.Check(t, checkChat) }

func FuzzChat(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkChat)) }

func checkChat(t *rapid.T) {
	s := someSecret(9)
	some := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "é", "\xff", "\x00", "\xff\x05", "\xc3", "{", strings.Repeat("\xff", 100), strings.Repeat("long ", 60)}), 0, 6),
		func(pieces []string) string { return strings.Join(pieces, "") })
	text := rapid.OneOf(some, rapid.Custom(func(t *rapid.T) string { return drawJSON(t, 2) }))
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

	var h Hasher // piece by piece
	h.Reset(seedOf(s), []uint64{7})
	for _, tool := range c.Tools {
		h.WriteTool(tool)
	}
	for i := range c.Messages {
		h.WriteMessage(&c.Messages[i])
	}
	require.Equal(t, blocks, h.Blocks())
}

// Only a limited part of a conversation is canonicalized, whatever it contains.
func TestChatBringsSoMuchIntoOrder(t *testing.T) {
	s := someSecret(9)
	tool := func(n int) string {
		return `{"b": 1, "a": "` + strings.Repeat("x", n-len(`{"b": 1, "a": ""}`)) + `"}`
	}
	// With so many parts.
	list := func(n int) string { return "[ 1" + strings.Repeat(",1", n-1) + "]" }
	var h Hasher
	for _, tools := range [][]string{
		{tool(maxCanonical)}, {tool(maxCanonical + 1)}, {tool(maxCanonical), tool(20)},
		{tool(maxCanonical - 50), tool(51), tool(30), tool(21), tool(20)},
		{list(maxParts)}, {list(maxParts + 1)}, {list(maxParts), tool(20)}, {list(maxParts - 4), tool(30), tool(20)}, {list(maxParts - 3), tool(30), `{"b":1, "a":2}`, "[ 1 ]"},
		{"no JSON" + strings.Repeat("x", maxCanonical/2), tool(maxCanonical / 2), tool(20)},
		{"\xff" + strings.Repeat("x", maxCanonical-40), tool(20), tool(20)},
	} {
		for _, c := range []Conversation{
			{Tools: tools},
			{Tools: tools[:1], Messages: []Message{{ToolCalls: []ToolCall{{Arguments: strings.Join(tools[1:], " ")}}}, {ToolCalls: []ToolCall{{Arguments: tool(20)}}}}},
		} {
			want := naiveForm(s, &c)
			h.Reset(seedOf(s), nil)
			for _, tool := range c.Tools {
				h.WriteTool(tool)
			}
			for i := range c.Messages {
				h.WriteMessage(&c.Messages[i])
			}
			require.Equal(t, len(want), h.Len())
			require.Equal(t, AppendText(nil, seedOf(s), want), h.Blocks())

			next := c // where the tools end, the next one's messages differ
			next.Messages = append(slices.Clone(c.Messages), Message{Role: "a"}, Message{Role: "x"})
			c.Messages = append(slices.Clone(c.Messages), Message{Role: "b"}, Message{Role: "x"})
			br, broken := FirstBreak(&c, &next)
			require.True(t, broken)
			require.Equal(t, len(want)+2, br.SharedBytes)
		}
	}
}

// Memory kept for reuse is bounded, and refers to nothing of a request.
func TestCanonicalizersKeepLittle(t *testing.T) {
	var c canonicalizer
	for _, s := range hostile(maxCanonical) {
		c.write(s, new(budget), func([]byte) {})
		kept := cap(c.dst) + 24*(cap(c.members)+cap(c.sorted)+cap(c.objects)+cap(c.writing)) + 16*(cap(c.order[0])+cap(c.order[1])) + 24*cap(c.open)
		assert.LessOrEqual(t, kept, 8*maxCanonical)
	}
	require.True(t, writeCanonical(`{"a":1}`, new(budget), func([]byte) {}))
	pooled := canonicalizers.Get().(*canonicalizer)
	assert.Nil(t, pooled.src)
	assert.Nil(t, pooled.compact)
}

// hostile are tools of about n bytes that are made to be expensive.
func hostile(n int) map[string]string {
	fill := func(head, tail string, piece func(i int) string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < n-len(tail); i++ {
			b.WriteString(piece(i))
		}
		return b.String() + tail
	}
	each := func(s string) func(int) string { return func(int) string { return s } }
	nest := func(levels int, open, last, shut string) string {
		return strings.Repeat(open, levels) + last + strings.Repeat(shut, levels)
	}
	long := strings.Repeat("k", 200)
	return map[string]string{
		"nested":             nest(maxDepth, `{"b":"`+strings.Repeat("x", n/maxDepth)+`","a":`, "1", "}"),
		"nested, at the end": nest(maxDepth, `{"b":1,"a":`, `"`+strings.Repeat("x", n)+`"`, "}"),
		"nested, two":        nest(maxDepth/2, `{"b":[`, "1", `],"a":"`+strings.Repeat("x", 2*n/maxDepth)+`"}`),
		"too deep":           nest(n/12, `{"b":1,"a":`, "1", "}"),
		"deep arrays":        fill("[1", "]", each(","+nest(maxDepth-1, "[", "", "]"))),
		"small objects":      fill(`[{}`, "]", each(`,{"b":1,"a":2}`)),
		"empty objects":      fill(`[{}`, "]", each(",{}")),
		"members":            fill(`{"a":1`, "}", func(i int) string { return fmt.Sprintf(`,"%x":1`, uint32(i)*2654435761) }),
		"falling members":    fill(`{"a":1`, "}", func(i int) string { return fmt.Sprintf(`,"%07d":1`, 9_999_999-i) }),
		"equal keys":         fill(`{"":1`, "}", each(`,"":1`)),
		"long keys":          fill(`{"a":1`, "}", func(i int) string { return fmt.Sprintf(`,"%s%x":1`, long, uint32(i)*2654435761) }),
		"ones":               fill("[1", "]", each(",1")),
		"escapes":            fill(`"`, `"`, each(`\u0061`)),
		"quotes":             fill(`"`, `"`, each(`\"`)),
		"space":              fill("1", "", each(" ")),
		"borders":            strings.Repeat("\xff", n),
		"not closed":         nest(maxDepth, `{"b":1,"a":`, `"`+strings.Repeat("x", n), ""),
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
