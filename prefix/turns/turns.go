// Package turns hashes the prompts of a conversation incrementally: what a turn has in
// common with the previous one is not hashed again.
package turns

import (
	"github.com/endpick/endpick/internal/blockhash"
	"github.com/endpick/endpick/prefix"
)

// Hasher computes the same blocks as [prefix.AppendTokens], for prompts that begin like
// the previous one. A host keeps one per conversation whose token ids it has. The zero
// Hasher is ready, and hashes under the zero seed. It is not safe for concurrent use.
//
// For text, which has to be escaped and rendered anyway, see [prefix.Hasher]: it hashes
// what is written, and [prefix.Hasher.Fork] continues from there.
type Hasher struct {
	start  blockhash.Chain
	states []state // after every stride blocks
	blocks []uint64
}

// state is a chain in the middle of a prompt.
type state struct{ a, b uint64 }

// stride is the number of blocks between two states, which is the most that is hashed
// again where a turn diverges. With it a conversation takes nine bytes per block.
const stride = 16

// Reset begins another conversation and reuses memory.
func (h *Hasher) Reset(seed prefix.Seed) {
	secret := blockhash.SecretOf(seed.Seed)
	if secret == nil {
		secret = blockhash.SecretOf(prefix.Scope{}.Seed().Seed)
	}
	h.start = blockhash.Start(secret, blockhash.OfTokens)
	h.states, h.blocks = h.states[:0], h.blocks[:0]
}

// Prompt returns the blocks of a prompt whose first same tokens, as the caller knows,
// are those of the previous prompt; it reads only the others. Zero is always safe. Too
// high a number gives wrong blocks; one beyond either prompt is clamped. The slice
// belongs to the hasher and is valid until the next call.
func (h *Hasher) Prompt(tokens []uint32, same int) []uint64 {
	if h.start.Secret == nil {
		h.Reset(prefix.Seed{})
	}
	same = max(min(same, len(tokens)), 0)
	kept := min(min(same/prefix.BlockTokens, len(h.blocks))/stride, len(h.states))
	h.states, h.blocks = h.states[:kept], h.blocks[:kept*stride]
	c := h.start
	if kept > 0 {
		c.A, c.B = h.states[kept-1].a, h.states[kept-1].b
	}
	tokens = tokens[kept*stride*prefix.BlockTokens:]
	for len(tokens) >= prefix.BlockTokens {
		n := min(len(tokens), stride*prefix.BlockTokens)
		h.blocks = c.AppendWords(h.blocks, tokens[:n])
		if n == stride*prefix.BlockTokens {
			h.states = append(h.states, state{c.A, c.B})
		}
		tokens = tokens[n:]
	}
	return h.blocks
}
