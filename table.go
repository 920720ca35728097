package endpick

import (
	"cmp"
	"maps"
	"slices"
)

// member is an endpoint as it stands in a table: its description, which
// Router.Update replaces, and its state, which lives as long as the endpoint.
type member struct {
	state    *endpointState
	endpoint *Endpoint
}

func bySlot(a, b member) int { return cmp.Compare(a.state.ref.Slot, b.state.ref.Slot) }

// table is the set of endpoints at one moment. It never changes; a change
// makes a new one.
type table struct {
	byID map[string]member
	// pools holds the endpoints to choose from, ordered by slot, for each
	// model and adapter that any of them names; every is the pool of all
	// other names.
	pools map[string][]member
	every []member
}

func newTable(byID map[string]member) *table {
	t := &table{byID: byID, pools: map[string][]member{}}
	active := slices.SortedFunc(maps.Values(byID), bySlot)
	active = slices.DeleteFunc(active, func(m member) bool { return m.state.is(draining) })
	for _, m := range active {
		for _, name := range slices.Concat(m.endpoint.Models, m.endpoint.Adapters) {
			t.pools[name] = nil
		}
	}
	for _, m := range active {
		if m.endpoint.servesAll() {
			t.every = append(t.every, m)
			for name := range t.pools {
				t.pools[name] = append(t.pools[name], m)
			}
			continue
		}
		for _, name := range slices.Concat(m.endpoint.Models, m.endpoint.Adapters) {
			pool := t.pools[name]
			if n := len(pool); n == 0 || pool[n-1] != m { // it may name a thing twice
				t.pools[name] = append(pool, m)
			}
		}
	}
	return t
}

// pool returns the endpoints that serve what the request asks for.
func (t *table) pool(name string) []member {
	if p, ok := t.pools[name]; ok {
		return p
	}
	return t.every
}

// explainEmpty says why there is nobody to choose from.
func (t *table) explainEmpty(name string, excluded int) error {
	err := &NoEndpointsError{Model: name, Excluded: excluded}
	for _, m := range t.byID {
		if !m.endpoint.serves(name) {
			continue
		}
		err.Serving++
		if m.state.is(draining) {
			err.Draining++
		}
	}
	return err
}
