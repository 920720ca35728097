package prefix

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHashIsPortable(t *testing.T) {
	if !littleEndian() {
		t.Skip("the fast way is for little-endian machines")
	}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		seed := rapid.Uint64().Draw(t, "seed")
		require.Equal(t, appendWordsPortable(nil, seed, tokens), appendWords(nil, seed, tokens))
	})
}

func TestChainIsABijection(t *testing.T) {
	// chain(h, ·) is x ^ h, two odd multiplications and two shifts: each can
	// be undone, so that no two blocks collide after the same head.
	undo := func(h, sum uint64) uint64 {
		x := sum ^ sum>>32
		x *= inverse(0xd6e8feb86659fd93)
		x ^= x >> 32
		x *= inverse(0x9e3779b97f4a7c15)
		return x ^ h
	}
	rapid.Check(t, func(t *rapid.T) {
		h, block := rapid.Uint64().Draw(t, "h"), rapid.Uint64().Draw(t, "block")
		require.Equal(t, block, undo(h, chain(h, block)))
		require.Equal(t, h, undo(block, chain(h, block)))
	})
}

// inverse returns the multiplicative inverse of an odd number, modulo 2^64.
func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}
