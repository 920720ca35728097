package prefix

import (
	"encoding/binary"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick"
)

const (
	// BlockTokens is the number of tokens in a block of token ids.
	BlockTokens = endpick.DefaultBlockTokens
	// BlockBytes is the number of bytes in a block: of text, or of BlockTokens
	// token ids. Text of a common tokenizer has about four bytes a token, so
	// that both kinds of block stand for about as much of a prompt.
	BlockBytes = 4 * BlockTokens
)

// Scope is what must agree before two prompts may share a block. Engines keep
// the KV cache of adapters apart, and that of tenants where a salt is given.
type Scope struct {
	Model string
	// Adapter is the LoRA adapter. Empty: none.
	Adapter string
	// Salt keeps tenants apart, as cache_salt of a request to vLLM does.
	// Empty: shared with everyone without a salt.
	Salt string
}

// Seed returns the value from which the blocks of this scope are chained.
// Compute it once and keep it where the scope does not change.
func (s Scope) Seed() uint64 {
	h := mix(0, xxhash.Sum64String(s.Model))
	h = mix(h, xxhash.Sum64String(s.Adapter))
	return mix(h, xxhash.Sum64String(s.Salt))
}

// AppendTokens appends to dst the hash of every full block of BlockTokens
// token ids, head first, and returns the extended slice; a partial last block
// is dropped, because engines don't cache it. A hash stands for its block and
// for everything before it: it is XXH64, with this seed, of the ids up to the
// end of the block, four little-endian bytes each. The result is the same on
// every architecture. AppendTokens allocates only if dst is too small.
//
// The hashes are good enough to choose a server by (two different heads
// collide with a chance of 2^-64), not to protect data.
func AppendTokens(dst []uint64, seed uint64, tokens []uint32) []uint64 {
	if littleEndian() {
		return appendWords(dst, seed, tokens)
	}
	return appendWordsPortable(dst, seed, tokens)
}

// AppendText is AppendTokens for gateways without a tokenizer: blocks are
// BlockBytes bytes of text. Set BlockTokens of the request to the number of
// tokens that so many bytes make on average. Blocks of text and of tokens are
// never equal.
func AppendText(dst []uint64, seed uint64, text string) []uint64 {
	c := newChain(textSeed(seed))
	return c.append(dst, bytesOf(text))
}

// textSeed keeps text apart from tokens.
func textSeed(seed uint64) uint64 { return mix(seed, 0x74657874) }

// bytesOf returns the bytes of a string, which must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

func littleEndian() bool {
	return binary.NativeEndian.Uint16([]byte{1, 0}) == 1
}

// appendWords reads the ids in place, which gives their little-endian bytes
// on a little-endian machine.
func appendWords(dst []uint64, seed uint64, tokens []uint32) []uint64 {
	c := newChain(seed)
	return c.append(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens)))
}

func appendWordsPortable(dst []uint64, seed uint64, tokens []uint32) []uint64 {
	c := newChain(seed)
	var block [BlockBytes]byte
	for len(tokens) >= BlockTokens {
		for i, t := range tokens[:BlockTokens] {
			binary.LittleEndian.PutUint32(block[4*i:], t)
		}
		dst = c.append(dst, block[:])
		tokens = tokens[BlockTokens:]
	}
	return dst
}

// Hasher cuts text that comes in pieces into the same blocks as [AppendText]
// cuts the whole. The zero Hasher is one after Reset with a seed of zero and a
// nil slice. It is not safe for concurrent use.
type Hasher struct {
	started bool
	chain   chain
	blocks  []uint64
	written int
	n       int // bytes of the block that is not full yet
	partial [BlockBytes]byte
}

// Reset starts a new text. Blocks are appended to dst, which belongs to the
// hasher until Blocks gives it back.
func (h *Hasher) Reset(seed uint64, dst []uint64) {
	h.started = true
	h.chain = newChain(textSeed(seed))
	h.blocks = dst
	h.written, h.n = 0, 0
}

// Blocks returns the slice given to Reset with the hashes of all full blocks
// appended. More may be written afterwards.
func (h *Hasher) Blocks() []uint64 { return h.blocks }

// Len is the number of bytes written since Reset, full blocks or not.
func (h *Hasher) Len() int { return h.written }

// WriteString adds text.
func (h *Hasher) WriteString(s string) {
	if !h.started {
		h.Reset(0, nil)
	}
	h.written += len(s)
	if h.n > 0 {
		k := copy(h.partial[h.n:], s)
		h.n += k
		s = s[k:]
		if h.n < BlockBytes {
			return
		}
		h.blocks = h.chain.append(h.blocks, h.partial[:])
	}
	h.blocks = h.chain.append(h.blocks, bytesOf(s))
	h.n = copy(h.partial[:], s[len(s)-len(s)%BlockBytes:])
}
