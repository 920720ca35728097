package prefix_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
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

var testKey = func() prefix.Key {
	k, err := prefix.ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		panic(err)
	}
	return k
}()

func seed(n int) prefix.Seed {
	return prefix.Scope{Key: testKey, Model: strconv.Itoa(n)}.Seed()
}

// Hashes may be stored and compared between replicas on any architecture, so
// they must not change.
func TestHashGolden(t *testing.T) {
	seed := prefix.Scope{Key: testKey, Model: "llama", Adapter: "sql", Tenant: "tenant", Salt: "salt"}.Seed()
	tokens := make([]uint32, 40)
	for i := range tokens {
		tokens[i] = uint32(i * 1000)
	}
	assert.Equal(t, []uint64{0xa598b540f35df5c, 0x9ad2aa205d3858c8}, prefix.AppendTokens(nil, seed, tokens))
	assert.Equal(t, []uint64{0xfe6aaa06a9ba6fae, 0xf6a880e4dc0907d1}, prefix.AppendText(nil, seed, strings.Repeat("endpick ", 17)))
	chat, n := prefix.AppendChat(nil, seed, &prefix.Conversation{
		Tools: []string{`{"name": "f", "arguments": {}}`},
		Messages: []prefix.Message{
			{Role: "user", Parts: []prefix.Part{{Content: "What is this, and what are those two over there?"}, {Type: "image_url", Content: strings.Repeat("data:", 100)}}},
			{Role: "assistant", ToolCalls: []prefix.ToolCall{{ID: "1", Name: "f", Arguments: `{"b": "\u0061", "a": 1}`}}},
		},
	})
	assert.Equal(t, []uint64{0x30336919206d347, 0x58e008b1fbd73ca7}, chat)
	assert.Equal(t, 153, n)
}

// Texts that collided in all blocks when hashes were XXH64 with a seed that
// anyone could compute.
func TestHashKnownCollisions(t *testing.T) {
	const tail = "What is the answer to the question that nobody has ever asked before, not even once?"
	a := prefix.AppendText(nil, prefix.Scope{Model: "llama"}.Seed(), "You are a helpful assistant. Answer in one sentence, in English."+tail)
	b := prefix.AppendText(nil, prefix.Scope{Model: "llama"}.Seed(), "00002350a helpful assistant. AnsDxJs. ~-ne sentence, in English."+tail)
	for i := range a {
		assert.NotEqual(t, a[i], b[i], "block %d", i)
	}
	picture := func(content string) prefix.Conversation {
		return prefix.Conversation{Messages: []prefix.Message{{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: content}}}}}
	}
	assert.NotEqual(t,
		sum(picture(`data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAAAA`)),
		sum(picture(`00000946ge/png;base64,iVBORw0KGgtR&O\$6shEUgAAAAEAAAABCAYAAAAAAA`)))
}

func TestHashFullBlocksOnly(t *testing.T) {
	tokens := ids(50, 1)
	for _, tc := range []struct{ tokens, blocks int }{{0, 0}, {15, 0}, {16, 1}, {31, 1}, {32, 2}, {50, 3}} {
		assert.Len(t, prefix.AppendTokens(nil, seed(1), tokens[:tc.tokens]), tc.blocks)
		assert.Len(t, prefix.AppendText(nil, seed(1), strings.Repeat("abcd", tc.tokens)), tc.blocks)
	}
	dst := []uint64{7}
	assert.Equal(t, uint64(7), prefix.AppendTokens(dst, seed(1), tokens)[0], "appends")
}

