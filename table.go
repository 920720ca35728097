package endpick

import "iter"

// Table keeps a T for each endpoint or lease, by its dense handle: an array
// lookup instead of a map. A handle whose slot has been reused finds nothing;
// its value is forgotten when the new handle is first used. The zero value is
// ready to use. A Table is not safe for concurrent use: the stage that owns it
// locks.
//
// A Table is as long as the highest slot in use so far. Slots are reused, so
// this is about the largest number of endpoints or leases that ever existed at
// one time.
type Table[H Ref | LeaseRef, T any] struct {
	// Forget, if not nil, is called with a value that is about to be forgotten, by
	// Drop or because another handle takes over the slot.
	Forget func(H, *T)

	// Separate from values, so that a lookup touches little memory.
	generations []generation
	values      []T
}

// PerEndpoint is the state that a stage keeps for each endpoint, under its
// own lock. A stage that has one embeds [OneRouter], and calls Drop in
// EndpointRemoved if the state should go with the endpoint.
type PerEndpoint[T any] = Table[Ref, T]

// PerLease is the state that a stage keeps for each lease: created in Routed,
// dropped in Done.
type PerLease[T any] = Table[LeaseRef, T]

// generation says which handle a slot belongs to. The zero value: none.
type generation struct {
	number  uint32
	dropped bool // the value of this generation has been dropped
}

// At returns the value of the handle, which starts as a zero T. It returns nil
// for the zero handle, and for one that has been dropped or whose slot has been
// reused, as in a late call. The pointer is valid until the next call of At.
func (t *Table[H, T]) At(h H) *T {
	ref := Ref(h)
	if ref.Generation == 0 {
		return nil
	}
	for uint64(ref.Slot) >= uint64(len(t.values)) {
		var zero T
		t.values = append(t.values, zero)
		t.generations = append(t.generations, generation{})
	}
	g := &t.generations[ref.Slot]
	switch {
	case g.number == ref.Generation:
		if g.dropped {
			return nil
		}
	case g.number != 0 && int32(ref.Generation-g.number) < 0:
		return nil
	default:
		t.forget(ref.Slot)
		*g = generation{number: ref.Generation}
	}
	return &t.values[ref.Slot]
}

// Find returns the value of the handle, or nil if there is none. The pointer is
// valid until the next call of At.
func (t *Table[H, T]) Find(h H) *T {
	ref := Ref(h)
	if uint64(ref.Slot) >= uint64(len(t.generations)) || t.generations[ref.Slot] != (generation{number: ref.Generation}) || ref.Generation == 0 {
		return nil
	}
	return &t.values[ref.Slot]
}

// Drop forgets the value of the handle and of all earlier generations of its
// slot; At and Find return nil for them from now on.
func (t *Table[H, T]) Drop(h H) {
	if t.At(h) != nil {
		slot := Ref(h).Slot
		t.forget(slot)
		t.generations[slot].dropped = true
	}
}

// forget empties a slot.
func (t *Table[H, T]) forget(slot uint32) {
	g, v := t.generations[slot], &t.values[slot]
	if g.number == 0 || g.dropped {
		return
	}
	if t.Forget != nil {
		t.Forget(H(Ref{Slot: slot, Generation: g.number}), v)
	}
	var zero T
	*v = zero
}

// All yields every value, in the order of slots. At must not be called
// meanwhile.
func (t *Table[H, T]) All() iter.Seq2[H, *T] {
	return func(yield func(H, *T) bool) {
		for slot, g := range t.generations {
			if g.number != 0 && !g.dropped && !yield(H(Ref{Slot: uint32(slot), Generation: g.number}), &t.values[slot]) {
				return
			}
		}
	}
}
