package prefix

import (
	"maps"
	"math/bits"
	"unsafe"
)

// pool makes values of one type, and keeps some that were given back for reuse. The zero
// value is ready to use.
type pool[T any] struct {
	spare []*T
	live  int
}

const mostSpare = 64

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
	var zero T
	*v = zero
	p.live--
	if len(p.spare) < mostSpare {
		p.spare = append(p.spare, v)
	}
}

func (p *pool[T]) bytes() int64 {
	var zero T
	return int64(p.live+len(p.spare))*int64(unsafe.Sizeof(zero)) + int64(cap(p.spare))*8
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
	var k K
	var v V
	return int64(m.most) * int64(unsafe.Sizeof(k)+unsafe.Sizeof(v)+1) * 3 / 2
}

// runs lends slices of blocks, whose capacity is one of four sizes between two powers of
// two, and keeps returned ones for reuse.
type runs struct {
	spare [4 * 31][][]uint64 // by size
	lent  int64              // blocks in lent slices
	idle  int64              // blocks in spare ones
}

// sizeOf returns the number and capacity of the smallest size for n blocks.
func sizeOf(n int) (number, blocks int) {
	if n <= 4 {
		return n, n
	}
	shift := bits.Len(uint(n-1)) - 3
	quarters := (n + 1<<shift - 1) >> shift // 5 to 8 quarters of a power of two
	return 4*shift + quarters, quarters << shift
}

// resize returns a slice of n blocks that begins with those of run, which is given back if
// it is too small, or much too large.
func (r *runs) resize(run []uint64, n int) []uint64 {
	if n > 0 && n <= cap(run) && (n > cap(run)/4 || cap(run) < 16) {
		return run[:n]
	}
	var to []uint64
	if number, size := sizeOf(n); n > 0 {
		spare := r.spare[number]
		if last := len(spare) - 1; last >= 0 {
			to, spare[last] = spare[last], nil
			r.spare[number] = spare[:last]
			r.idle -= int64(size)
		} else {
			to = make([]uint64, size)
		}
		r.lent += int64(size)
		to = to[:n]
		copy(to, run)
	}
	if cap(run) > 0 {
		number, size := sizeOf(cap(run))
		r.spare[number] = append(r.spare[number], run)
		r.lent -= int64(size)
		r.idle += int64(size)
	}
	return to
}

// bytes returns the memory taken, without leases, and how much of it is idle.
func (x *Index) bytes() (all, idle int64) {
	t := &x.tree
	idle = 8 * t.runs.idle
	all = 8*t.runs.lent + idle + t.nodes.bytes() + t.edges.bytes() + int64(t.holds)*int64(unsafe.Sizeof(hold{}))
	all += x.pieces.bytes() + x.uses.bytes() - int64(x.open)*int64(unsafe.Sizeof(use{})) + x.accounts.bytes() + x.tenants.bytes() + x.byTenant.bytes() + x.byName.bytes()
	// A little more, for the generation that a table keeps of each endpoint.
	all += int64(cap(x.slots)) * (int64(unsafe.Sizeof(slot{})+unsafe.Sizeof(cache{})) + 16)
	all += int64(cap(x.path)) * int64(unsafe.Sizeof(step{}))
	return all, idle
}

// leaseBytes is the memory for open requests, of which there are no more than leases.
func (x *Index) leaseBytes() int64 {
	return x.leaseSlots*(16+int64(unsafe.Sizeof(lease{}))) + int64(x.open)*int64(unsafe.Sizeof(use{}))
}
