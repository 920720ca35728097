// Package turns hashes the prompts of a conversation without hashing again what the turns
// before had in common with it.
package turns

import (
	"github.com/endpick/endpick/internal/blockhash"
	"github.com/endpick/endpick/prefix"
)

// Hasher makes the same blocks as [prefix.AppendTokens], of prompts that begin as the one
// before did. A host keeps one for a conversation whose token ids it has. The zero Hasher
// is ready, and hashes under the zero seed. It is not safe for concurrent use.
//
// For text, which has to be escaped and rendered anyway, see [prefix.Hasher]: what has
// been written is hashed, and [prefix.Hasher.Fork] goes on from there.
type Hasher struct {
	start  blockhash.Chain
	states []state // after every stride blocks
	blocks []uint64
}

// state is a chain in the middle of a prompt.
type state struct{ a, b uint64 }

// stride is how many blocks lie between two states: what is hashed again at most, where a
// turn leaves the one before. With it a conversation takes nine bytes for each block.
const stride = 16

// Reset begins another conversation; memory is used again.
func (h *Hasher) Reset(seed prefix.Seed) {
	secret := blockhash.SecretOf(seed.Seed)
	if secret == nil {
		secret = blockhash.SecretOf(prefix.Scope{}.Seed().Seed)
	}
	h.start = blockhash.Start(secret, blockhash.OfTokens)
	h.states, h.blocks = h.states[:0], h.blocks[:0]
}

// Prompt returns the blocks of a prompt of which the caller knows that its first same
// tokens are those of the prompt before: only the others are read. Zero is always right;
// a number that is too high makes the blocks of another prompt, and one beyond either
// prompt counts as far as both go. The blocks are the hasher's, and good until it is
// called again.
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
