package endpick

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever changes, every pool contains what it would after a rebuild, no pool
// is left for a name that no endpoint lists, and slices that requests hold
// don't change.
func TestPoolsChangeAsIfMadeAnew(t *testing.T) {
	type snapshot struct{ held, copied []member }
	someNames := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 2)
	rapid.Check(t, func(t *rapid.T) {
		r, err := New(Config{})
		require.NoError(t, err)
		f := &r.fleet
		var seen []snapshot
		pools := func() map[string]*pool {
			all := map[string]*pool{}
			for i := range f.shards {
				if p := f.shards[i].Load(); p != nil {
					maps.Copy(all, *p)
				}
			}
			return all
		}
		draw := func(t *rapid.T) Endpoint {
			return Endpoint{ID: fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "id")), Models: someNames.Draw(t, "models"), Adapters: someNames.Draw(t, "adapters")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add":    func(t *rapid.T) { _ = r.Add(draw(t)) },
			"update": func(t *rapid.T) { _ = r.Update(draw(t)) },
			"remove": func(t *rapid.T) { _ = r.Remove(draw(t).ID) },
			"drain":  func(t *rapid.T) { _ = r.Drain(draw(t).ID) },
			"resume": func(t *rapid.T) { _ = r.Resume(draw(t).ID) },
			"": func(t *rapid.T) {
				names := map[string]bool{}
				for _, m := range f.byID {
					for _, name := range m.endpoint.names() {
						names[name] = true
					}
				}
				all := pools()
				require.ElementsMatch(t, slices.Collect(maps.Keys(names)), slices.Collect(maps.Keys(all)))
				all["\x00all"], all["\x00every"] = &f.all, &f.every
				for name, p := range all {
					var want []member
					serving := 0
					for _, m := range slices.SortedFunc(maps.Values(f.byID), bySlot) {
						if name == "\x00all" || m.endpoint.servesAll() || slices.Contains(m.endpoint.names(), name) {
							serving++
							if !m.state.is(draining) {
								want = append(want, m)
							}
						}
					}
					require.Equal(t, serving, p.serving, name)
					require.Equal(t, len(want), len(p.load()), name)
					for i, m := range p.load() {
						require.Same(t, want[i].state, m.state, name)
						require.Same(t, want[i].endpoint, m.endpoint, name)
					}
					seen = append(seen, snapshot{p.load(), slices.Clone(p.load())})
				}
				for _, s := range seen {
					require.True(t, slices.Equal(s.copied, s.held))
				}
			},
		})
	})
}

// The zero Ref belongs to no endpoint, even after a slot has been used 2^32 times.
func TestGenerationsSkipZero(t *testing.T) {
	f := fleet{slots: []uint32{math.MaxUint32}, freeSlots: []uint32{0}}
	assert.Equal(t, Ref{Slot: 0, Generation: 1}, f.takeSlot())
}
