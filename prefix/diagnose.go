package prefix

import (
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick/internal/words"
)

// Cause is what broke a prefix, as far as the texts show.
type Cause uint8

// The causes of a [Break].
const (
	// Reworded: other words. A template has changed, or it is another prompt.
	Reworded Cause = iota
	// Timestamp: a date, a time of day or seconds since the epoch.
	Timestamp
	// Identifier: a UUID, a hash or another made-up name.
	Identifier
	// Number: a number, such as a counter.
	Number
	// Whitespace: the same words, wrapped or indented differently.
	Whitespace
	// Reordered: the same tools in another order.
	Reordered
	// Dropped: messages that were there are missing, as if a window slid over
	// the history.
	Dropped
	// Inserted: new messages before old ones.
	Inserted
)

// String returns the cause in lower case.
func (c Cause) String() string {
	names := [...]string{"reworded", "timestamp", "identifier", "number", "whitespace", "reordered", "dropped", "inserted"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// Break is the place where two conversations that should share a prefix
// diverge: nothing after it can be found in a cache.
type Break struct {
	// Message is the index of the message; -1 if the tools differ.
	Message int
	// Index is that of the part, the tool or the tool call.
	Index int
	// Field names what differs: "tool", "role", "name", "text", "media",
	// "tool call" or "arguments".
	Field string
	// Offset is the byte in the field's canonical text, 0 in media, and
	// SharedBytes that in the whole canonical form, everything before which is
	// still shared.
	Offset      int
	SharedBytes int
	Cause       Cause
	// Old and New are the words that differ, or the hashes of media, cut to 64
	// bytes; empty where a conversation has no word there.
	Old, New string
}

// FirstBreak finds where next, the later of two conversations, stops sharing
// the prefix of prev, and guesses why. It returns false if one continues the
// other, so that nothing is lost. It is for finding out why prompts miss the
// cache, not for the hot path.
func FirstBreak(prev, next *Conversation) (Break, bool) {
	a, b := collect(prev), collect(next)
	var h Hasher
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x.kind == y.kind && x.text == y.text {
			h.writeCollected(x)
			continue
		}
		shared := h.Len() + 1 // the border before the kinds, which differ
		offset := 0
		if x.kind == y.kind && x.kind == mediaField {
			h.WriteString(borders[mediaField])
			shared = h.Len() // media count as a whole
		} else if x.kind == y.kind {
			offset = words.Common(x.text, y.text)
			if offset == len(x.text) && i == len(a)-1 || offset == len(y.text) && i == len(b)-1 {
				return Break{}, false
			}
			h.WriteString(borders[x.kind])
			h.writeText(bytesOf(x.text[:offset]))
			shared = h.Len()
			if offset == len(x.text) && y.text[offset] == border || offset == len(y.text) && x.text[offset] == border {
				shared++ // a border in one text, the next field's border in the other
			}
		}
		return explain(prev, next, a[i], b[i], offset, shared), true
	}
	return Break{}, false
}

// collect returns all fields, JSON in its canonical form.
func collect(c *Conversation) []field {
	var all []field
	var json budget
	c.fields(func(f field) bool {
		if f.kind == toolField || f.kind == argumentsField {
			f.text = json.text(f.text)
		}
		all = append(all, f)
		return true
	})
	return all
}

// writeCollected is writeField for fields that were collected.
func (h *Hasher) writeCollected(f field) {
	if f.kind == mediaField {
		h.writeField(f)
		return
	}
	h.WriteString(borders[f.kind])
	h.writeText(bytesOf(f.text))
}

func explain(prev, next *Conversation, x, y field, offset, shared int) Break {
	at := y
	if x.message < y.message {
		at = x
	}
	br := Break{Message: at.message, Index: at.index, Field: at.kind.name(), Offset: offset, SharedBytes: shared}
	// One conversation has already reached its next message, so it has nothing at
	// the place of the break.
	if x.message == at.message {
		br.Old = x.wordAt(offset)
	}
	if y.message == at.message {
		br.New = y.wordAt(offset)
	}
	switch {
	case at.message < 0:
		if sameTools(prev.Tools, next.Tools) {
			br.Cause = Reordered
		}
	case x.message != y.message:
	case holds(next.Messages, x.message+1, &prev.Messages[x.message]):
		br.Cause = Inserted
	case holds(prev.Messages, y.message+1, &next.Messages[y.message]):
		br.Cause = Dropped
	}
	if br.Cause == Reworded && x.kind == y.kind && x.kind != mediaField {
		br.Cause = compare(x.text, y.text, br.Old, br.New)
	}
	br.Old = br.Old[:min(len(br.Old), 64)]
	br.New = br.New[:min(len(br.New), 64)]
	return br
}

func (f *field) wordAt(offset int) string {
	if f.kind == mediaField {
		return strconv.FormatUint(xxhash.Sum64String(f.text), 16)
	}
	return words.At(f.text, offset)
}

func (k fieldKind) name() string {
	switch k {
	case toolField:
		return "tool"
	case roleField:
		return "role"
	case nameField:
		return "name"
	case mediaTypeField, mediaField:
		return "media"
	case callField, callNameField, answersField:
		return "tool call"
	case argumentsField:
		return "arguments"
	}
	return "text"
}

func sameTools(a, b []string) bool {
	canonical := func(tools []string) []string {
		c := make([]string, len(tools))
		for i, t := range tools {
			c[i] = canonicalJSON(t)
		}
		slices.Sort(c)
		return c
	}
	return slices.Equal(canonical(a), canonical(b))
}

// holds reports whether one of messages[from:] is m. Very short messages repeat
// anyway ("yes") and prove nothing.
func holds(messages []Message, from int, m *Message) bool {
	length := 0
	for _, p := range m.Parts {
		length += len(p.Content)
	}
	if length < 12 && len(m.ToolCalls) == 0 {
		return false
	}
	for i := from; i < len(messages); i++ {
		o := &messages[i]
		if o.Role == m.Role && o.Name == m.Name && o.ToolCallID == m.ToolCallID &&
			slices.Equal(o.Parts, m.Parts) && slices.Equal(o.ToolCalls, m.ToolCalls) {
			return true
		}
	}
	return false
}

func compare(a, b, wordA, wordB string) Cause {
	switch {
	case words.Same(a, b):
		return Whitespace
	case words.Timestamp(wordA) && words.Timestamp(wordB):
		return Timestamp
	case words.Number(wordA) && words.Number(wordB):
		return Number
	case words.Identifier(wordA) && words.Identifier(wordB):
		return Identifier
	}
	return Reworded
}
