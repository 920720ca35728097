package prefix

import (
	"math"

	"github.com/endpick/endpick"
)

// scratch collects how many blocks each endpoint holds during one Match.
type scratch struct {
	stamp uint32 // marks with another stamp are from earlier matches
	marks []mark // by slot
}

type mark struct {
	stamp      uint32
	generation uint32
	depth      uint32
}

func (s *scratch) begin(slots int) {
	if len(s.marks) < slots {
		s.marks = make([]mark, slots+slots/4)
		s.stamp = 0
	}
	s.stamp++
	if s.stamp == 0 {
		clear(s.marks)
		s.stamp = 1
	}
}

// Match implements [endpick.Matcher]: it sets PrefixTokens of every candidate,
// to 0 where nothing is held. A prompt of unknown length is taken to be as
// long as its blocks.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	s := x.scratch.Get().(*scratch)
	x.collect(s, req.Blocks)

	block := req.Block()
	most := req.InputTokens
	if most <= 0 {
		most = int(min(float64(len(req.Blocks))*block, math.MaxInt32))
	}
	most = max(most-1, 0)
	depth, tokens := uint32(0), 0
	for i := range candidates {
		c := &candidates[i]
		c.PrefixTokens = 0
		if int64(c.Ref.Slot) >= int64(len(s.marks)) {
			continue
		}
		m := s.marks[c.Ref.Slot]
		if m.stamp != s.stamp || m.generation != c.Ref.Generation {
			continue
		}
		if m.depth != depth {
			depth, tokens = m.depth, int(min(float64(m.depth)*block, float64(most)))
		}
		c.PrefixTokens = tokens
	}
	x.scratch.Put(s)
}

// collect marks every endpoint that holds a head of the prompt. Who holds a
// node also holds all nodes above it, so that a deeper mark replaces the
// others, and a node with as many holders as the next one needs no marks.
func (x *Index) collect(s *scratch, blocks []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s.begin(len(x.servers))
	var last *node
	var id uint32
	depth, from, k := 0, 0, 0
	for depth < len(blocks) {
		id = x.trie.child(id, blocks[depth])
		if id == 0 {
			break
		}
		n := x.trie.nodes.at(id)
		if last != nil && len(last.holders) > len(n.holders) {
			x.mark(s, last, from, k)
		}
		from, k = depth, commonBlocks(n.run, blocks[depth:])
		last = n
		depth += k
		if k < len(n.run) {
			break
		}
	}
	if last != nil {
		x.mark(s, last, from, k)
	}
}

// mark marks the holders of a node that begins at depth from and of whose run
// the prompt has k blocks.
func (x *Index) mark(s *scratch, n *node, from, k int) {
	for _, h := range n.holders {
		s.marks[h.slot] = mark{
			stamp:      s.stamp,
			generation: x.generations[h.slot],
			depth:      uint32(from) + min(h.held, uint32(k)),
		}
	}
}
