package dialect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// The table equals its twin, a list searched from its end, and stays within its
// bounds.
func TestStoredTableIsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 64 << 10
		table := storedTable{limit: limit}
		var twin []*stored // the latest last
		find := func(k storedKey) int {
			for i := range twin {
				if twin[i].key == k {
					return i
				}
			}
			return -1
		}
		key := func() storedKey {
			return storedKey{rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "tenant"), rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "id")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				s := &stored{key: key(), endpoint: "e", h: new(prefix.Hasher)}
				// A third of the memory each: few fit.
				s.h.Reset(prefix.Seed{}, make([]uint64, 0, rapid.SampledFrom([]int{0, limit / 8 / 3, limit / 8 * 2}).Draw(t, "blocks")))
				table.put(s)
				if i := find(s.key); i >= 0 {
					twin = append(twin[:i], twin[i+1:]...)
				}
				twin = append(twin, s)
				for len(twin) > 1 {
					total, held := 0, map[string]int{}
					for _, s := range twin {
						total += s.cost()
						held[s.key.tenant] += s.cost()
					}
					if total <= limit {
						break
					}
					most := slices.MaxFunc(slices.Sorted(maps.Keys(held)), func(a, b string) int { return cmp.Compare(held[a], held[b]) })
					i := slices.IndexFunc(twin, func(s *stored) bool { return s.key.tenant == most })
					twin = append(twin[:i:i], twin[i+1:]...)
				}
			},
			"get": func(*rapid.T) {
				k := key()
				got := table.get(k.tenant, k.id)
				i := find(k)
				if i < 0 {
					assert.Nil(t, got)
					return
				}
				assert.Same(t, twin[i], got)
				twin = append(append(twin[:i:i], twin[i+1:]...), twin[i])
			},
			"": func(*rapid.T) {
				n := 0
				for _, s := range twin {
					n += s.cost()
				}
				assert.Equal(t, []int{len(twin), n}, []int{len(table.byKey), table.bytes})
				if table.byBytes != nil {
					assert.Equal(t, table.byBytes.Len(), len(table.tenants))
				}
			},
		})
	})
}

func TestStoredTableIsBounded(t *testing.T) {
	var table storedTable
	for i := range maxStored + 5 {
		table.put(&stored{key: storedKey{"", fmt.Sprint(i)}})
	}
	assert.Len(t, table.byKey, maxStored)
	assert.Nil(t, table.get("", "4"))
	assert.NotNil(t, table.get("", "5"))

	// An entry takes its names and the blocks of the conversation.
	table = storedTable{}
	s := &stored{key: storedKey{"ab", "cde"}, session: "f", h: new(prefix.Hasher)}
	table.put(s)
	assert.Equal(t, storedOverhead+6, table.bytes)
	s = &stored{key: s.key, h: new(prefix.Hasher)}
	s.h.Reset(prefix.Seed{}, make([]uint64, 3, 100))
	table.put(s)
	assert.Equal(t, storedOverhead+5+800, table.bytes)
}

func TestStoredIDs(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/responses/resp_1": "resp_1", "/x/v1/responses/resp_1/cancel": "resp_1", "/v1/responses/": "", "/v1/responses": "", "/responses/resp_1": "resp_1",
	} {
		assert.Equal(t, want, storedID(path), path)
	}
}

// Pieces are searched one by one, so there are few, however small. If an answer has more, nothing
// of it is known or remembered.
func TestAnswersHaveFewPieces(t *testing.T) {
	var a answer
	for i := range maxPieces / 2 {
		assert.NotNil(t, a.piece(&event{part: i, kind: text}))
		assert.NotNil(t, a.piece(&event{part: i, kind: tool}))
	}
	assert.Same(t, &a.pieces[7], a.piece(&event{part: 3, kind: tool}), "of those that are there")
	assert.False(t, a.lost)
	assert.Nil(t, a.piece(&event{part: maxPieces, kind: tool}))
	assert.True(t, a.lost)
	assert.Empty(t, a.pieces)
	assert.Nil(t, a.piece(&event{kind: text}), "and so it stays")
}

// Any number of small pieces takes memory too.
func TestAnswersAreBounded(t *testing.T) {
	r := response{api: messages, answer: answer{wanted: true}}
	a := &r.answer
	for i := range maxAnswer {
		r.read([]byte(fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"","name":""}}`, i)), false)
		if a.lost {
			break
		}
	}
	assert.True(t, a.lost)
	assert.Nil(t, a.pieces)
	r.read([]byte(`{"type":"content_block_delta","index":7,"delta":{"text":"x"}}`), false)
	assert.Nil(t, a.pieces)

	r = response{api: messages, answer: answer{wanted: true}}
	for range maxAnswer / 102 { // with its quotes
		r.read([]byte(`{"type":"content_block_delta","index":7,"delta":{"text":"`+strings.Repeat("x", 100)+`"}}`), false)
	}
	assert.False(t, a.lost)
	r.read([]byte(`{"type":"content_block_delta","index":7,"delta":{"text":"`+strings.Repeat("x", 100)+`"}}`), false)
	assert.True(t, a.lost)
	assert.Nil(t, a.pieces)

	*a = answer{}
	a.capture([]byte(`{"id":"resp_1","output":"`))
	a.capture([]byte(strings.Repeat("x", maxAnswer)))
	assert.True(t, a.lost)
	assert.Len(t, a.body, maxAnswer)
	assert.Equal(t, `"resp_1"`, string(field(a.body, "id")), "it stands before")
	var h prefix.Hasher
	assert.False(t, a.writeTo(&h, responses))
}
