package endpick

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever changes, every pool contains who serves its name and is not drained, no pool
// is left for a name that no endpoint lists, and slices that requests hold
// don't change.
func TestPoolsChangeAsIfMadeAnew(t *testing.T) {
	type snapshot struct{ held, copied []member }
	someNames := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 2)
	rapid.Check(t, func(t *rapid.T) {
		r := must(New(Config{}))
		f := &r.fleet
		var seen []snapshot
		var named [][2]map[string]*pool // as a request may hold it, and as it was
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
				all := maps.Clone(f.pools().named)
				named = append(named, [2]map[string]*pool{f.pools().named, maps.Clone(all)})
				require.ElementsMatch(t, slices.Collect(maps.Keys(names)), slices.Collect(maps.Keys(all)))
				all["\x00all"], all["\x00every"] = &f.pools().all, &f.pools().every
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
					require.Equal(t, len(want), len(p.members), name)
					for i, m := range p.members {
						require.Same(t, want[i].state, m.state, name)
						require.Same(t, want[i].endpoint, m.endpoint, name)
					}
					seen = append(seen, snapshot{p.members, slices.Clone(p.members)})
				}
				for _, s := range seen {
					require.True(t, slices.Equal(s.copied, s.held))
				}
				for _, of := range named {
					require.True(t, maps.Equal(of[0], of[1]))
				}
			},
		})
	})
	// Pools that begin with the same three have room for a fourth, each its own.
	r := must(New(Config{Endpoints: []Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d", Models: []string{"x"}}, {ID: "e", Models: []string{"y"}}}}))
	assert.Equal(t, "d", must(r.Route(Request{Model: "x", Exclude: []string{"a", "b", "c"}})).Endpoint().ID)
}

// The zero EndpointRef belongs to no endpoint, and the zero LeaseRef to no lease, even after a slot has been
// used 2^32 times.
func TestGenerationsSkipZero(t *testing.T) {
	f := fleet{slots: []uint32{math.MaxUint32}, freeSlots: []uint32{0}}
	assert.Equal(t, EndpointRef{Slot: 0, Generation: 1}, f.takeSlot())
	r := must(New(Config{Endpoints: []Endpoint{{ID: "a"}}}))
	must(r.Route(Request{})).Done(Outcome{})
	(*r.leases.chunks.Load())[0][0].generation = math.MaxUint32
	assert.Equal(t, LeaseRef{Slot: 0, Generation: 1}, must(r.Route(Request{})).Ref())
}

// Counters are read one after the other while they change: what is seen in
// between must still make sense.
func TestTornCounters(t *testing.T) {
	s := new(endpointState)
	s.requests.Store(1)
	s.prefilling.Store(2) // a request arrived in between
	var c Candidate
	s.fill(&c, &Endpoint{}, 0)
	assert.Equal(t, InFlight{Requests: 1, Prefilling: 1}, c.InFlight)
	assert.Equal(t, []float64{1, 0}, []float64{c.Waiting, c.Running})
	assert.Equal(t, []bool{false, true}, []bool{new(fleet).enter(s, 1), new(fleet).enter(s, 2)}, "it has become full since")
}

// The mean is the same in any order. A huge value counts like four times the next one, or 64 to be shared.
func TestMean(t *testing.T) {
	for _, values := range [][]float64{{0.1, 0.2, 0.3}, {0.3, 0.2, 0.1}, {0.3, 0.1, 0.2}, {0.2, 0.3, 0.1}} {
		var m mean
		for _, v := range values {
			m.add(v)
		}
		// Simple addition gives 0.6 in some orders and 0.6000000000000001 in others.
		assert.Equal(t, 0.20000000000000004, m.or(-1), "%v", values)
		m.add(1 << 53)
		assert.InDelta(t, (0.6+64./3)/4, m.or(-1), 1e-12)
	}
	var m mean
	for _, v := range []float64{1 << 53, 1, 1, 1, 1, 1 << 54} {
		m.add(v)
	}
	assert.Equal(t, float64(1<<54+1<<53+4)/6, m.or(-1))
	m.add(1 << 60)
	assert.Equal(t, float64(1<<56+1<<54+1<<53+4)/7, m.or(-1))
	assert.Equal(t, 0.5, (&mean{}).or(0.5))
}

// A decision reads the state and the report of every candidate: one cache line
// each.
func TestOneCacheLine(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(endpointState{}), uintptr(64))
	assert.LessOrEqual(t, unsafe.Sizeof(report{}), uintptr(64))
}
