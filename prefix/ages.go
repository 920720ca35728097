package prefix

const epochs = 32

// ages knows, to within a sixteenth, how many blocks of an endpoint were used
// more recently than a given one: the stack distance, which tells the smallest
// LRU cache that still holds it. Time is cut into epochs; each counts the
// blocks whose last use was in it.
type ages struct {
	count  [epochs]uint32 // by epoch modulo epochs
	newest uint32
}

// advance begins a new epoch if the newest has a sixteenth of the capacity.
// The oldest two become one.
func (a *ages) advance(capacity int) bool {
	if a.count[a.newest%epochs] < uint32(capacity)/16 {
		return false
	}
	a.newest++
	gone := a.newest % epochs
	a.count[(gone+1)%epochs] += a.count[gone]
	a.count[gone] = 0
	return true
}

// at returns the count for blocks last used in the epoch.
func (a *ages) at(epoch uint32) *uint32 {
	if a.newest-epoch >= epochs {
		epoch = a.newest + 1 // modulo epochs, the oldest
	}
	return &a.count[epoch%epochs]
}

// distance returns how many blocks were last used in this epoch or after it.
func (a *ages) distance(epoch uint32) int {
	back := min(a.newest-epoch, epochs-1)
	n := 0
	for i := range back + 1 {
		n += int(a.count[(a.newest-i)%epochs])
	}
	return n
}
