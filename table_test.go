package endpick_test

import (
	"maps"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The twin of a table is a map that remembers the newest generation of each slot.
func TestTableEqualsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table endpick.PerLease[int]
		twin := map[endpick.LeaseRef]int{}
		newest := map[uint32]uint32{}
		dropped := map[endpick.LeaseRef]bool{}
		var forgotten []int
		table.Forget = func(ref endpick.LeaseRef, v *int) {
			require.Equal(t, twin[ref], *v)
			forgotten = append(forgotten, *v)
		}
		draw := func() endpick.LeaseRef {
			return endpick.LeaseRef{Slot: rapid.Uint32Range(0, 5).Draw(t, "slot"), Generation: rapid.Uint32Range(0, 4).Draw(t, "generation")}
		}
		// enter follows the contract of At and reports whether it may return a value.
		enter := func(ref endpick.LeaseRef) bool {
			if ref.Generation == 0 || ref.Generation < newest[ref.Slot] || dropped[ref] {
				return false
			}
			if ref.Generation > newest[ref.Slot] {
				delete(twin, endpick.LeaseRef{Slot: ref.Slot, Generation: newest[ref.Slot]})
				newest[ref.Slot] = ref.Generation
				twin[ref] = 0
			}
			return true
		}
		kept := 0
		t.Repeat(map[string]func(*rapid.T){
			"at": func(t *rapid.T) {
				ref := draw()
				before := maps.Clone(twin)
				v := table.At(ref)
				if _, there := before[ref]; !there && v != nil {
					require.Zero(t, *v)
					kept++
				}
				require.Equal(t, enter(ref), v != nil)
				if v != nil {
					*v = rapid.IntRange(1, 99).Draw(t, "value")
					twin[ref] = *v
				}
			},
			"find": func(t *rapid.T) {
				ref := draw()
				v := table.Find(ref)
				want, ok := twin[ref]
				require.Equal(t, ok, v != nil)
				if ok {
					require.Equal(t, want, *v)
				}
			},
			"drop": func(t *rapid.T) {
				ref := draw()
				_, there := twin[ref]
				table.Drop(ref)
				if enter(ref) {
					if !there {
						kept++
					}
					delete(twin, ref)
					dropped[ref] = true
				}
			},
			"": func(t *rapid.T) {
				all := map[endpick.LeaseRef]int{}
				for ref, v := range table.All() {
					all[ref] = *v
				}
				require.Equal(t, twin, all)
				require.Equal(t, kept, len(all)+len(forgotten), "each is forgotten once")
			},
		})
	})
}

// Generations wrap around after 2^32 uses of a slot.
func TestTableGenerationsWrap(t *testing.T) {
	var table endpick.PerEndpoint[int]
	*table.At(endpick.EndpointRef{Generation: 1<<32 - 1}) = 7
	require.NotNil(t, table.At(endpick.EndpointRef{Generation: 1}))
	assert.Zero(t, *table.Find(endpick.EndpointRef{Generation: 1}))
	assert.Nil(t, table.At(endpick.EndpointRef{Generation: 1<<32 - 1}))
	assert.Nil(t, table.Find(endpick.EndpointRef{Generation: 1<<32 - 1}))
}

func TestTableStopsEarly(t *testing.T) {
	var table endpick.PerEndpoint[int]
	for slot := range uint32(3) {
		*table.At(endpick.EndpointRef{Slot: slot, Generation: 1}) = int(slot)
	}
	n := 0
	for range table.All() {
		n++
		break
	}
	assert.Equal(t, 1, n)
	assert.Nil(t, new(endpick.PerEndpoint[int]).Find(endpick.EndpointRef{Slot: 9, Generation: 1}))
}
