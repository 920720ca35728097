package tokens

import "container/list"

// memo is an LRU cache of ids by the names of prompts.
type memo struct {
	most  int64
	bytes int64
	at    map[uint64]*list.Element
	order *list.List // of *remembered, most recently used first
}

type remembered struct {
	key uint64
	ids []uint32
}

// entryBytes is the size of an entry without its ids.
const entryBytes = 150

func (r *remembered) size() int64 { return int64(4*cap(r.ids)) + entryBytes }

func newMemo(most int64) memo {
	return memo{most: most, at: map[uint64]*list.Element{}, order: list.New()}
}

func (m *memo) get(key uint64) []uint32 {
	e := m.at[key]
	if e == nil {
		return nil
	}
	m.order.MoveToFront(e)
	return e.Value.(*remembered).ids
}

func (m *memo) put(key uint64, ids []uint32) {
	r := &remembered{key, ids}
	if r.size() > m.most {
		return
	}
	if e := m.at[key]; e != nil {
		m.drop(e)
	}
	m.at[key] = m.order.PushFront(r)
	m.bytes += r.size()
	for m.bytes > m.most {
		m.drop(m.order.Back())
	}
}

func (m *memo) drop(e *list.Element) {
	r := m.order.Remove(e).(*remembered)
	delete(m.at, r.key)
	m.bytes -= r.size()
}
