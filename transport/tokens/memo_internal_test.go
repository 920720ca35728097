package tokens

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A memo is a list of prompts, most recently used first, as many as there is room for.
func TestMemoIsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.Int64Range(0, 1200).Draw(t, "most")
		m := newMemo(most)
		type prompt struct {
			key uint64
			ids []uint32
		}
		var twin []prompt
		size := func() (n int64) {
			for _, p := range twin {
				n += 150 + 4*int64(len(p.ids))
			}
			return n
		}
		find := func(key uint64) int { return slices.IndexFunc(twin, func(p prompt) bool { return p.key == key }) }
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				key := rapid.Uint64Range(0, 9).Draw(t, "key")
				var want []uint32
				if at := find(key); at >= 0 {
					p := twin[at]
					want = p.ids
					twin = slices.Insert(slices.Delete(twin, at, at+1), 0, p)
				}
				require.Equal(t, want, m.get(key))
			},
			"put": func(t *rapid.T) {
				p := prompt{rapid.Uint64Range(0, 9).Draw(t, "key"), make([]uint32, rapid.IntRange(1, 120).Draw(t, "ids"))}
				p.ids[0] = rapid.Uint32().Draw(t, "first")
				m.put(p.key, slices.Clip(p.ids))
				if 150+4*int64(len(p.ids)) > most {
					return // what was there stays
				}
				if at := find(p.key); at >= 0 {
					twin = slices.Delete(twin, at, at+1)
				}
				for twin = slices.Insert(twin, 0, p); size() > most; {
					twin = twin[:len(twin)-1]
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, size(), m.bytes)
				require.Len(t, m.at, len(twin))
				require.Equal(t, len(twin), m.order.Len())
			},
		})
	})
}
