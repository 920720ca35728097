package prefix_test

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick/prefix"
)

func ids(n int, seed uint64) []uint32 {
	r := rand.New(rand.NewPCG(seed, 1))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(128_000)
	}
	return tokens
}

// The numbers may be stored and compared between replicas of a gateway, on any
// architecture: they must not change.
func TestHashGolden(t *testing.T) {
	seed := prefix.Scope{Model: "llama", Adapter: "sql", Salt: "tenant"}.Seed()
	tokens := make([]uint32, 40)
	for i := range tokens {
		tokens[i] = uint32(i * 1000)
	}
	assert.Equal(t, []uint64{0x6bf69bc66c00291f, 0xbfda4adeea89ba77}, prefix.AppendTokens(nil, seed, tokens))
	assert.Equal(t, []uint64{0xb66528a628d35206, 0x8799f63541bd85ee}, prefix.AppendText(nil, seed, strings.Repeat("endpick ", 17)))
}

func TestHashFullBlocksOnly(t *testing.T) {
	tokens := ids(50, 1)
	for _, tc := range []struct{ tokens, blocks int }{{0, 0}, {15, 0}, {16, 1}, {31, 1}, {32, 2}, {50, 3}} {
		assert.Len(t, prefix.AppendTokens(nil, 1, tokens[:tc.tokens]), tc.blocks)
		assert.Len(t, prefix.AppendText(nil, 1, strings.Repeat("abcd", tc.tokens)), tc.blocks)
	}
	dst := []uint64{7}
	assert.Equal(t, uint64(7), prefix.AppendTokens(dst, 1, tokens)[0], "appends")
}

func TestHashScopesShareNothing(t *testing.T) {
	scopes := []prefix.Scope{
		{}, {Model: "m"}, {Adapter: "m"}, {Salt: "m"},
		{Model: "m", Adapter: "a"}, {Model: "ma"}, {Model: "m", Salt: "a"}, {Model: "m", Adapter: "a", Salt: "s"},
		{Model: "m", Adapter: "as"}, {Model: "m", Adapter: "s", Salt: "a"},
	}
	tokens := ids(160, 2)
	text := string(binary.LittleEndian.AppendUint32(nil, 1)) + strings.Repeat("x", 640)
	seen := map[uint64]bool{}
	for _, s := range scopes {
		for _, h := range prefix.AppendTokens(prefix.AppendText(nil, s.Seed(), text), s.Seed(), tokens) {
			require.False(t, seen[h], "%+v", s)
			seen[h] = true
		}
	}
	assert.Equal(t, scopes[7].Seed(), prefix.Scope{Model: "m", Adapter: "a", Salt: "s"}.Seed())
}

// The same bytes as text and as tokens are different prompts.
func TestHashTextIsNotTokens(t *testing.T) {
	tokens := make([]uint32, 16)
	text := strings.Repeat("\x00", 64)
	assert.NotEqual(t, prefix.AppendTokens(nil, 1, tokens), prefix.AppendText(nil, 1, text))
}

func TestHashHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 100).Draw(t, "tokens")
		more := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 50).Draw(t, "more")
		short := prefix.AppendTokens(nil, 9, tokens)
		long := prefix.AppendTokens(nil, 9, append(tokens[:len(tokens):len(tokens)], more...))
		require.True(t, slices.Equal(short, long[:len(short)]), "a head is a head")
		if len(short) == 0 {
			return
		}
		at := rapid.IntRange(0, 16*len(short)-1).Draw(t, "at")
		other := append([]uint32(nil), tokens...)
		other[at] += 1 + rapid.Uint32Range(0, 1000).Draw(t, "by")
		changed := prefix.AppendTokens(nil, 9, other)
		for i := range changed {
			require.Equal(t, i < at/16, changed[i] == short[i], "block %d after a change of token %d", i, at)
		}
	})
}

func TestHasherIsAppendText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.StringN(0, -1, 300)).Draw(t, "pieces")
		var h prefix.Hasher
		if rapid.Bool().Draw(t, "used before") {
			h.Reset(5, nil)
			h.WriteString("something else, of more than one block: " + strings.Repeat("-", 64))
		}
		h.Reset(3, []uint64{1})
		for _, p := range pieces {
			h.WriteString(p)
		}
		whole := strings.Join(pieces, "")
		require.Equal(t, prefix.AppendText([]uint64{1}, 3, whole), h.Blocks())
		require.Equal(t, len(whole), h.Len())
	})
}

func TestHasherZeroValue(t *testing.T) {
	var h prefix.Hasher
	assert.Empty(t, h.Blocks())
	text := strings.Repeat("ab", 100)
	h.WriteString(text)
	assert.Equal(t, prefix.AppendText(nil, 0, text), h.Blocks())
}

// Blocks that differ in little: counters in one token, in two, in seeds. Of n
// numbers of 64 bits no two should be equal; of their lower and upper halves
// about n²/2^33 pairs are.
func TestHashSpreads(t *testing.T) {
	const n = 200_000
	all := make([]uint64, 0, n)
	tokens := make([]uint32, 16)
	for i := 0; len(all) < n; i++ {
		tokens[i%16] = uint32(i)
		all = prefix.AppendTokens(all, uint64(i%7), tokens)
		tokens[(i+5)%16] ^= 1
		all = prefix.AppendTokens(all, all[len(all)-1], tokens)
	}
	whole := make(map[uint64]struct{}, n)
	low, high := make(map[uint32]struct{}, n), make(map[uint32]struct{}, n)
	var ones [64]int
	for _, h := range all {
		whole[h] = struct{}{}
		low[uint32(h)] = struct{}{}
		high[uint32(h>>32)] = struct{}{}
		for b := h; b != 0; b &= b - 1 {
			ones[bits.TrailingZeros64(b)]++
		}
	}
	assert.Len(t, whole, len(all))
	expected := float64(n) * float64(n) / (1 << 33)
	assert.Less(t, float64(len(all)-len(low)), 2*expected+20)
	assert.Less(t, float64(len(all)-len(high)), 2*expected+20)
	for bit, k := range ones {
		// Five standard deviations.
		assert.InDelta(t, n/2, k, 2.5*math.Sqrt(float64(n)), "bit %d", bit)
	}
}

// One bit of a token changes half of the bits of its block and of the next.
func TestHashAvalanche(t *testing.T) {
	tokens := ids(32, 5)
	before := prefix.AppendTokens(nil, 1, tokens)
	flips, trials := [2]int{}, 0
	for i := range 16 {
		for bit := range 32 {
			tokens[i] ^= 1 << bit
			after := prefix.AppendTokens(nil, 1, tokens)
			tokens[i] ^= 1 << bit
			for b := range flips {
				flips[b] += bits.OnesCount64(before[b] ^ after[b])
			}
			trials++
		}
	}
	for b, n := range flips {
		assert.InDelta(t, 32, float64(n)/float64(trials), 1, "block %d", b)
	}
}

func TestHashAllocates(t *testing.T) {
	tokens := ids(1000, 1)
	text := strings.Repeat("some text ", 100)
	dst := make([]uint64, 0, 100)
	var h prefix.Hasher
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		dst = prefix.AppendTokens(dst[:0], 1, tokens)
		dst = prefix.AppendText(dst[:0], 1, text)
		h.Reset(1, dst[:0])
		h.WriteString(text)
		dst = h.Blocks()
	}))
}
