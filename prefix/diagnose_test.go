package prefix_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick/prefix"
)

func chat(messages ...prefix.Message) *prefix.Conversation {
	return &prefix.Conversation{Messages: messages}
}

func TestFirstBreakCauses(t *testing.T) {
	hello := text("user", "Hello, I would like to know something.")
	for _, tc := range []struct {
		name       string
		prev, next *prefix.Conversation
		want       prefix.Break
	}{
		{"the paper's example",
			chat(text("system", "You are a helpful agent. Current time: 2025-01-15T10:30:00Z. Session: abc-123."), hello),
			chat(text("system", "You are a helpful agent. Current time: 2025-01-15T10:31:07Z. Session: abc-123."), hello),
			prefix.Break{Message: 0, Field: "text", Offset: 54, Cause: prefix.Timestamp, Old: "2025-01-15T10:30:00Z", New: "2025-01-15T10:31:07Z"}},
		{"time of day", chat(text("system", "It is 10:30 now.")), chat(text("system", "It is 11:30 now.")),
			prefix.Break{Field: "text", Offset: 7, Cause: prefix.Timestamp, Old: "10:30", New: "11:30"}},
		{"seconds since the epoch", chat(text("system", "ts=1736937000.25")), chat(text("system", "ts=1736937001.75")),
			prefix.Break{Field: "text", Offset: 12, Cause: prefix.Timestamp, Old: "1736937000.25", New: "1736937001.75"}},
		{"uuid", chat(text("system", "Request 6ba7b810-9dad-11d1-80b4-00c04fd430c8.")), chat(text("system", "Request 6ba7b811-9dad-11d1-80b4-00c04fd430c8.")),
			prefix.Break{Field: "text", Offset: 15, Cause: prefix.Identifier, Old: "6ba7b810-9dad-11d1-80b4-00c04fd430c8", New: "6ba7b811-9dad-11d1-80b4-00c04fd430c8"}},
		{"counter", chat(hello, text("user", "This is message 17 of many")), chat(hello, text("user", "This is message 18 of many")),
			prefix.Break{Message: 1, Field: "text", Offset: 17, Cause: prefix.Number, Old: "17", New: "18"}},
		{"wrapped anew", chat(text("system", "Be polite and\nbe brief.")), chat(text("system", "Be polite\nand be brief.")),
			prefix.Break{Field: "text", Offset: 9, Cause: prefix.Whitespace, Old: "polite", New: "polite"}},
		{"other bytes that are no text", chat(text("system", "a \xfe b")), chat(text("system", "a  \xfd b")),
			prefix.Break{Field: "text", Offset: 2, Cause: prefix.Reworded}},
		{"a picture that begins like another",
			chat(prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: ""}}}),
			chat(prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: "b"}}}),
			prefix.Break{Field: "media", Cause: prefix.Reworded}},
		{"a template that drifted", chat(text("system", "You are an assistant.")), chat(text("system", "You are a helper.")),
			prefix.Break{Field: "text", Offset: 9, Cause: prefix.Reworded, Old: "an", New: "a"}},
		{"another role", chat(text("system", "x")), chat(text("developer", "x")),
			prefix.Break{Field: "role", Cause: prefix.Reworded, Old: "system", New: "developer"}},
		{"tools in another order",
			&prefix.Conversation{Tools: []string{`{"name":"a"}`, `{"name":"b"}`}, Messages: []prefix.Message{hello}},
			&prefix.Conversation{Tools: []string{`{"name":"b"}`, `{"name":"a"}`}, Messages: []prefix.Message{hello}},
			prefix.Break{Message: -1, Field: "tool", Offset: 9, Cause: prefix.Reordered, Old: "a", New: "b"}},
		{"a new tool",
			&prefix.Conversation{Tools: []string{`{"name":"a"}`}, Messages: []prefix.Message{hello}},
			&prefix.Conversation{Tools: []string{`{"name":"a"}`, `{"name":"b"}`}, Messages: []prefix.Message{hello}},
			prefix.Break{Message: -1, Index: 1, Field: "tool", Cause: prefix.Reworded}},
		{"a window over the history",
			chat(text("system", "s"), text("user", "the first question"), text("assistant", "the first answer"), text("user", "the second question")),
			chat(text("system", "s"), text("user", "the second question"), text("assistant", "the second answer")),
			prefix.Break{Message: 1, Field: "text", Offset: 4, Cause: prefix.Dropped, Old: "first", New: "second"}},
		{"a message put in",
			chat(text("system", "s"), text("user", "the first question")),
			chat(text("system", "s"), text("user", "Memory: likes tea."), text("user", "the first question")),
			prefix.Break{Message: 1, Field: "text", Cause: prefix.Inserted, Old: "the", New: "Memory"}},
		{"what was said before, again",
			chat(hello, text("user", "something else entirely")), chat(hello, hello),
			prefix.Break{Message: 1, Field: "text", Cause: prefix.Reworded, Old: "something", New: "Hello"}},
		{"a short word that comes again anyway",
			chat(hello, text("user", "yes"), text("assistant", "Shall I go on?"), text("user", "no")), chat(hello, text("user", "no")),
			prefix.Break{Message: 1, Field: "text", Cause: prefix.Reworded, Old: "yes", New: "no"}},
		{"another picture",
			chat(prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: "a"}}}, hello),
			chat(prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: "b"}}}, hello),
			prefix.Break{Field: "media", Cause: prefix.Reworded}},
		{"arguments",
			chat(prefix.Message{ToolCalls: []prefix.ToolCall{{}, {Arguments: `{"n":1}`}}}, hello),
			chat(prefix.Message{ToolCalls: []prefix.ToolCall{{}, {Arguments: `{"n":2}`}}}, hello),
			prefix.Break{Field: "arguments", Index: 1, Offset: 5, Cause: prefix.Number, Old: "1", New: "2"}},
		{"a part less",
			chat(prefix.Message{Role: "user", Parts: []prefix.Part{{Content: "a"}, {Content: "b"}}}, hello),
			chat(text("user", "a"), hello),
			prefix.Break{Index: 1, Field: "text", Cause: prefix.Reworded, Old: "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := prefix.FirstBreak(tc.prev, tc.next)
			require.True(t, ok)
			if tc.want.Field == "media" {
				assert.NotEqual(t, got.Old, got.New)
				got.Old, got.New = "", "" // hashes
			}
			got.SharedBytes = 0
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestFirstBreakNone(t *testing.T) {
	c := chat(text("system", "s"), text("user", "a question"))
	longer := chat(append(slices.Clone(c.Messages), text("assistant", "an answer"))...)
	grown := chat(text("system", "s"), text("user", "a question and more"))
	for _, pair := range [][2]*prefix.Conversation{
		{c, c}, {c, longer}, {longer, c}, {c, grown}, {grown, c}, {{}, c}, {{}, {}},
	} {
		_, broken := prefix.FirstBreak(pair[0], pair[1])
		assert.False(t, broken)
	}
	_, broken := prefix.FirstBreak(longer, grown)
	assert.True(t, broken)
}

// SharedBytes agrees with the blocks: those before it are equal, and the one
// that contains it is not.
func TestFirstBreakIsWhereBlocksDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawChat(t), drawChat(t)
		if rapid.Bool().Draw(t, "related") && len(a.Messages) > 0 {
			b = prefix.Conversation{Tools: a.Tools, Messages: slices.Clone(a.Messages)}
			b.Messages[rapid.IntRange(0, len(b.Messages)-1).Draw(t, "at")] = drawMessage(t)
		}
		br, broken := prefix.FirstBreak(&a, &b)
		x, n := prefix.AppendChat(nil, seed(1), &a)
		y, m := prefix.AppendChat(nil, seed(1), &b)
		shared := min(n, m)
		if broken {
			shared = br.SharedBytes
			require.Less(t, shared, min(n, m))
		}
		for i := range min(len(x), len(y)) {
			require.Equal(t, (i+1)*prefix.BlockBytes <= shared, x[i] == y[i], "block %d, %d bytes shared", i, shared)
		}
	})
}

