package prefix_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
)

func text(role, content string) prefix.Message {
	return prefix.Message{Role: role, Parts: []prefix.Part{{Content: content}}}
}

// sum is a hash of a whole conversation: it appends a message that fills blocks
// of its own and returns the last hash, which depends on everything before it.
func sum(c prefix.Conversation) uint64 {
	c.Messages = append(slices.Clone(c.Messages), text("filler", strings.Repeat("f", 256)))
	blocks, _ := prefix.AppendChat(nil, seed(1), &c)
	return blocks[len(blocks)-1]
}

func drawMessage(t *rapid.T) prefix.Message {
	// Short strings of the bytes that borders consist of.
	str := rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'b', 0, 1, 2, '{', ' ', 'é'}), 0, 90, -1)
	raw := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{'a', 0, 1, 2, 5, 0xff}), 0, 6), func(b []byte) string { return string(b) })
	any := rapid.OneOf(str, raw)
	m := prefix.Message{Role: any.Draw(t, "role")}
	if rapid.Bool().Draw(t, "named") {
		m.Name = any.Draw(t, "name")
	}
	for range rapid.IntRange(0, 2).Draw(t, "parts") {
		m.Parts = append(m.Parts, prefix.Part{
			Type:    rapid.SampledFrom([]string{"", "text", "image_url", "file"}).Draw(t, "type"),
			Content: any.Draw(t, "content"),
		})
	}
	for range rapid.IntRange(0, 1).Draw(t, "calls") {
		m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: any.Draw(t, "id"), Name: any.Draw(t, "tool"), Arguments: any.Draw(t, "arguments")})
	}
	return m
}

func drawChat(t *rapid.T) prefix.Conversation {
	return prefix.Conversation{
		Tools:    rapid.SliceOfN(rapid.SampledFrom([]string{`{"a":1}`, `{"b":[2, 3]}`, "no json"}), 0, 2).Draw(t, "tools"),
		Messages: rapid.SliceOfN(rapid.Custom(drawMessage), 0, 5).Draw(t, "messages"),
	}
}

// A conversation shares all its full blocks with its next turn.
func TestChatContinues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChat(t)
		before, n := prefix.AppendChat(nil, seed(1), &c)
		require.Len(t, before, n/prefix.BlockBytes)
		next := prefix.Conversation{Tools: c.Tools, Messages: append(slices.Clone(c.Messages), drawMessage(t))}
		after, _ := prefix.AppendChat(nil, seed(1), &next)
		require.GreaterOrEqual(t, len(after), len(before))
		require.True(t, slices.Equal(before, after[:len(before)]))
	})
}

// So does one whose last text continues: a long document, followed by the question.
func TestChatSharesHeadOfText(t *testing.T) {
	document := strings.Repeat("All work and no play. ", 100)
	a := prefix.Conversation{Messages: []prefix.Message{text("user", document+"Who?")}}
	b := prefix.Conversation{Messages: []prefix.Message{text("user", document+"When?")}}
	x, _ := prefix.AppendChat(nil, seed(1), &a)
	y, _ := prefix.AppendChat(nil, seed(1), &b)
	k := len(document) / prefix.BlockBytes
	assert.Equal(t, x[:k], y[:k])
}

// What is hashed of two different conversations is never the same.
func TestChatIsInjective(t *testing.T) {
	normal := func(c prefix.Conversation) string {
		for i := range c.Messages {
			for j := range c.Messages[i].Parts {
				if p := &c.Messages[i].Parts[j]; p.Type == "" {
					p.Type = "text"
				}
			}
		}
		return fmt.Sprintf("%q", c)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawChat(t), drawChat(t)
		require.Equal(t, normal(a) == normal(b), sum(a) == sum(b))
	})
}

