package prefix

// table finds nodes by the tag of their edge: open addressing with linear
// probing. A tag is not unique; who asks compares the node itself.
type table struct {
	slots []tableSlot // a power of two
	count int
}

type tableSlot struct {
	tag  uint32
	node uint32 // 0: empty
}

// edgeTag hashes the edge from a node to the child whose run begins with first.
func edgeTag(parent uint32, first uint64) uint32 {
	return uint32(mix(uint64(parent), first))
}

// find returns the node with this tag that ok accepts, or 0.
func (t *table) find(tag uint32, ok func(node uint32) bool) uint32 {
	if len(t.slots) == 0 {
		return 0
	}
	mask := uint32(len(t.slots) - 1)
	for i := tag & mask; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s.node == 0 || s.tag == tag && ok(s.node) {
			return s.node
		}
	}
}

func (t *table) insert(tag, node uint32) {
	if t.count >= len(t.slots)/8*5 {
		t.resize(max(2*len(t.slots), 64))
	}
	t.put(tag, node)
	t.count++
}

func (t *table) put(tag, node uint32) {
	mask := uint32(len(t.slots) - 1)
	i := tag & mask
	for t.slots[i].node != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = tableSlot{tag, node}
}

func (t *table) resize(n int) {
	old := t.slots
	t.slots = make([]tableSlot, n)
	for _, s := range old {
		if s.node != 0 {
			t.put(s.tag, s.node)
		}
	}
}

// remove takes out a node that is in the table, and closes the gap.
func (t *table) remove(tag, node uint32) {
	mask := uint32(len(t.slots) - 1)
	gap := tag & mask
	for t.slots[gap].node != node {
		gap = (gap + 1) & mask
	}
	for i := (gap + 1) & mask; t.slots[i].node != 0; i = (i + 1) & mask {
		// A slot may move back to the gap if that is not before its home.
		if home := t.slots[i].tag & mask; (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = tableSlot{}
	t.count--
}

func (t *table) bytes() int64 { return int64(len(t.slots)) * 8 }
