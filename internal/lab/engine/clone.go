package engine

import (
	"maps"
	"slices"

	"github.com/google/btree"
)

// Clone returns an engine in the same state, which shares nothing with e that either
// changes. The log of cache events is left out.
func (e *Engine) Clone() *Engine {
	c := *e
	runs := map[*run]*run{}
	var copyRun func(r *run) *run
	copyRun = func(r *run) *run {
		if r == nil || runs[r] != nil {
			return runs[r]
		}
		to := new(run)
		*to = *r
		runs[r] = to
		to.parent, to.prev, to.next = copyRun(r.parent), nil, nil
		return to
	}
	c.cache = newCache(e.cache.blocks)
	c.cache.free, c.cache.idle, c.cache.evicted = e.cache.free, e.cache.idle, e.cache.evicted
	for hash, r := range e.cache.heads {
		c.cache.heads[hash] = copyRun(r)
	}
	for r := e.cache.ring.next; r != e.cache.ring; r = r.next {
		c.cache.link(copyRun(r))
	}
	c.sequences = maps.Clone(e.sequences)
	for id, s := range e.sequences {
		to := *s
		to.leaf = copyRun(s.leaf)
		c.sequences[id] = &to
	}
	copyAll := func(list []*sequence) []*sequence {
		list = slices.Clone(list)
		for i, s := range list {
			list[i] = c.sequences[s.id]
		}
		return list
	}
	c.waiting, c.running, c.prefills = copyAll(e.waiting), copyAll(e.running), copyAll(e.prefills)
	c.decoding = btree.NewG(8, endsBefore)
	for _, s := range c.running {
		if s.state == decoding {
			c.decoding.ReplaceOrInsert(s)
		}
	}
	if e.partial != nil {
		c.partial = c.sequences[e.partial.id]
	}
	c.events, c.residues = slices.Clone(e.events), slices.Clone(e.residues)
	return &c
}
