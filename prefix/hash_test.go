package prefix_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func ids(n int, seed uint64) []uint32 {
	r := rand.New(rand.NewPCG(seed, 1))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(128_000)
	}
	return tokens
}

var testKey = rig.Must(prefix.ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"))

func seed(n int) prefix.Seed { return prefix.Scope{Key: testKey, Model: strconv.Itoa(n)}.Seed() }

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

// The yardstick: one hash over as many bytes as 16,384 token ids have.
func BenchmarkSum64(b *testing.B) {
	data := make([]byte, 65536)
	for i := range data {
		data[i] = byte(i * 7)
	}
	b.Run("bytes=65536", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		var sum uint64
		for b.Loop() {
			sum += xxhash.Sum64(data)
		}
		_ = sum
	})
}

func BenchmarkHash(b *testing.B) {
	seed := seed(1)
	for _, n := range []int{2048, 16384} {
		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = uint32(i) * 2654435761 % 128000
		}
		var dst []uint64
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(4 * n))
			for b.Loop() {
				dst = prefix.AppendTokens(dst[:0], seed, tokens)
			}
		})
	}
	text := strings.Repeat("a prefix is shared by many requests. ", 1800)[:65536]
	var dst []uint64
	b.Run("text=65536", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			dst = prefix.AppendText(dst[:0], seed, text)
		}
	})
}

// Of n heads of prompts that are as similar as possible, no two have the same hash, and
// as many pairs agree in b bits as for n random numbers, n²/2^(b+1): 512 for the chosen
// b, with a standard deviation of 23.
//
//	ENDPICK_BIRTHDAYS=100000000 go test ./prefix -run TestBirthdays -v -timeout 60m
//
// takes ten minutes and 1 GB; docs/performance.md has its result.
func TestBirthdays(t *testing.T) {
	n := 1 << 17
	if v := os.Getenv("ENDPICK_BIRTHDAYS"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	hashes := make([]uint64, 0, n)
	for i := 0; len(hashes) < n; i++ {
		room := cap(hashes)
		hashes = structured(hashes, i)
		require.Equal(t, room, cap(hashes))
	}
	b := int(math.Round(2*math.Log2(float64(n)) - 10))
	expected := float64(n) * float64(n) / math.Exp2(float64(b+1))
	for _, shift := range []int{0, (64 - b) / 2, 64 - b} {
		// Rotated, so that the bits compared are the highest: sorting brings equal ones together.
		for i, h := range hashes {
			hashes[i] = h<<(64-b-shift) | h>>(b+shift)
		}
		slices.Sort(hashes)
		pairs, same, run := 0, 0, 0
		for i := 1; i < len(hashes); i++ {
			if hashes[i] == hashes[i-1] {
				same++
			}
			if hashes[i]>>(64-b) == hashes[i-1]>>(64-b) {
				run++
				pairs += run
			} else {
				run = 0
			}
		}
		for i, h := range hashes {
			hashes[i] = h>>(64-b-shift) | h<<(b+shift)
		}
		t.Logf("%d blocks: %d equal; %d pairs agree in %d bits from bit %d, %.0f expected", n, same, pairs, b, shift, expected)
		require.Zero(t, same)
		require.InDelta(t, expected, pairs, 6*math.Sqrt(expected))
	}
}

var birthdaySeeds = [3]prefix.Seed{
	prefix.Scope{Key: testKey}.Seed(), prefix.Scope{Key: testKey, Tenant: "a"}.Seed(), prefix.Scope{Key: testKey, Tenant: "b"}.Seed(),
}

// structured appends the blocks of the i-th prompt of 128 tokens, as far as there is
// room. No head occurs twice: its first block has a counter, and identifies the
// family.
func structured(dst []uint64, i int) []uint64 {
	var tokens [128]uint32
	n := uint32(i)
	switch family := i % 5; family {
	case 0: // a counter, and nothing else
		tokens[i/5%16] = n
	case 1: // alternating in two tokens
		tokens[2], tokens[9] = n&0xfff, n>>12<<8
		tokens[15] = 1
	case 2: // one token repeated
		for j := range tokens {
			tokens[j] = n
		}
		tokens[1] = n + 1
	case 3: // ascending
		for j := range tokens {
			tokens[j] = n + uint32(j)
		}
	default: // a template with a number in it, and one later bit set
		for j := range tokens {
			tokens[j] = 1000 + uint32(j)%7
		}
		tokens[5] = n
		tokens[16+i/5%112] ^= 1 << (i / 5 % 32)
	}
	// The same prompts of two tenants are different heads as well.
	blocks := prefix.AppendTokens(make([]uint64, 0, 8), birthdaySeeds[i/5%3], tokens[:])
	return append(dst, blocks[:min(len(blocks), cap(dst)-len(dst))]...)
}