func TestChatBordersCannotBeForged(t *testing.T) {
	same := [][]prefix.Conversation{
		// White space in JSON; a string instead of a list with one text.
		{
			{Tools: []string{`{"name": "f", "parameters": {"x": 1, "y": [1, 2.50]}}`}},
			{Tools: []string{"{\"name\":\"f\",\n\"parameters\":{\"x\":1,\"y\":[ 1,2.50 ]}}"}},
		},
		{
			{Messages: []prefix.Message{{ToolCalls: []prefix.ToolCall{{ID: "1", Name: "f", Arguments: `{"a":1,"b":2}`}}}}},
			{Messages: []prefix.Message{{ToolCalls: []prefix.ToolCall{{ID: "1", Name: "f", Arguments: ` {"a": 1, "b": 2} `}}}}},
		},
		{
			{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Type: "text", Content: "x"}}}}},
			{Messages: []prefix.Message{text("user", "x")}},
		},
	}
	different := []prefix.Conversation{
		{},
		{Messages: []prefix.Message{text("user", "ab")}},
		{Messages: []prefix.Message{text("user", "a"), text("user", "b")}},
		{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Content: "a"}, {Content: "b"}}}}},
		{Messages: []prefix.Message{{Role: "user", Name: "ab"}}},
		{Messages: []prefix.Message{{Role: "user", Name: "a", Parts: []prefix.Part{{Content: "b"}}}}},
		{Messages: []prefix.Message{{Role: "user", ToolCallID: "ab"}}},
		{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: "ab"}}}}},
		{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Type: "file", Content: "ab"}}}}},
		{Messages: []prefix.Message{{Role: "user", ToolCalls: []prefix.ToolCall{{Name: "ab"}}}}},
		{Messages: []prefix.Message{{Role: "user", ToolCalls: []prefix.ToolCall{{ID: "ab"}}}}},
		{Messages: []prefix.Message{{Role: "user", ToolCalls: []prefix.ToolCall{{Arguments: "ab"}}}}},
		{Messages: []prefix.Message{text("user", "a\xff\x02user\xff\x05b")}},
		{Messages: []prefix.Message{text("user", "a\xff\x00b")}},
		{Messages: []prefix.Message{text("user", "a\xffb")}},
		{Tools: []string{`{"a":1}`, `{"b":1}`}},
		{Tools: []string{`{"b":1}`, `{"a":1}`}},
		{Tools: []string{`{"a":1} {"b":1}`}},
		{Tools: []string{`{"a":1.0}`}},
		{Tools: []string{`{"a":1,"b":2}`}},
		{Tools: []string{`{"b":2,"a":1}`}},
		{Tools: []string{`{"a":"é"}`}},
		{Tools: []string{`{"a":"\u00e9"}`}},
		{Tools: []string{`{"a":" x"}`}},
		{Tools: []string{`{"a":"x"}`}},
		{Tools: []string{`{"a":12345678901234567890}`}},
		{Tools: []string{`{"a":12345678901234567891}`}},
	}
	for _, group := range same {
		assert.Equal(t, sum(group[0]), sum(group[1]))
		different = append(different, group[0])
	}
	seen := map[uint64]int{}
	for i, c := range different {
		if j, ok := seen[sum(c)]; ok {
			t.Errorf("%+v\nand\n%+v look the same", different[j], c)
		}
		seen[sum(c)] = i
	}
}

// Pictures count by their content, not by their size.
func TestChatMedia(t *testing.T) {
	picture := strings.Repeat("base64", 100_000)
	a := prefix.Conversation{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: picture}}}}}
	_, n := prefix.AppendChat(nil, seed(1), &a)
	assert.Less(t, n, 64)
	b := prefix.Conversation{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: picture + "!"}}}}}
	assert.NotEqual(t, sum(a), sum(b))
}

func TestChatAllocates(t *testing.T) {
	if rig.Race {
		t.Skip("the race detector empties pools")
	}
	c := prefix.Conversation{Messages: []prefix.Message{text("system", strings.Repeat("s", 1000)), text("user", "hello\xffworld")}}
	c.Messages = append(c.Messages, prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: strings.Repeat("picture", 1000)}}})
	c.Tools = []string{`{"name": "f", "parameters": {}}`}
	dst := make([]uint64, 0, 100)
	seed := seed(1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { dst, _ = prefix.AppendChat(dst[:0], seed, &c) }))
}

func FuzzChatSplit(f *testing.F) {
	f.Add("user", "hello", "a\xff\x05b", uint8(1))
	f.Fuzz(func(t *testing.T, role, a, b string, cut uint8) {
		c := prefix.Conversation{Messages: []prefix.Message{text(role, a), text(role, b)}}
		joined := a + b
		k := min(int(cut), len(joined))
		d := prefix.Conversation{Messages: []prefix.Message{text(role, joined[:k]), text(role, joined[k:])}}
		require.Equal(t, k == len(a), sum(c) == sum(d))
	})
}

func BenchmarkChat(b *testing.B) {
	tool := `{"type": "function", "function": {"name": "search", "description": "` + strings.Repeat("Looks things up. ", 20) +
		`", "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}}, "required": ["query"]}}}`
	c := prefix.Conversation{Messages: []prefix.Message{text("system", strings.Repeat("Be brief. ", 400))}}
	for range 20 {
		c.Messages = append(c.Messages, text("user", strings.Repeat("Why? ", 200)), text("assistant", strings.Repeat("Because. ", 200)))
	}
	for _, tools := range []int{0, 20} {
		c.Tools = slices.Repeat([]string{tool}, tools)
		b.Run(fmt.Sprintf("tools=%d", tools), func(b *testing.B) {
			b.ReportAllocs()
			var dst []uint64
			seed := seed(1)
			n := 0
			for b.Loop() {
				dst, n = prefix.AppendChat(dst[:0], seed, &c)
			}
			b.SetBytes(int64(n))
		})
	}
}