func TestHashScopesShareNothing(t *testing.T) {
	scopes := []prefix.Scope{
		{}, {Model: "m"}, {Adapter: "m"}, {Tenant: "m"}, {Salt: "m"},
		{Model: "m", Adapter: "a"}, {Model: "ma"}, {Model: "m", Salt: "a"}, {Model: "m", Adapter: "a", Salt: "s"},
		{Model: "m", Adapter: "as"}, {Model: "m", Adapter: "s", Salt: "a"},
		{Tenant: "a", Salt: "bc"}, {Tenant: "ab", Salt: "c"}, {Tenant: "abc"}, {Salt: "abc"},
		{Tenant: "B"}, {Salt: `"B"`}, {Tenant: `"B"`}, {Tenant: "B", Salt: `"B"`},
		{Tenant: "a\x00", Salt: "b"}, {Tenant: "a", Salt: "\x00b"},
		{Tenant: "a", Salt: "\x01\x00\x00\x00\x00\x00\x00\x00b"}, {Tenant: "a\x01\x00\x00\x00\x00\x00\x00\x00b"},
		{Model: strings.Repeat("long", 100)}, {Model: strings.Repeat("long", 99), Adapter: "long"},
		{Key: prefix.NewKey()}, {Key: prefix.NewKey(), Model: "m"},
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
	for _, s := range scopes {
		assert.Equal(t, prefix.AppendText(nil, s.Seed(), text), prefix.AppendText(nil, s.Seed(), text), "the same each time")
	}
	assert.Equal(t, prefix.AppendText(nil, prefix.Scope{}.Seed(), text), prefix.AppendText(nil, prefix.Seed{}, text))
}

// The same bytes as text and as tokens are different prompts.
func TestHashTextIsNotTokens(t *testing.T) {
	tokens := make([]uint32, 16)
	text := strings.Repeat("\x00", 64)
	assert.NotEqual(t, prefix.AppendTokens(nil, seed(1), tokens), prefix.AppendText(nil, seed(1), text))
}

func TestHashHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 100).Draw(t, "tokens")
		more := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 50).Draw(t, "more")
		short := prefix.AppendTokens(nil, seed(9), tokens)
		long := prefix.AppendTokens(nil, seed(9), append(tokens[:len(tokens):len(tokens)], more...))
		require.True(t, slices.Equal(short, long[:len(short)]), "a head is a head")
		if len(short) == 0 {
			return
		}
		at := rapid.IntRange(0, 16*len(short)-1).Draw(t, "at")
		other := append([]uint32(nil), tokens...)
		other[at] += 1 + rapid.Uint32Range(0, 1000).Draw(t, "by")
		changed := prefix.AppendTokens(nil, seed(9), other)
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
			h.Reset(seed(5), nil)
			h.WriteString("something else, of more than one block: " + strings.Repeat("-", 64))
		}
		h.Reset(seed(3), []uint64{1})
		for _, p := range pieces {
			h.WriteString(p)
		}
		whole := strings.Join(pieces, "")
		require.Equal(t, prefix.AppendText([]uint64{1}, seed(3), whole), h.Blocks())
		require.Equal(t, len(whole), h.Len())
	})
}

func TestHasherZeroValue(t *testing.T) {
	var h prefix.Hasher
	assert.Empty(t, h.Blocks())
	text := strings.Repeat("ab", 100)
	h.WriteString(text)
	assert.Equal(t, prefix.AppendText(nil, prefix.Seed{}, text), h.Blocks())
}

// Prompts with small differences, as in real and hostile ones: counters in each
// token, in two alternating tokens, in seeds; swapped words of a text; runs of
// one byte. Of n numbers of 64 bits no two should be equal; of their lower and
// upper halves, about n²/2^33 pairs are.
func TestHashSpreads(t *testing.T) {
	var seeds [7]prefix.Seed
	for i := range seeds {
		seeds[i] = seed(i)
	}
	families := map[string]func(dst []uint64, i int) []uint64{
		"a counter": func(dst []uint64, i int) []uint64 {
			tokens := make([]uint32, 16)
			tokens[7] = uint32(i)
			return prefix.AppendTokens(dst, seeds[0], tokens)
		},
		"counters in all places": func(dst []uint64, i int) []uint64 {
			tokens := make([]uint32, 32)
			tokens[i%16] = uint32(i)
			tokens[16+(i+5)%16] = 1
			return prefix.AppendTokens(dst, seeds[i%7], tokens)
		},
		"high bits": func(dst []uint64, i int) []uint64 {
			tokens := make([]uint32, 16)
			tokens[2*(i%8)+1] = uint32(i/8)<<18 | 1
			return prefix.AppendTokens(dst, seeds[1], tokens)
		},
		"names": func(dst []uint64, i int) []uint64 {
			return prefix.AppendText(dst, seeds[2], fmt.Sprintf("You help user %08d. %s%08d", i, strings.Repeat("Be brief. ", 9), i%10))
		},
		"places": func(dst []uint64, i int) []uint64 {
			words := []string{"alpha   ", "beta    ", "gamma   ", "delta   ", "epsilon ", "zeta    ", "eta     ", "theta   ", "iota    ", "kappa   ", "lambda  "}
			var text strings.Builder
			for n := i; len(words) > 0; {
				k := n % len(words)
				n /= len(words)
				text.WriteString(words[k])
				words = slices.Delete(words, k, k+1)
			}
			return prefix.AppendText(dst, seeds[3], text.String())
		},
		"long": func(dst []uint64, i int) []uint64 {
			text := strings.Repeat(string(rune('a'+i%26)), 64*500)
			return prefix.AppendText(dst, prefix.Scope{Key: testKey, Salt: strconv.Itoa(i)}.Seed(), text)
		},
	}
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			const n = 100_000
			all := make([]uint64, 0, n)
			for i := 0; len(all) < n; i++ {
				all = family(all, i)
			}
			spread(t, all)
		})
	}
}

