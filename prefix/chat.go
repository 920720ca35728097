package prefix

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"

	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// Conversation is the prompt of a chat request, as far as it decides which
// blocks the prompt has. The zero value is an empty prompt.
type Conversation struct {
	// Tools are the JSON definitions of the tools, in the order given. Key
	// order and white space in them don't matter; the order of tools does. That
	// holds for up to 256 KiB of tools and arguments with 16,384 commas, colons
	// and opening brackets, nested up to a thousand levels; beyond that, the
	// text is hashed as it is.
	Tools    []string
	Messages []Message
}

// Message is one message of a [Conversation].
type Message struct {
	Role string
	// Name tells speakers of one role apart. Empty: none.
	Name string
	// Parts are the content. Content that is a plain string is one part of text.
	Parts []Part
	// ToolCalls are the tool calls in an assistant's message.
	ToolCalls []ToolCall
	// ToolCallID is the call that a tool's message answers. Empty: none.
	ToolCallID string
}

// Part is a piece of a message's content.
type Part struct {
	// Type is "text" or the API's name for the kind of media: "image_url",
	// "input_audio", "file". Empty: text.
	Type string
	// Content is the text; for other parts the URL, the data or whatever else
	// identifies the content. Text is hashed as it is. Everything else is
	// represented by a hash of Content, so that an image of several megabytes
	// does not look like a million tokens.
	Content string
}

// ToolCall is a call of a tool in an assistant's message.
type ToolCall struct {
	ID   string
	Name string
	// Arguments is the JSON text of the arguments; key order and white space
	// don't matter, as in tools. Text that is not JSON is hashed as it is.
	Arguments string
}

// AppendChat appends to dst the block hashes of the conversation's canonical
// form, and returns the extended slice and the length of that form in bytes,
// from which a gateway without a tokenizer can estimate the number of tokens.
//
// The canonical form is the sequence of all fields, tools first, as chat
// templates put them. A conversation that continues another one shares all its
// full blocks, even if it continues the text of the last part. Conversations
// that differ in any field differ from there on, because no text can imitate
// the boundary between two fields.
//
// Texts are hashed as they are given. Package transport passes them in JSON form, with
// the fewest and shortest escapes (a newline as \n, and nothing escaped that need not
// be), because that is how they appear in a body. To get the same blocks for a text
// that contains a newline or a quote, pass it in that form.
func AppendChat(dst []uint64, seed Seed, c *Conversation) (blocks []uint64, bytes int) {
	var h Hasher
	h.Reset(seed, dst)
	for _, tool := range c.Tools {
		h.WriteTool(tool)
	}
	for i := range c.Messages {
		h.WriteMessage(&c.Messages[i])
	}
	return h.Blocks(), h.Len()
}

// WriteTool adds the definition of a tool as [AppendChat] does, for callers who
// read a conversation piece by piece: tools first, then messages.
func (h *Hasher) WriteTool(definition string) {
	h.writeField(field{kind: toolField, text: definition})
}

// WriteMessage adds a message as [AppendChat] does. It keeps nothing of m.
func (h *Hasher) WriteMessage(m *Message) {
	m.fields(0, func(f field) bool {
		h.writeField(f)
		return true
	})
}

// field is a field of the canonical form: a border, the kind, the text. The
// border is a byte that never occurs in UTF-8; see writeText for text that is
// not UTF-8.
type field struct {
	kind    fieldKind
	message int // -1: a tool's definition
	index   int // of the tool, part or call
	text    string
}

type fieldKind byte

const (
	toolField fieldKind = iota + 1
	roleField
	nameField
	answersField
	textField
	mediaTypeField
	mediaField
	callField
	callNameField
	argumentsField
)

const border = 0xff

// writeField writes the field's canonical form: JSON in one order and without
// white space, media as a hash, and text as it is.
func (h *Hasher) writeField(f field) {
	// Kinds are above zero, so a border and a kind differ from a border in the
	// text, which is escaped as border, zero.
	if f.kind.isPlain() && h.writeShort(f.kind, f.text) {
		return
	}
	h.WriteString(borders[f.kind])
	switch f.kind {
	case toolField, argumentsField:
		// A canonical form is valid UTF-8, and so contains no border.
		if !writeCanonical(f.text, &h.json, h.write) {
			h.writeText(bytesOf(f.text))
		}
	case mediaField:
		h.writeSum(f.text)
	default:
		h.writeText(bytesOf(f.text))
	}
}

// isPlain reports whether the text of a field is written as it is.
func (k fieldKind) isPlain() bool {
	return k != toolField && k != argumentsField && k != mediaField
}

// writeShort writes a field that fits into the current block and contains no
// border, such as most roles, names and numbers.
func (h *Hasher) writeShort(kind fieldKind, text string) bool {
	const most = 32
	end := h.n + 2 + len(text)
	if len(text) > most || end >= BlockBytes || h.chain.Secret == nil {
		return false
	}
	to := h.partial[h.n:end]
	for i := range len(text) {
		if text[i] == border {
			return false
		}
		to[2+i] = text[i]
	}
	to[0], to[1] = border, byte(kind)
	h.n = end
	h.written += len(to)
	return true
}

// writeText writes text, adding a zero after each border byte.
func (h *Hasher) writeText(p []byte) {
	if bytes.IndexByte(p, border) < 0 {
		h.write(p)
		return
	}
	h.writeBorders(p)
}

func (h *Hasher) writeBorders(p []byte) {
	var some [256]byte
	n := 0
	for _, b := range p {
		some[n] = b
		n++
		if b == border {
			some[n] = 0
			n++
		}
		if n >= len(some)-1 {
			h.write(some[:n])
			n = 0
		}
	}
	h.write(some[:n])
}

// writeSum writes a hash of media as mediaBytes hexadecimal digits.
func (h *Hasher) writeSum(content string) {
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], blockhash.Sum(h.chain.Secret, bytesOf(content)))
	var digits [mediaBytes]byte
	hex.Encode(digits[:], sum[:])
	h.write(digits[:])
}

const mediaBytes = 16

var borders = func() (b [argumentsField + 1]string) {
	for k := range b {
		b[k] = string([]byte{border, byte(k)})
	}
	return b
}()

// fields calls yield with every field as given, in the order of the canonical
// form, until yield returns false.
func (c *Conversation) fields(yield func(field) bool) {
	for i, tool := range c.Tools {
		if !yield(field{toolField, -1, i, tool}) {
			return
		}
	}
	for i := range c.Messages {
		if !c.Messages[i].fields(i, yield) {
			return
		}
	}
}

func (m *Message) fields(i int, yield func(field) bool) bool {
	if !yield(field{roleField, i, 0, m.Role}) {
		return false
	}
	if m.Name != "" && !yield(field{nameField, i, 0, m.Name}) {
		return false
	}
	if m.ToolCallID != "" && !yield(field{answersField, i, 0, m.ToolCallID}) {
		return false
	}
	for j, p := range m.Parts {
		if p.isText() {
			if !yield(field{textField, i, j, p.Content}) {
				return false
			}
			continue
		}
		if !yield(field{mediaTypeField, i, j, p.Type}) || !yield(field{mediaField, i, j, p.Content}) {
			return false
		}
	}
	for j, t := range m.ToolCalls {
		if !yield(field{callField, i, j, t.ID}) ||
			!yield(field{callNameField, i, j, t.Name}) ||
			!yield(field{argumentsField, i, j, t.Arguments}) {
			return false
		}
	}
	return true
}

func (p *Part) isText() bool { return p.Type == "" || p.Type == "text" }
