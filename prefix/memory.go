package prefix

import (
	"maps"
	"slices"
	"unsafe"
)

// pool makes values of one type, and keeps some that were given back for reuse. The zero
// value is ready to use.
type pool[T any] struct {
	spare []*T
	live  int
}

const (
	mostSpare = 32
	mostRoom  = 1024 // blocks of a spare run
)

func (p *pool[T]) take() *T {
	p.live++
	last := len(p.spare) - 1
	if last < 0 {
		return new(T)
	}
	v := p.spare[last]
	p.spare = p.spare[:last]
	return v
}

func (p *pool[T]) give(v *T) {
	*v = *new(T)
	p.live--
	if len(p.spare) < mostSpare {
		p.spare = append(p.spare, v)
	}
}

func (p *pool[T]) bytes() int64 {
	return int64(p.live+len(p.spare))*int64(unsafe.Sizeof(*new(T))) + int64(cap(p.spare))*8
}

// shrinking is a map that takes no more memory than it needs, nearly.
type shrinking[K comparable, V any] struct {
	entries map[K]V
	most    int // since it was made
}

func (m *shrinking[K, V]) put(k K, v V) {
	if m.entries == nil {
		m.entries = map[K]V{}
	}
	m.entries[k] = v
	m.most = max(m.most, len(m.entries))
}

func (m *shrinking[K, V]) remove(k K) {
	delete(m.entries, k)
	if m.most > 64 && len(m.entries) < m.most/4 {
		old := m.entries
		m.entries, m.most = make(map[K]V, len(old)), len(old)
		maps.Copy(m.entries, old)
	}
}

// bytes estimates what the map takes: its slots are taken to two thirds, on average.
func (m *shrinking[K, V]) bytes() int64 {
	return int64(m.most) * int64(unsafe.Sizeof(*new(K))+unsafe.Sizeof(*new(V))+1) * 3 / 2
}

// runs lends slices of blocks with little more room than is needed, and keeps some that
// were given back for reuse.
type runs struct {
	spare [mostSpare][]uint64
	next  int // where the next one goes
	room  int // blocks in lent and spare ones
}

func (r *runs) take(n int) []uint64 {
	for i, run := range r.spare {
		if n <= cap(run) && cap(run) <= n+n/4 {
			r.spare[i] = nil
			return run[:n]
		}
	}
	run := slices.Grow([]uint64(nil), n)
	r.room += cap(run)
	return run[:n]
}

func (r *runs) give(run []uint64) {
	if cap(run) == 0 || cap(run) > mostRoom {
		r.room -= cap(run)
		return
	}
	r.room -= cap(r.spare[r.next])
	r.spare[r.next], r.next = run, (r.next+1)%mostSpare
}

// bytes returns the memory taken, without that of open requests.
func (x *Index) bytes() (all int64) {
	t := &x.tree
	all = t.nodes.bytes() + t.edges.bytes() + int64(t.runs.room)*8 + int64(t.holds)*int64(unsafe.Sizeof(hold{}))
	all += x.pieces.bytes() + x.uses.bytes() - int64(x.open)*int64(unsafe.Sizeof(use{}))
	all += x.byName.bytes() + int64(len(x.byName.entries))*int64(unsafe.Sizeof(tenant{}))
	all += x.byTenant.bytes() + int64(len(x.byTenant.entries))*int64(unsafe.Sizeof(account{}))
	// A little more, for the generation that a table keeps of each endpoint.
	all += int64(cap(x.slots)) * (int64(8+unsafe.Sizeof(cache{})) + 16)
	all += int64(cap(x.path)) * int64(unsafe.Sizeof(step{}))
	return all
}
