// Package sketch reduces prompts to what a recording has of them, from which package diagnose finds
// why they were not in a cache.
package sketch

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/internal/blockhash"
	"github.com/endpick/endpick/transport/recording"
)

const (
	maxPieces = 4096    // tools and messages; longer prompts are partial
	maxValues = 32      // of a piece
	maxText   = 1 << 20 // bytes of a prompt's text, if it is recorded
	// shapeSize hashes suffice to tell whether half of two texts is equal, give or take a
	// sixth; texts shorter than shapeBytes have too few words for that.
	shapeSize  = 8
	shapeBytes = 200
	// The heads of messages and tools that are split into words; what follows is compared as a whole.
	// Splitting takes fifty times as long as hashing, and what changes is mostly in the system prompt.
	maxRead, maxTools = 16 << 10, 4 << 10
)

// Sketcher reduces a prompt to what a recording has of it: for each tool and message its
// length and a few hashes, from which package diagnose finds where two prompts diverge and why.
// Make it with [New]; then call Tool for each tool and Message for each message,
// in order. It takes time linear in the text, and is not safe for concurrent use.
type Sketcher struct {
	// Prompt is the sketch so far, to which more may be added. It outlives the sketcher.
	Prompt *recording.Prompt
	// Decode, if set, decodes texts of messages, of which it gets the part that is split into words or
	// recorded; the rest is compared as it is.
	Decode func(text string) string

	key        [sha256.Size]byte
	text, read int // bytes of text that may still be recorded, and be split into words

	texts []string // of the current piece, to be joined; one alone is not copied
	bytes int      // in them
	all   xxhash.Digest
}

// New returns a sketcher whose hashes depend on the key. With text, the prompt's
// text is recorded too, up to a megabyte of it.
func New(key prefix.Key, text bool) *Sketcher {
	s := &Sketcher{Prompt: new(recording.Prompt), key: sha256.Sum256([]byte("endpick sketch 8\n" + key.Reveal())), read: maxTools}
	if text {
		s.text = maxText
	}
	return s
}

// Name is the hash of a client's name for something, such as a salt; 0: none.
func (s *Sketcher) Name(name string) recording.Hash {
	if name == "" {
		return 0
	}
	return s.hashOf("name " + name)
}

// hashOf hashes the key and a short text.
func (s *Sketcher) hashOf(text string) recording.Hash {
	sum := sha256.Sum256(append(s.key[:], text...))
	return recording.Hash(binary.LittleEndian.Uint64(sum[:]))
}

// sumOf hides a hash: without the key, nobody can tell which texts have it.
func (s *Sketcher) sumOf(h uint64) recording.Hash {
	return s.hashOf(string(binary.LittleEndian.AppendUint64(nil, h)))
}

// Tool adds the definition of a tool; end is where it ends in the text that is cut into
// blocks: [prefix.Hasher.Len].
func (s *Sketcher) Tool(definition string, end int) {
	if s.begin("tool") {
		s.append(definition)
		s.Prompt.Tools = append(s.Prompt.Tools, s.piece("", end, nil))
	}
}

// Message adds a message, or a prompt of plain text as a message without a role. It
// keeps nothing of m.
func (s *Sketcher) Message(m *prefix.Message, end int) {
	if !s.begin(m.Role, m.Name, m.ToolCallID) {
		return
	}
	if len(s.Prompt.Messages) == 0 {
		s.read = maxRead
	}
	for _, p := range m.Parts {
		if p.Type == "" || p.Type == "text" {
			s.append(p.Content)
			s.number(s.bytes)
			continue
		}
		s.add(p.Type, p.Content)
	}
	for _, c := range m.ToolCalls {
		s.add(c.ID)
		s.append(c.Name)
		s.append(c.Arguments)
	}
	s.Prompt.Messages = append(s.Prompt.Messages, s.piece(m.Role, end, s.Decode))
}

// append adds to the text of the current piece.
func (s *Sketcher) append(text string) {
	s.texts = append(s.texts, text)
	s.bytes += len(text)
}

// begin begins a piece, unless there are too many.
func (s *Sketcher) begin(fields ...string) bool {
	if len(s.Prompt.Tools)+len(s.Prompt.Messages) >= maxPieces {
		s.Prompt.Partial = true
		return false
	}
	s.texts, s.bytes = s.texts[:0], 0
	s.all.Reset()
	s.add(fields...)
	return true
}

func (s *Sketcher) add(fields ...string) {
	for _, f := range fields {
		s.number(len(f))
		_, _ = s.all.WriteString(f) // never fails
	}
}

func (s *Sketcher) number(n int) { _, _ = s.all.Write(binary.AppendUvarint(nil, uint64(n))) }

func (s *Sketcher) piece(role string, end int, decode func(string) string) recording.Piece {
	if decode == nil {
		decode = func(text string) string { return text }
	}
	text := strings.Join(s.texts, "")
	raw := text[:min(len(text), s.read)]
	head, rest := decode(raw), text[len(raw):]
	s.read -= len(raw)
	p := recording.Piece{Role: strings.Clone(strings.ToValidUTF8(role[:min(len(role), 32)], "")), Bytes: len(head) + len(rest), End: end}
	tail := xxhash.Sum64String(rest)
	s.add("\xff", raw)
	words, template := s.split(&p, head)
	p.Hash, p.Words, p.Template = s.sumOf(fold(s.all.Sum64(), tail)), s.sumOf(fold(words, tail)), s.sumOf(fold(template, tail))
	if s.text > 0 {
		recorded := text[:min(len(text), s.text)]
		s.text -= len(recorded)
		p.Text = strings.Clone(strings.ToValidUTF8(decode(recorded), "\uFFFD"))
	}
	return p
}

// split returns hashes of the text's words, and of those and what stands for values, both with what is
// between words but white space.
func (s *Sketcher) split(p *recording.Piece, text string) (words, template uint64) {
	secret := binary.LittleEndian.Uint64(s.key[:])
	var older, before uint64 // hashes of the two words before
	for at := 0; at < len(text); {
		word, digits := Word(text[at:])
		if word == "" {
			r, size := utf8.DecodeRuneInString(text[at:])
			if classOf(r) != space {
				h := xxhash.Sum64String(text[at : at+size])
				words, template = fold(words, h), fold(template, h)
			}
			at += size
			continue
		}
		h := xxhash.Sum64String(word)
		words = fold(words, h)
		if kind := kindOf(word, digits); kind != "" {
			if len(p.Values) < maxValues {
				// The hash is short: there are so few dates and numbers that all could be tried.
				p.Values = append(p.Values, recording.Value{At: at, Kind: kind, Hash: s.hashOf(word) & math.MaxUint32})
			}
			h = 0
		}
		template = fold(template, h)
		at += len(word)
		if len(text) >= shapeBytes {
			v := uint32(blockhash.Mix(blockhash.Mix(fold(fold(older, before), h)^secret)) >> 32)
			if len(p.Shape) < shapeSize || v < p.Shape[shapeSize-1] { // rarely
				p.Shape = shape(p.Shape, v)
			}
			older, before = before, h
		}
	}
	return words, template
}

// fold adds the next hash to that of a sequence.
func fold(sum, h uint64) uint64 { return bits.RotateLeft64(sum, 23)*0x9e3779b97f4a7c15 + h }

// shape adds a hash, of which the smallest stay, ascending and distinct.
func shape(all []uint32, v uint32) []uint32 {
	at, found := slices.BinarySearch(all, v)
	if found {
		return all
	}
	return slices.Insert(all, at, v)[:min(len(all)+1, shapeSize)]
}
