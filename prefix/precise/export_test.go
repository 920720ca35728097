package precise

import "github.com/endpick/endpick"

// Holding is how much of a prompt's head one endpoint holds.
type Holding struct {
	Knows Knowledge
	// Blocks counts the blocks of the head by the fastest tier that holds them.
	Blocks [Tiers]int
	// Routed counts the blocks of the head that are only expected.
	Routed int
	// Saved is the value of the head in blocks: less than their number if blocks have
	// to be loaded, or if the engine can't continue from the end of the head.
	Saved float64
}

// Lookup returns what an endpoint holds of the blocks of a prompt, which were cut from
// token ids: of its feeds, the one that saves most.
func (x *Index) Lookup(blocks []uint64, ref endpick.EndpointRef) (h Holding) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.endpoints.Find(ref)
	if e == nil {
		return h
	}
	h.Knows = e.knows()
	saved, most := x.most(e, x.store.walk(nil, blocks))
	if most == nil {
		return h
	}
	h.Saved = saved
	for _, key := range blocks {
		n := x.store.nodes[key]
		if n == nil {
			break
		}
		_, mask := n.find(most.number)
		switch {
		case most.full != 0 && mask&most.full == most.full, most.windowed() && mask&(1<<maxGroups-1) != 0:
			h.Blocks[GPU]++
		case mask&routedBit != 0:
			h.Routed++
		case x.value(most, mask) == 0:
			return h
		case mask&tiersMask != 0: // otherwise its engine doesn't need it
			h.Blocks[x.fastest(mask)]++
		}
	}
	return h
}

// fastest is the tier below GPU memory from which loading a block is cheapest.
func (x *Index) fastest(mask uint32) Tier {
	best := CPU
	for t := CPU; t < Tiers; t++ {
		if mask>>(tierShift+uint32(t))&1 != 0 && (mask>>(tierShift+uint32(best))&1 == 0 || x.saved[1<<t] > x.saved[1<<best]) {
			best = t
		}
	}
	return best
}
