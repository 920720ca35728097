package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A clone goes on like the engine, and neither changes the other.
func TestCloneGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, err := New(Config{Blocks: 400, MaxSequences: 4, PrefillFirst: rapid.Bool().Draw(t, "prefill first")})
		require.NoError(t, err)
		now, id := time.Duration(0), uint64(0)
		submit := func(engines ...*Engine) {
			now += time.Duration(rapid.IntRange(0, 300).Draw(t, "ms")) * time.Millisecond
			id++
			r := Request{ID: id, PromptTokens: rapid.IntRange(1, 3000).Draw(t, "prompt"), OutputTokens: rapid.IntRange(1, 200).Draw(t, "output")}
			group := uint64(rapid.IntRange(1, 3).Draw(t, "group"))
			for i := range r.PromptTokens / DefaultBlockTokens {
				r.Blocks = append(r.Blocks, group<<32+uint64(i))
			}
			for _, e := range engines {
				require.NoError(t, e.Submit(now, r))
			}
		}
		for range rapid.IntRange(0, 12).Draw(t, "before") {
			submit(e)
		}
		c := e.Clone()
		for range rapid.IntRange(0, 12).Draw(t, "after") {
			submit(e, c)
		}
		other := c.Clone()
		want := e.Advance(now+time.Hour, nil)
		require.Equal(t, want, c.Advance(now+time.Hour, nil))
		require.Equal(t, want, other.Advance(now+time.Hour, nil))
		require.Equal(t, e.Totals(), other.Totals())
		require.Equal(t, e.Load(now+time.Hour), other.Load(now+time.Hour))
	})
}
