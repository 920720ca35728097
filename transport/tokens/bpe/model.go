package bpe

import (
	"context"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/text/unicode/norm"
)

// Model computes the token ids of prompts. It is safe for concurrent use.
type Model struct {
	// Clock returns the time, for templates that contain the date, which is that of UTC.
	// It must not be changed while the model is in use. Nil: time.Now.
	Clock func() time.Time

	vocabulary map[string]uint32
	merges     merges
	added      added
	splits     []split // applied in turn, from the text to pieces
	normal     []normalizer
	// bytes are the ids of single bytes: of all in byte-level BPE, of the fallback
	// otherwise.
	bytes      [256]uint32
	hasByte    [256]bool
	byteLevel  bool
	wholeFirst bool // a piece that is a token is not merged
	unknown    uint32
	hasUnknown bool // otherwise, unknown characters are left out
	fuse       bool // consecutive unknown characters are one token
	// before and after surround the ids of a text that is not a chat.
	before, after []uint32

	chat *template // nil: none
}

// Error says what in a file is invalid or not supported.
type Error struct {
	File   string
	Field  string
	Reason string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Field == "" {
		return "bpe: " + e.File + ": " + e.Reason
	}
	return "bpe: " + e.File + ": " + e.Field + " " + e.Reason
}

// The names of a model's files.
const (
	tokenizerFile = "tokenizer.json"
	configFile    = "tokenizer_config.json"
	templateFile  = "chat_template.jinja"
)

// Load reads tokenizer.json from a directory and, if they exist, tokenizer_config.json
// and chat_template.jinja. The error is an [Error] or that of reading.
func Load(dir string) (*Model, error) {
	tokenizer, err := os.ReadFile(filepath.Join(dir, tokenizerFile))
	if err != nil {
		return nil, err
	}
	var optional [2][]byte
	for i, name := range [...]string{configFile, templateFile} {
		if optional[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) {
			return nil, err
		}
	}
	return Parse(tokenizer, optional[0], optional[1])
}

// Parse makes a model from the contents of tokenizer.json, tokenizer_config.json and
// chat_template.jinja; the latter two may be empty. A template in a file of its own
// takes precedence over that in the configuration. The error is an [Error].
func Parse(tokenizer, config, chatTemplate []byte) (*Model, error) {
	m := &Model{}
	if err := m.readTokenizer(tokenizer); err != nil {
		return nil, err
	}
	if err := m.readConfig(config, chatTemplate); err != nil {
		return nil, err
	}
	return m, nil
}

// maxPiece limits what is merged at once. Words and runs of white space are far shorter,
// and merging so much takes some tens of milliseconds.
const maxPiece = 32 << 10

// Encode returns the ids of a text, in which special tokens are recognized by name. It
// adds nothing before or after it. The error is that of ctx, or one like those of
// [Model.Tokens].
func (m *Model) Encode(ctx context.Context, text string) ([]uint32, error) {
	ids := make([]uint32, 0, len(text)/3)
	var err error
	m.added.cut(text, func(part string, id uint32, special bool) bool {
		if special {
			ids = append(ids, id)
			return true
		}
		ids, err = m.appendText(ctx, ids, part)
		return err == nil
	})
	return ids, err
}

// appendText appends the ids of a text without special tokens.
func (m *Model) appendText(ctx context.Context, ids []uint32, text string) ([]uint32, error) {
	for _, n := range m.normal {
		text = n(text)
	}
	pieces, err := m.pieces(text)
	if err != nil {
		return ids, err
	}
	for i, p := range pieces {
		if len(p) > maxPiece {
			return ids, refused("a piece of %d bytes", len(p))
		}
		if i%256 == 0 && ctx.Err() != nil {
			return ids, ctx.Err()
		}
		ids = m.appendPiece(ids, p)
	}
	return ids, nil
}

// appendPiece appends the ids of a piece.
func (m *Model) appendPiece(ids []uint32, piece string) []uint32 {
	if m.wholeFirst {
		if id, ok := m.vocabulary[piece]; ok {
			return append(ids, id)
		}
	}
	from := len(ids)
	if m.byteLevel {
		for i := range len(piece) {
			ids = append(ids, m.bytes[piece[i]])
		}
	} else {
		ids = m.appendCharacters(ids, piece)
	}
	return ids[:from+len(m.merges.apply(ids[from:]))]
}

// appendCharacters appends the ids of single characters, or of their bytes. An unknown
// one is written before the next known one, or at the end, and so after bytes that
// follow it: the tokenizers library, and so engines, do it that way.
func (m *Model) appendCharacters(ids []uint32, piece string) []uint32 {
	unknown := false // unknown characters have yet to be written
	for i, r := range piece {
		one := piece[i:]
		one = one[:runeBytes(one, r)]
		id, ok := m.vocabulary[one]
		switch {
		case ok:
			if unknown {
				ids, unknown = append(ids, m.unknown), false
			}
			ids = append(ids, id)
		case m.hasBytes(one):
			for j := range len(one) {
				ids = append(ids, m.bytes[one[j]])
			}
		case m.hasUnknown:
			if unknown && !m.fuse {
				ids = append(ids, m.unknown)
			}
			unknown = true
		}
	}
	if unknown {
		ids = append(ids, m.unknown)
	}
	return ids
}

func (m *Model) hasBytes(s string) bool {
	for i := range len(s) {
		if !m.hasByte[s[i]] {
			return false
		}
	}
	return true
}

// runeBytes is the length of the first character in bytes; one if it is not UTF-8.
func runeBytes(s string, r rune) int {
	if r != 0xFFFD || strings.HasPrefix(s, "\uFFFD") {
		return len(string(r))
	}
	return 1
}

type normalizer func(string) string

func nfc(s string) string { return norm.NFC.String(s) }

// unbyte maps the characters of byte-level vocabularies to bytes: printable ones stand
// for themselves, all others follow in order from U+0100 on.
var unbyte = func() map[rune]byte {
	m := map[rune]byte{}
	var printable [4]uint64
	for _, r := range [...][2]int{{'!', '~'}, {0xA1, 0xAC}, {0xAE, 0xFF}} {
		for b := r[0]; b <= r[1]; b++ {
			m[rune(b)] = byte(b)
			printable[b/64] |= 1 << (b % 64)
		}
	}
	next := rune(0x100)
	for b := range 256 {
		if bits.OnesCount64(printable[b/64]&(1<<(b%64))) == 0 {
			m[next] = byte(b)
			next++
		}
	}
	return m
}()

// bytesOf decodes the spelling of byte-level vocabularies.
func bytesOf(spelled string) (string, error) {
	b := make([]byte, 0, len(spelled))
	for _, r := range spelled {
		v, ok := unbyte[r]
		if !ok {
			return "", fmt.Errorf("has %q, which does not stand for a byte", r)
		}
		b = append(b, v)
	}
	return string(b), nil
}
