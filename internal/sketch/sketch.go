// Package sketch reduces a prompt to what a recording keeps: for each tool and
// message its length and a few hashes, from which package prefix/diagnose finds
// where two prompts diverge and why, without their text.
package sketch

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick/internal/words"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/recording"
)

const (
	maxRole = 32
	// shapeSize hashes suffice to tell whether half of two texts is equal, give or
	// take a sixth; texts shorter than shapeBytes have too few consecutive words
	// for that.
	shapeSize  = 8
	shapeBytes = 200
	shapeWords = 4
	// MaxPieces limits the tools and messages of a sketch; longer prompts are partial.
	MaxPieces = 4096
	// MaxText limits the text of a prompt that is kept on request.
	MaxText = 1 << 20
)

// Sketcher sketches a prompt piece by piece: tools first, then messages. It takes
// time linear in their text. It is not safe for concurrent use.
type Sketcher struct {
	prompt *recording.Prompt // allocated separately, because only this is kept
	key    [sha256.Size]byte
	mix    uint64
	text   int // bytes of text that may still be kept

	exact              hash.Hash
	squeezed, template stream
	content            []byte // of the current piece
	buffer             []byte
}

// New returns a sketcher whose hashes depend on the key, and which keeps text on
// request.
func New(key prefix.Key, text bool) *Sketcher {
	s := &Sketcher{prompt: new(recording.Prompt), key: sha256.Sum256([]byte("endpick sketch 2\n" + key.Reveal())), exact: sha256.New()}
	s.squeezed.Hash, s.template.Hash = sha256.New(), sha256.New()
	s.mix = binary.LittleEndian.Uint64(s.key[:])
	if text {
		s.text = MaxText
	}
	return s
}

// Prompt returns the sketch.
func (s *Sketcher) Prompt() *recording.Prompt { return s.prompt }

// Name is the hash of a client's name for something, such as a salt; 0: none.
func (s *Sketcher) Name(name string) recording.Hash {
	if name == "" {
		return 0
	}
	s.begin("name", name)
	return sum(s.exact)
}

// Cut says that the prompt has more than what was sketched.
func (s *Sketcher) Cut() { s.prompt.Partial = true }

// Tool adds the definition of a tool; end is where it ends in the text that is
// cut into blocks.
func (s *Sketcher) Tool(definition string, end int) {
	if s.full() {
		return
	}
	s.begin("tool")
	s.content = append(s.content, definition...)
	s.prompt.Tools = append(s.prompt.Tools, s.end("", end))
}

// Message adds a message. It keeps nothing of m.
func (s *Sketcher) Message(m *prefix.Message, end int) {
	if s.full() {
		return
	}
	s.begin(m.Role, m.Name, m.ToolCallID)
	for _, p := range m.Parts {
		if p.Type == "" || p.Type == "text" {
			s.content = append(s.content, p.Content...)
			s.exact.Write([]byte{0xff})
			continue
		}
		s.field(p.Type, p.Content)
	}
	for _, c := range m.ToolCalls {
		s.field(c.ID)
		s.content = append(append(s.content, c.Name...), c.Arguments...)
	}
	s.prompt.Messages = append(s.prompt.Messages, s.end(m.Role, end))
}

func (s *Sketcher) full() bool {
	if len(s.prompt.Tools)+len(s.prompt.Messages) < MaxPieces {
		return false
	}
	s.Cut()
	return true
}

// Text adds a prompt of plain text.
func (s *Sketcher) Text(text string, end int) {
	s.begin()
	s.content = append(s.content, text...)
	s.prompt.Messages = append(s.prompt.Messages, s.end("", end))
}

func (s *Sketcher) begin(fields ...string) {
	s.content = s.content[:0]
	for _, h := range [...]hash.Hash{s.exact, s.squeezed.Hash, s.template.Hash} {
		h.Reset()
		h.Write(s.key[:])
	}
	s.field(fields...)
}

