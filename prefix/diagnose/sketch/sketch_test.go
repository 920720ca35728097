package sketch_test

import (
	"encoding/json"
	"math/bits"
	"strings"
	"testing"

	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose/sketch"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var key = prefix.NewKey()

// plain sketches a prompt of plain text.
func plain(key prefix.Key, content string) recording.Piece {
	s := sketch.New(key, false)
	s.Message(&prefix.Message{Parts: []prefix.Part{{Content: content}}}, len(content))
	return s.Prompt.Messages[0]
}

func sketched(content string) recording.Piece { return plain(key, content) }

func TestPieces(t *testing.T) {
	s := sketch.New(key, false)
	s.Tool(`{"name":"a"}`, 14)
	s.Message(&prefix.Message{Role: "system", Parts: []prefix.Part{{Content: "It is 10:30."}}}, 40)
	s.Message(&prefix.Message{Role: strings.Repeat("r", 40), Parts: []prefix.Part{{Type: "image_url", Content: "data:"}, {Type: "text", Content: "b"}}}, 80)
	p := s.Prompt
	require.Len(t, p.Tools, 1)
	require.Len(t, p.Messages, 2)
	assert.Equal(t, []int{12, 12, 1}, []int{p.Tools[0].Bytes, p.Messages[0].Bytes, p.Messages[1].Bytes}, "a picture has no text")
	assert.Equal(t, []int{14, 40, 80}, []int{p.Tools[0].End, p.Messages[0].End, p.Messages[1].End})
	assert.Equal(t, []string{"", "system", strings.Repeat("r", 32)}, []string{p.Tools[0].Role, p.Messages[0].Role, p.Messages[1].Role})
	require.Len(t, p.Messages[0].Values, 1)
	assert.Equal(t, "timestamp", p.Messages[0].Values[0].Kind)
	assert.Equal(t, 6, p.Messages[0].Values[0].At)
	assert.False(t, p.Partial)
	assert.NotEqual(t, s.Name("a"), s.Name("b"))
	assert.Zero(t, s.Name(""))
}

// Of a long prompt the head is split into words, and the rest is compared as it is, over all
// messages together, however long its tools are.
func TestLongPromptsAreSplitAtTheirHead(t *testing.T) {
	ask := func(texts ...string) []recording.Piece {
		s := sketch.New(key, false)
		s.Tool(strings.Repeat("word ", 13<<10), 0)
		for _, text := range texts {
			s.Message(&prefix.Message{Parts: []prefix.Part{{Content: text}}}, 0)
		}
		return s.Prompt.Messages
	}
	filler := strings.Repeat("word ", 13<<10) // 65 KB
	for name, c := range map[string]struct {
		a, b            []string
		words, template bool // of the last message: unchanged
	}{
		"white space in the head": {[]string{"a b" + filler}, []string{"a  b" + filler[:len(filler)-1]}, false, false}, // the head ends elsewhere
		"a date in the head":      {[]string{"2025-01-15" + filler}, []string{"2025-01-16" + filler}, false, true},
		"white space in the rest": {[]string{filler + "a b"}, []string{filler + "a  b"}, false, false},
		"a date in the rest":      {[]string{filler + "2025-01-15"}, []string{filler + "2025-01-16"}, false, false},
		"after a long message":    {[]string{filler, "2025-01-15"}, []string{filler, "2025-01-16"}, false, false},
		"nothing":                 {[]string{filler, filler + "2025-01-15"}, []string{filler, filler + "2025-01-15"}, true, true},
	} {
		a, b := ask(c.a...), ask(c.b...)
		last, other := a[len(a)-1], b[len(b)-1]
		assert.Equal(t, name == "nothing", last.Hash == other.Hash, name)
		assert.Equal(t, c.words, last.Words == other.Words, name)
		assert.Equal(t, c.template, last.Template == other.Template, name)
	}
	assert.Empty(t, ask(filler, "2025-01-15")[1].Values)
}

// Of messages that are encoded, no more is decoded than is split.
func TestTheBeginningIsDecoded(t *testing.T) {
	s, decoded := sketch.New(key, false), 0
	s.Decode = func(text string) string {
		decoded += len(text)
		return strings.ReplaceAll(text, `\n`, "\n")
	}
	for _, text := range []string{`It is\n10:30.`, strings.Repeat(`word\n`, 16<<10)} {
		s.Message(&prefix.Message{Parts: []prefix.Part{{Content: text}}}, 0)
	}
	short, want := s.Prompt.Messages[0], sketched("It is\n10:30.")
	assert.Equal(t, []any{want.Bytes, want.Words, want.Template, want.Values}, []any{short.Bytes, short.Words, short.Template, short.Values})
	assert.Equal(t, 16<<10, decoded)
}

// What is not text, and where a field ends, affects only the hash of the whole.
func TestFieldsAreNotText(t *testing.T) {
	one := func(m prefix.Message) recording.Piece {
		s := sketch.New(key, false)
		s.Message(&m, 0)
		return s.Prompt.Messages[0]
	}
	parts := func(parts ...string) (all []prefix.Part) {
		for _, p := range parts {
			all = append(all, prefix.Part{Content: p})
		}
		return all
	}
	base := one(prefix.Message{Role: "user", Parts: parts("ab")})
	for name, m := range map[string]prefix.Message{
		"role":    {Role: "system", Parts: parts("ab")},
		"name":    {Role: "user", Name: "ann", Parts: parts("ab")},
		"answers": {Role: "user", ToolCallID: "x", Parts: parts("ab")},
		"parts":   {Role: "user", Parts: parts("a", "b")},
		"picture": {Role: "user", Parts: append(parts("ab"), prefix.Part{Type: "image", Content: "x"})},
		"call":    {Role: "user", ToolCalls: []prefix.ToolCall{{ID: "1", Name: "a", Arguments: "b"}}},
	} {
		p := one(m)
		assert.NotEqual(t, base.Hash, p.Hash, name)
		assert.Equal(t, base.Words, p.Words, name)
		assert.Equal(t, base.Template, p.Template, name)
	}
	assert.Equal(t, base, one(prefix.Message{Role: "user", Parts: parts("ab")}))
}

func TestWhatDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		a, b            string
		words, template bool   // unchanged
		kind            string // of the first value that differs
		at              int
	}{
		"timestamp":       {"now 2025-01-15T10:30:00Z, go", "now 2025-01-15T10:31:00Z, go", false, true, "timestamp", 4},
		"epoch":           {"ts=1736937000.", "ts=1736937001.", false, true, "timestamp", 3},
		"date in words":   {"It is Wednesday, January 15, 2025.", "It is Thursday, February 16, 2025.", false, true, "timestamp", 6},
		"uuid":            {"id 6ba7b810-9dad-11d1-80b4-00c04fd430c8 x", "id 7ba7b810-9dad-11d1-80b4-00c04fd430c8 x", false, true, "identifier", 3},
		"number":          {"turn 7 of 9", "turn 8 of 9", false, true, "number", 5},
		"one and another": {"turn 7 at 10:30", "turn 7 at 11:30", false, true, "timestamp", 10},
		"wrapped":         {"be polite and\nbrief", "be polite\nand brief", true, true, "", 0},
		"indented":        {"a b", "  a\t b\u00a0 ", true, true, "", 0},
		"another word":    {"be polite", "be rude", false, false, "", 0},
		"dots":            {"a... 1", "a.. 1", false, false, "", 0},
		"length of value": {"turn 9 of x", "turn 10 of x", false, true, "number", 5},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sketched(c.a), sketched(c.b)
			assert.NotEqual(t, a.Hash, b.Hash)
			assert.Equal(t, c.words, a.Words == b.Words)
			assert.Equal(t, c.template, a.Template == b.Template)
			for i := range a.Values {
				if a.Values[i].Hash != b.Values[i].Hash {
					assert.Equal(t, c.kind, b.Values[i].Kind)
					assert.Equal(t, c.at, b.Values[i].At)
					return
				}
			}
			assert.Empty(t, c.kind)
		})
	}
}