// If the kinds of two fields differ, the border before them is shared; and a
// border in a text is written as one and a zero.
func TestFirstBreakCountsTheBorder(t *testing.T) {
	for _, tc := range []struct {
		prev, next prefix.Message
		shared     string
	}{
		{prefix.Message{Role: "user", Name: "ann"}, prefix.Message{Role: "user", Parts: []prefix.Part{{Content: "Hi"}}}, "\xff.user\xff"},
		{prefix.Message{Role: "us\xffer", Name: "ann"}, prefix.Message{Role: "us", Name: "ann"}, "\xff.us\xff"},
		{prefix.Message{Role: "us", Name: "ann"}, prefix.Message{Role: "user", Name: "ann"}, "\xff.us"},
		{prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: "aa"}}},
			prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: "ab"}}}, "\xff.user\xff.image_url\xff."},
	} {
		br, broken := prefix.FirstBreak(
			&prefix.Conversation{Messages: []prefix.Message{tc.prev}},
			&prefix.Conversation{Messages: []prefix.Message{tc.next}})
		require.True(t, broken)
		assert.Equal(t, len(tc.shared), br.SharedBytes)
	}
}

func TestCauseString(t *testing.T) {
	assert.Equal(t, "timestamp", prefix.Timestamp.String())
	assert.Equal(t, "inserted", prefix.Inserted.String())
	assert.Equal(t, "unknown", prefix.Cause(99).String())
}
