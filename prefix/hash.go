package prefix

import (
	"slices"
	"unsafe"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/internal/blockhash"
)

const (
	// BlockTokens is the number of tokens in a block of token ids.
	BlockTokens = endpick.DefaultBlockTokens
	// BlockBytes is the number of bytes in a block: of text, or of BlockTokens
	// token ids. Text of a common tokenizer has about four bytes a token, so
	// that both kinds of block stand for about as much of a prompt.
	BlockBytes = 4 * BlockTokens
)

// AppendTokens appends to dst the hash of every full block of BlockTokens
// token ids, head first, and returns the extended slice; a partial last block
// is dropped, because engines don't cache it. Each hash stands for its block
// and everything before it. With the same key it is the same on every
// architecture. AppendTokens allocates only if dst is too small.
//
// For any two prefixes of n blocks, in one scope or in two, the probability of a
// collision is at most about n in 2^58, unless who chose them has the key or sees hashes.
func AppendTokens(dst []uint64, seed Seed, tokens []uint32) []uint64 {
	c := seed.chain(blockhash.OfTokens)
	return c.AppendWords(dst, tokens)
}

// AppendText is AppendTokens for gateways without a tokenizer: blocks are
// BlockBytes bytes of text. Set the request's BlockTokens to the mean number
// of tokens in that many bytes. Blocks of text and of tokens are never equal.
func AppendText(dst []uint64, seed Seed, text string) []uint64 {
	c := seed.chain(blockhash.OfText)
	return c.Append(dst, bytesOf(text))
}

// bytesOf returns the bytes of a string, which must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Hasher cuts text that comes in pieces into the same blocks as [AppendText]
// cuts the whole. The zero Hasher is like one after Reset with the zero Seed
// and a nil slice. It is not safe for concurrent use.
type Hasher struct {
	chain     blockhash.Chain
	blocks    []uint64
	written   int
	n         int // bytes of the last, partial block
	partial   [BlockBytes]byte
	compacted int // bytes of JSON so far
}

// Reset starts a new text. Blocks are appended to dst, which belongs to the
// hasher until Blocks returns it.
func (h *Hasher) Reset(seed Seed, dst []uint64) {
	h.chain = seed.chain(blockhash.OfText)
	h.blocks = dst
	h.written, h.n, h.compacted = 0, 0, 0
}

// Fork returns a hasher that continues from here independently. It takes little
// memory: the blocks so far are shared, and never changed.
func (h *Hasher) Fork() Hasher {
	f := *h
	f.blocks = slices.Clip(h.blocks)
	return f
}

// Blocks returns the slice given to Reset with the hashes of all full blocks
// appended. More may be written afterwards.
func (h *Hasher) Blocks() []uint64 { return h.blocks }

// Len is the number of bytes written since Reset, full blocks or not.
func (h *Hasher) Len() int { return h.written }

// WriteString adds text.
func (h *Hasher) WriteString(s string) { h.write(bytesOf(s)) }

func (h *Hasher) write(p []byte) {
	if n := h.n + len(p); n < BlockBytes && h.chain.Secret != nil {
		copy(h.partial[h.n:], p)
		h.n = n
		h.written += len(p)
		return
	}
	h.writeBlocks(p)
}

// writeBlocks writes bytes that complete at least one block.
func (h *Hasher) writeBlocks(p []byte) {
	if h.chain.Secret == nil { // the zero Hasher
		h.Reset(Seed{}, nil)
	}
	h.written += len(p)
	if h.n > 0 {
		k := copy(h.partial[h.n:], p)
		h.n += k
		p = p[k:]
		if h.n < BlockBytes {
			return
		}
		h.blocks = h.chain.Append(h.blocks, h.partial[:])
	}
	h.blocks = h.chain.Append(h.blocks, p)
	h.n = copy(h.partial[:], p[len(p)-len(p)%BlockBytes:])
}