// field adds fields other than its text to the hash of the whole piece.
func (s *Sketcher) field(fields ...string) {
	for _, f := range fields {
		s.buffer = binary.LittleEndian.AppendUint64(s.buffer[:0], uint64(len(f)))
		s.exact.Write(append(s.buffer, f...))
	}
}

func (s *Sketcher) end(role string, end int) recording.Piece {
	text := string(s.content)
	s.exact.Write(s.content)
	p := recording.Piece{Role: strings.Clone(strings.ToValidUTF8(role[:min(len(role), maxRole)], "")), Bytes: len(text), End: end}
	p.Hash = sum(s.exact)
	s.read(&p, text)
	p.Words, p.Template = sum(s.squeezed), sum(s.template)
	if s.text > 0 {
		kept := text[:min(len(text), s.text)]
		s.text -= len(kept)
		p.Text = strings.ToValidUTF8(kept, "\uFFFD")
	}
	return p
}

func sum(h hash.Hash) recording.Hash {
	var b [sha256.Size]byte
	return recording.Hash(binary.LittleEndian.Uint64(h.Sum(b[:0])))
}

// stream is a hash that is written in small pieces.
type stream struct {
	hash.Hash
	buffer []byte
}

func (s *stream) append(text string) {
	s.buffer = append(s.buffer, text...)
	if len(s.buffer) >= 4096 {
		s.flush()
	}
}

func (s *stream) flush() {
	s.Write(s.buffer)
	s.buffer = s.buffer[:0]
}

// read splits the text into white space, words, values, and what is between them.
func (s *Sketcher) read(p *recording.Piece, text string) {
	var row [shapeWords]uint64
	n := 0
	shaped := len(text) >= shapeBytes
	for at := 0; at < len(text); {
		from := at
		class := words.ClassAt(text, &at)
		if class == words.Space {
			continue
		}
		if class != words.Letter && class != words.Digit {
			s.squeezed.append(text[from:at])
			s.template.append(text[from:at])
			continue
		}
		digits := class == words.Digit
		for at < len(text) {
			next := at
			c := words.ClassAt(text, &next)
			if c == words.Space || c == words.Other {
				break
			}
			digits = digits || c == words.Digit
			at = next
		}
		for text[at-1] == ':' || text[at-1] == '.' { // the end of a sentence
			at--
		}
		word := text[from:at]
		s.squeezed.append(word)
		if kind := kindOf(word, digits); kind != "" {
			if len(p.Values) < recording.MaxValues {
				p.Values = append(p.Values, recording.Value{At: from, Kind: kind, Hash: s.valueHash(word)})
			}
			word = "\xff"
		}
		s.template.append(word)
		if shaped {
			copy(row[:], row[1:])
			row[shapeWords-1] = xxhash.Sum64String(word)
			if n++; n >= shapeWords {
				p.Shape = s.keep(p.Shape, row)
			}
		}
	}
	s.squeezed.flush()
	s.template.flush()
}

// valueHash is short: there are so few dates and numbers that all could be tried.
func (s *Sketcher) valueHash(word string) recording.Hash {
	sum := sha256.Sum256(append(append(s.buffer[:0], s.key[:]...), word...))
	return recording.Hash(binary.LittleEndian.Uint32(sum[:]))
}

// keep keeps the smallest hashes, ascending and distinct.
func (s *Sketcher) keep(shape []uint32, row [shapeWords]uint64) []uint32 {
	h := s.mix
	for _, w := range row {
		h = mix(h ^ w)
	}
	v := uint32(h >> 32)
	at, found := slices.BinarySearch(shape, v)
	if found || at == shapeSize {
		return shape
	}
	if len(shape) == shapeSize {
		shape = shape[:shapeSize-1]
	}
	return slices.Insert(shape, at, v)
}

// kindOf is the kind of a word that probably changes; empty: it does not.
func kindOf(word string, digits bool) string {
	switch {
	case !digits:
		if words.DateName(word) {
			return "timestamp"
		}
		return ""
	case words.Timestamp(word):
		return "timestamp"
	case words.Number(word):
		return "number"
	}
	return "identifier"
}

// mix is one step of splitmix64: each bit of x changes about half of the result's.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
