package modelserver

import (
	"hash/fnv"

	"github.com/endpick/endpick/internal/lab/engine"
)

// token is four bytes of text (or fewer at the end), or a special token.
type token uint64

const (
	textToken    token = 1 << 32 // plus the number of bytes, times this
	specialToken token = 1 << 41
)

// The special tokens.
const (
	startOfHeader = specialToken + iota
	endOfHeader
	endOfMessage
	startOfTools
	startOfThinking
	startOfCall
)

const bytesPerToken = 4

// tokens is a sequence of tokens: its length, the chained hashes of full blocks, and short names.
// A copy can be continued independently.
type tokens struct {
	blockTokens int
	length      int
	hash        uint64
	blocks      []uint64
	ids         []uint32 // of which a copy that is continued has no use
}

// newTokens returns an empty sequence. Sequences with different salts share no
// block.
func newTokens(blockTokens int, salt string) tokens {
	return tokens{blockTokens: blockTokens, hash: hashOf(salt)}
}

func (t *tokens) add(one token) {
	t.hash = engine.Mix(t.hash ^ uint64(one))
	t.ids = append(t.ids, uint32(engine.Mix(uint64(one))))
	t.length++
	if t.length%t.blockTokens == 0 {
		t.blocks = append(t.blocks, t.hash)
	}
}

func (t *tokens) addText(s string) {
	for len(s) > 0 {
		piece := s[:min(len(s), bytesPerToken)]
		s = s[len(piece):]
		one := textToken * token(len(piece))
		for i := range len(piece) {
			one |= token(piece[i]) << (8 * i)
		}
		t.add(one)
	}
}

// output is the text generated for a prompt: words of three letters, each a
// token.
type output uint64

// outputFor is a function of the prompt and the index of the choice.
func outputFor(prompt *tokens, choice int) output {
	return output(engine.Mix(prompt.hash + uint64(choice)))
}

// appendText appends tokens from ≤ i < to of the generated text.
func (o output) appendText(dst []byte, from, to int) []byte {
	for i := from; i < to; i++ {
		r := engine.Mix(uint64(o) ^ uint64(i))
		dst = append(dst, ' ', 'a'+byte(r%26), 'a'+byte(r>>8%26), 'a'+byte(r>>16%26))
	}
	return dst
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s)) //nolint:errcheck // never fails
	return h.Sum64()
}
