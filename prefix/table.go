package prefix

// table finds numbers by a 32-bit hash of what they stand for, their tag: open
// addressing with linear probing. Tags are not unique, so callers compare the
// thing itself. Between a sixteenth and five eighths of the slots are taken.
type table struct {
	slots []tableSlot // a power of two
	count int
}

type tableSlot struct {
	tag uint32
	id  uint32 // 0: empty
}

// edgeTag hashes the edge from a node to the child that branches off at a depth
// and begins with this block.
func edgeTag(parent, depth uint32, first uint64) uint32 {
	h := (uint64(parent)*0xbf58476d1ce4e5b9 + uint64(depth)*0x94d049bb133111eb) ^ first
	h *= 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return uint32(h ^ h>>32)
}

// find returns the number with this tag that ok accepts, or 0.
func (t *table) find(tag uint32, ok func(id uint32) bool) uint32 {
	if len(t.slots) == 0 {
		return 0
	}
	mask := uint32(len(t.slots) - 1)
	for i := tag & mask; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s.id == 0 || s.tag == tag && ok(s.id) {
			return s.id
		}
	}
}

func (t *table) insert(tag, id uint32) {
	if t.count >= len(t.slots)/8*5 {
		t.resize(max(2*len(t.slots), 64))
	}
	t.put(tag, id)
	t.count++
}

func (t *table) put(tag, id uint32) {
	mask := uint32(len(t.slots) - 1)
	i := tag & mask
	for t.slots[i].id != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = tableSlot{tag, id}
}

func (t *table) resize(n int) {
	old := t.slots
	t.slots = make([]tableSlot, n)
	for _, s := range old {
		if s.id != 0 {
			t.put(s.tag, s.id)
		}
	}
}

// remove removes a number that is in the table, and closes the gap.
func (t *table) remove(tag, id uint32) {
	mask := uint32(len(t.slots) - 1)
	gap := tag & mask
	for t.slots[gap].id != id {
		gap = (gap + 1) & mask
	}
	for i := (gap + 1) & mask; t.slots[i].id != 0; i = (i + 1) & mask {
		// A slot may move back into the gap if that is not before its home.
		if home := t.slots[i].tag & mask; (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = tableSlot{}
	t.count--
	if len(t.slots) > 64 && t.count <= len(t.slots)/16 {
		t.resize(len(t.slots) / 4)
	}
}

func (t *table) bytes() int64 { return int64(len(t.slots)) * 8 }
