package prefix

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"sync"

	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// Message is one message of a chat, for [Hasher.WriteMessage].
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
	// Arguments is the JSON text of the arguments, hashed as tools are.
	Arguments string
}

// WriteTool adds the JSON definition of a tool. White space between its tokens doesn't
// matter; the order of keys, and how strings are escaped, do. Text that is not JSON is
// hashed as it is, and so is what exceeds 256 KiB of tools and arguments with white space.
//
// A chat's blocks are those of all its fields, as chat templates put them: tools first, then
// messages. A conversation that continues another one shares all its full blocks, even if
// it continues the text of the last part. Conversations that differ in any field differ
// from there on, because no text can imitate the boundary between two fields.
//
// Texts are hashed as they are given. Package transport passes them in JSON form, with
// the fewest and shortest escapes (a newline as \n, and nothing escaped that need not
// be), because that is how they appear in a body. To get the same blocks for a text
// that contains a newline or a quote, pass it in that form.
func (h *Hasher) WriteTool(definition string) { h.writeJSON(toolField, definition) }

// WriteMessage adds a message. It keeps nothing of m.
func (h *Hasher) WriteMessage(m *Message) {
	h.writeField(roleField, m.Role)
	if m.Name != "" {
		h.writeField(nameField, m.Name)
	}
	if m.ToolCallID != "" {
		h.writeField(answersField, m.ToolCallID)
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Type == "" || p.Type == "text" {
			h.writeField(textField, p.Content)
			continue
		}
		h.writeField(mediaTypeField, p.Type)
		h.write([]byte{border, byte(mediaField)})
		h.writeSum(p.Content)
	}
	for i := range m.ToolCalls {
		c := &m.ToolCalls[i]
		h.writeField(callField, c.ID)
		h.writeField(callNameField, c.Name)
		h.writeJSON(argumentsField, c.Arguments)
	}
}

// A field is written as a border, its kind and its text. The border is a byte that
// never occurs in UTF-8; see writeText for text that is not UTF-8.
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

// writeField writes a field whose text counts as it is.
func (h *Hasher) writeField(kind fieldKind, text string) {
	// Kinds are above zero, so a border and a kind differ from a border in the
	// text, which is escaped as border, zero.
	h.write([]byte{border, byte(kind)})
	h.writeText(bytesOf(text))
}

// writeJSON writes a field without the white space between tokens of JSON.
func (h *Hasher) writeJSON(kind fieldKind, text string) {
	h.write([]byte{border, byte(kind)})
	p := bytesOf(text)
	if !spaced(p) || len(p) > maxCompact-h.compacted {
		h.writeText(p)
		return
	}
	h.compacted += len(p)
	b := compactBuffers.Get().(*bytes.Buffer)
	if json.Compact(b, p) == nil {
		h.writeText(b.Bytes())
	} else {
		h.writeText(p)
	}
	b.Reset()
	compactBuffers.Put(b)
}

// spaced reports whether JSON has white space outside its strings.
func spaced(p []byte) bool {
	for i := 0; i < len(p); i++ {
		switch {
		case p[i] <= ' ':
			return true
		case p[i] == '"':
			for i++; i < len(p) && p[i] != '"'; i++ {
				if p[i] == '\\' {
					i++
				}
			}
		}
	}
	return false
}

// maxCompact limits the JSON of one conversation that is compacted, which costs many times
// as much as hashing it; real tools are shorter. It bounds the buffers, too.
const maxCompact = 256 << 10

var compactBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

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
