package turns_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/turns"
)

// Turn by turn, whatever part of the previous turn is replaced, the blocks are those of
// the whole prompt; tokens that the caller declares known are not read.
func TestTurnsAreWholePrompts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h turns.Hasher
		seed := prefix.Seed{}
		if rapid.Bool().Draw(t, "seed") {
			seed = prefix.Scope{Tenant: "t"}.Seed()
			h.Reset(seed)
		}
		var before []uint32
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			same := rapid.IntRange(0, len(before)).Draw(t, "same")
			more := rapid.SliceOfN(rapid.Uint32(), 0, 700).Draw(t, "more")
			prompt := append(append([]uint32(nil), before[:same]...), more...)
			want := prefix.AppendTokens(nil, seed, prompt)
			told := rapid.IntRange(0, same).Draw(t, "told")
			if told == same {
				told = rapid.SampledFrom([]int{same, -1}).Draw(t, "or nothing")
			}
			require.Equal(t, want, append([]uint64(nil), h.Prompt(prompt, told)...))
			before = prompt
		}
	})
}

// Tokens declared known are not read.
func TestKnownTokensAreNotRead(t *testing.T) {
	tokens := make([]uint32, 4096)
	for i := range tokens {
		tokens[i] = rand.Uint32()
	}
	var h turns.Hasher
	want := append([]uint64(nil), h.Prompt(tokens, 0)...)
	clear(tokens[:2048])
	require.Equal(t, want, h.Prompt(tokens, 2048))
	require.NotEqual(t, want, h.Prompt(tokens, 0))
	require.Len(t, h.Prompt(tokens[:100], 1<<30), 6, "no further than both go")
}

func TestResetBeginsAnew(t *testing.T) {
	tokens := make([]uint32, 1024)
	a, b := prefix.Scope{Tenant: "a"}.Seed(), prefix.Scope{Tenant: "b"}.Seed()
	var h turns.Hasher
	h.Reset(a)
	h.Prompt(tokens, 0)
	h.Reset(b)
	require.Equal(t, prefix.AppendTokens(nil, b, tokens), h.Prompt(tokens, 1024))
}

func BenchmarkTurn(b *testing.B) {
	tokens := make([]uint32, 16384)
	for _, known := range []int{0, 15360} {
		b.Run(fmt.Sprintf("tokens=16384/known=%d", known), func(b *testing.B) {
			var h turns.Hasher
			h.Prompt(tokens, 0)
			b.ReportAllocs()
			for b.Loop() {
				h.Prompt(tokens, known)
			}
		})
	}
}
