package prefix

const epochs = 32

// ages estimates, to within a sixteenth, how many of an endpoint's blocks were used more
// recently than a given one: the stack distance, which is the size of the smallest LRU
// cache that still holds it. Time is divided into epochs; each counts the blocks whose
// last use was in it. Those that open requests need are counted apart, because an engine
// keeps them, however old they are.
type ages struct {
	counts [epochs]int // by epoch modulo epochs
	busy   int
	newest uint32
	used   int // blocks, in the newest epoch
}

// advance begins a new epoch, and returns true, once a sixteenth of the capacity was used. The two
// oldest are merged.
func (a *ages) advance(capacity int) bool {
	if a.used < capacity/16 {
		return false
	}
	a.used = 0
	a.newest++
	gone := a.newest % epochs
	a.counts[(gone+1)%epochs] += a.counts[gone]
	a.counts[gone] = 0
	return true
}

// at returns the count for blocks last used in the epoch.
func (a *ages) at(epoch uint32) *int {
	if a.newest-epoch >= epochs {
		epoch = a.newest + 1 // the oldest, modulo epochs
	}
	return &a.counts[epoch%epochs]
}

// needed is how many blocks an engine evicts later than the last ones of those last used
// in this epoch: used in it or later, or in use.
func (a *ages) needed(epoch uint32) int {
	n := a.busy
	for back := range min(a.newest-epoch, epochs-1) + 1 {
		n += a.counts[(a.newest-back)%epochs]
	}
	return n
}
