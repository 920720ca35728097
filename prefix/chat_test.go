package prefix_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
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

func TestChatAllocates(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector empties pools")
	c := prefix.Conversation{Messages: []prefix.Message{text("system", strings.Repeat("s", 1000)), text("user", "hello\xffworld")}}
	c.Messages = append(c.Messages, prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: strings.Repeat("picture", 1000)}}})
	c.Tools = []string{`{"name": "f", "parameters": {}}`}
	dst := make([]uint64, 0, 100)
	seed := seed(1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { dst, _ = prefix.AppendChat(dst[:0], seed, &c) }))
}
