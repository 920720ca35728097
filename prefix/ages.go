package prefix

const epochs = 32

// ages estimates, to within a sixteenth, how many of an endpoint's blocks were
// used more recently than a given one: the stack distance, which is the size of
// the smallest LRU cache that still holds it. Time is divided into epochs; each
// counts the blocks whose last use was in it.
type ages struct {
	count  [epochs]uint32 // by epoch modulo epochs
	busy   [epochs]uint32 // of these, blocks that an open lease vouches for: an engine keeps them, however old
	newest uint32
}

// advance begins a new epoch once the current one has a sixteenth of the
// capacity, and merges the two oldest.
func (a *ages) advance(capacity int) bool {
	if a.count[a.newest%epochs] < uint32(capacity)/16 {
		return false
	}
	a.newest++
	gone := a.newest % epochs
	a.count[(gone+1)%epochs] += a.count[gone]
	a.count[gone] = 0
	a.busy[(gone+1)%epochs] += a.busy[gone]
	a.busy[gone] = 0
	return true
}

// at returns the count for blocks last used in the epoch, and busyAt that of those in use.
func (a *ages) at(epoch uint32) *uint32     { return &a.count[a.index(epoch)] }
func (a *ages) busyAt(epoch uint32) *uint32 { return &a.busy[a.index(epoch)] }

func (a *ages) index(epoch uint32) uint32 {
	if a.newest-epoch >= epochs {
		epoch = a.newest + 1 // the oldest, modulo epochs
	}
	return epoch % epochs
}

// needed is how many blocks an engine has that it evicts later than those last used in
// this epoch: used more recently, or in use.
func (a *ages) needed(epoch uint32) int {
	n := a.distance(epoch)
	for back := a.newest - epoch + 1; back < epochs; back++ {
		n += int(a.busy[(a.newest-back)%epochs])
	}
	return n
}

// distance returns how many blocks were last used in this epoch or later.
func (a *ages) distance(epoch uint32) int {
	back := min(a.newest-epoch, epochs-1)
	n := 0
	for i := range back + 1 {
		n += int(a.count[(a.newest-i)%epochs])
	}
	return n
}