func alike(a, b []uint32) (same int) {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				same++
			}
		}
	}
	return same
}

// The shapes of texts that are mostly the same have most in common, those of others nothing.
func TestShapes(t *testing.T) {
	vocabulary := strings.Fields("the quick brown fox jumps over a lazy dog while seven wizards quietly mix potions in old towers near the sea and nobody asks why")
	text := func(seed uint64) []string {
		all := make([]string, 120)
		for i := range all {
			seed = bits.RotateLeft64(seed*0x9e3779b97f4a7c15+uint64(i), 23)
			all[i] = vocabulary[seed%uint64(len(vocabulary))]
		}
		return all
	}
	a := text(1)
	edited := append([]string{}, a...)
	edited[3] = "purple"
	assert.GreaterOrEqual(t, alike(sketched(strings.Join(a, " ")).Shape, sketched(strings.Join(edited, "\n")).Shape), 5)
	assert.Less(t, alike(sketched(strings.Join(a, " ")).Shape, sketched(strings.Join(text(2), " ")).Shape), 2)
	assert.Empty(t, sketched("too short").Shape)
}

// Text is recorded only on request, however it is cut, and then up to the limit.
func TestText(t *testing.T) {
	s := sketch.New(key, false)
	s.Message(&prefix.Message{Role: "user", Parts: []prefix.Part{{Content: "the secret ingredient is cardamom 20417"}}}, 10)
	b, err := json.Marshal(s.Prompt)
	require.NoError(t, err)
	for _, word := range []string{"secret", "cardamom", "20417"} {
		assert.NotContains(t, string(b), word)
	}
	s = sketch.New(key, true)
	const most = 1 << 20
	for _, content := range []string{strings.Repeat("a", most-1), "bcd", "e"} {
		s.Message(&prefix.Message{Parts: []prefix.Part{{Content: content}}}, 0)
	}
	m := s.Prompt.Messages
	assert.Equal(t, []int{most - 1, 1, 0}, []int{len(m[0].Text), len(m[1].Text), len(m[2].Text)})
	assert.Equal(t, "b", m[1].Text)
	assert.Equal(t, 3, m[1].Bytes)
}

func TestManyPieces(t *testing.T) {
	s := sketch.New(key, false)
	s.Tool("{}", 2)
	for i := range 4096 {
		require.False(t, s.Prompt.Partial)
		s.Message(&prefix.Message{Role: "user"}, 10+i)
	}
	require.True(t, s.Prompt.Partial)
	require.Len(t, s.Prompt.Messages, 4095)
	s.Tool("{}", 9999)
	require.Len(t, s.Prompt.Tools, 1)
}

// Any text can be sketched and encoded; equal texts have equal sketches, and
// another key gives different ones.
func TestAnyText(t *testing.T) {
	other := prefix.NewKey()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune("a1-:. \n\xffé"))),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		p := sketched(text)
		require.Equal(t, p, sketched(text))
		require.Equal(t, len(text), p.Bytes)
		require.LessOrEqual(t, len(p.Values), 32)
		at := -1
		for _, v := range p.Values {
			require.Greater(t, v.At, at)
			require.Less(t, v.At, len(text))
			at = v.At
		}
		require.NotEqual(t, p.Hash, plain(other, text).Hash)
	})
}