func spread(t *testing.T, all []uint64) {
	whole := make(map[uint64]struct{}, len(all))
	low, high := make(map[uint32]struct{}, len(all)), make(map[uint32]struct{}, len(all))
	var ones [64]int
	for _, h := range all {
		whole[h] = struct{}{}
		low[uint32(h)] = struct{}{}
		high[uint32(h>>32)] = struct{}{}
		for b := h; b != 0; b &= b - 1 {
			ones[bits.TrailingZeros64(b)]++
		}
	}
	n := float64(len(all))
	assert.Equal(t, len(all), len(whole))
	expected := n * n / (1 << 33)
	assert.Less(t, n-float64(len(low)), 2*expected+20)
	assert.Less(t, n-float64(len(high)), 2*expected+20)
	for bit, k := range ones {
		// Five standard deviations.
		assert.InDelta(t, n/2, k, 2.5*math.Sqrt(n), "bit %d", bit)
	}
}

// One bit of a token changes half of the bits of its block's hash and of the next.
func TestHashAvalanche(t *testing.T) {
	seed := seed(1)
	tokens := ids(32, 5)
	before := prefix.AppendTokens(nil, seed, tokens)
	flips, trials := [2]int{}, 0
	for i := range 16 {
		for bit := range 32 {
			tokens[i] ^= 1 << bit
			after := prefix.AppendTokens(nil, seed, tokens)
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
	seed := seed(1)
	var h prefix.Hasher
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		dst = prefix.AppendTokens(dst[:0], seed, tokens)
		dst = prefix.AppendText(dst[:0], seed, text)
		h.Reset(seed, dst[:0])
		h.WriteString(text)
		dst = h.Blocks()
	}))
	scope := prefix.Scope{Model: "llama", Tenant: "tenant"}
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { seed = scope.Seed() }), 1.0)
}

// Forks continue as if the text had come as a whole, without affecting each other.
func TestForksGoOn(t *testing.T) {
	seed := prefix.Scope{Model: "m"}.Seed()
	message := func(role string) *prefix.Message {
		return &prefix.Message{Role: role, Parts: []prefix.Part{{Content: strings.Repeat(role, 100)}}, ToolCalls: []prefix.ToolCall{{Arguments: `{"b":1,"a":2}`}}}
	}
	whole := func(roles ...string) []uint64 {
		var c prefix.Conversation
		for _, r := range roles {
			c.Messages = append(c.Messages, *message(r))
		}
		blocks, _ := prefix.AppendChat(nil, seed, &c)
		return blocks
	}
	var h prefix.Hasher
	h.Reset(seed, make([]uint64, 0, 100)) // with room that both could write to
	h.WriteMessage(message("user"))
	a, b := h.Fork(), h.Fork()
	a.WriteMessage(message("left"))
	b.WriteMessage(message("right"))
	h.WriteMessage(message("on"))
	for want, got := range map[string]*prefix.Hasher{"left": &a, "right": &b, "on": &h} {
		assert.Equal(t, whole("user", want), got.Blocks(), want)
	}
}
