// Package sketch makes of a prompt what a recording keeps of it: for each tool and
// message its length and a few hashes, by which package prefix/diagnose tells where
// two prompts part and why, without their text.
package sketch

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick/internal/splitmix"
	"github.com/endpick/endpick/internal/words"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/recording"
)

const (
	maxRole = 32
	// shapeSize hashes tell whether half of two texts is alike, give or take a
	// sixth; texts shorter than shapeBytes have too few words in a row for that.
	shapeSize  = 8
	shapeBytes = 200
	shapeWords = 4
	// MaxPieces bounds the tools and messages that are kept apart; a prompt of more is
	// partial.
	MaxPieces = 4096
	// MaxText bounds the text that is kept of a prompt where it is asked for.
	MaxText = 1 << 20
)

// Sketcher sketches a prompt piece by piece: tools first, then messages. It costs
// time linear in their text. It is not safe for concurrent use.
type Sketcher struct {
	prompt *recording.Prompt // alone: it is kept, and the rest is not
	key    [sha256.Size]byte
	mix    uint64
	text   int // bytes of it that may still be kept

	exact              hash.Hash
	squeezed, template stream
	content            []byte // of the piece that is being read
	buffer             []byte
}

// New returns a sketcher whose hashes are made with the key, and which keeps text
// if that is wanted.
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

// Name is the hash of a name that clients give, such as a salt; 0: there is none.
func (s *Sketcher) Name(name string) recording.Hash {
	if name == "" {
		return 0
	}
	s.begin("name", name)
	return sum(s.exact)
}

// Cut says that the prompt has more than what was sketched.
func (s *Sketcher) Cut() { s.prompt.Partial = true }

// Tool adds the definition of a tool; end is where it ends in what is cut into
// blocks.
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

// field adds to the hash of the whole piece what is none of its text.
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

// stream is a hash that is written to in small pieces.
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

// read takes the text apart: white space, words, values, and what is between them.
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

// valueHash is short: dates and numbers are few enough to be tried.
func (s *Sketcher) valueHash(word string) recording.Hash {
	sum := sha256.Sum256(append(append(s.buffer[:0], s.key[:]...), word...))
	return recording.Hash(binary.LittleEndian.Uint32(sum[:]))
}

// keep keeps the smallest hashes, rising, each once.
func (s *Sketcher) keep(shape []uint32, row [shapeWords]uint64) []uint32 {
	h := s.mix
	for _, w := range row {
		h = splitmix.Mix(h ^ w)
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

// kindOf is the kind of a word that looks as if it changes; empty: it does not.
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
