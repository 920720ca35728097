package prefix

import (
	"encoding/binary"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every block hash is what the xxhash package makes of the whole head.
func TestChainIsXXH64(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		seed := rapid.Uint64().Draw(t, "seed")
		var data []byte
		for _, id := range tokens {
			data = binary.LittleEndian.AppendUint32(data, id)
		}
		blocks := AppendTokens(nil, seed, tokens)
		require.Len(t, blocks, len(tokens)/BlockTokens)
		texts := AppendText(nil, seed, string(data))
		for i := range blocks {
			head := data[:(i+1)*BlockBytes]
			require.Equal(t, sumFrom(seed, head), blocks[i])
			require.Equal(t, sumFrom(textSeed(seed), head), texts[i])
		}
	})
}

func sumFrom(seed uint64, data []byte) uint64 {
	d := xxhash.NewWithSeed(seed)
	d.Write(data)
	return d.Sum64()
}

func TestChainIsPortable(t *testing.T) {
	if !littleEndian() {
		t.Skip("the fast way is for little-endian machines")
	}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		seed := rapid.Uint64().Draw(t, "seed")
		require.Equal(t, append([]uint64{0}, appendWordsPortable(nil, seed, tokens)...), appendWords([]uint64{0}, seed, tokens))
	})
}

// mix(a, ·) is x ^ a, two odd multiplications and two shifts: each can be
// undone, so that no two scopes have one seed but by a collision of the names'
// own hashes.
func TestMixIsABijection(t *testing.T) {
	undo := func(a, sum uint64) uint64 {
		x := sum ^ sum>>32
		x *= inverse(0xd6e8feb86659fd93)
		x ^= x >> 32
		x *= inverse(0x9e3779b97f4a7c15)
		return x ^ a
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		require.Equal(t, b, undo(a, mix(a, b)))
		require.Equal(t, a, undo(b, mix(a, b)))
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
