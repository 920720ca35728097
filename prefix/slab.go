package prefix

import (
	"math/bits"
	"slices"
	"unsafe"
)

// slab lends slices whose capacity is one of four sizes between two powers of
// two, and keeps returned ones for reuse.
type slab[T any] struct {
	free  [classes][]vec[T]
	takes [classes]uint32 // elements that the allocator really gives for one of the class, once known
	lent  int64           // elements in lent slices, by what they take
	idle  int64           // elements in free, likewise
	kept  int64           // slices that free has room for
}

const (
	classes = 4 * 31
	vecSize = int64(unsafe.Sizeof(vec[byte]{}))
)

// vec is a slice of less than 2^32 elements, in two thirds of a slice's bytes.
type vec[T any] struct {
	p      *T
	n, cap uint32
}

func (v vec[T]) all() []T { return unsafe.Slice(v.p, v.n) }
func (v vec[T]) len() int { return int(v.n) }

// cut returns the first n elements; n may be up to the capacity.
func (v vec[T]) cut(n int) vec[T] {
	v.n = uint32(n)
	return v
}

// class returns the number and size of the smallest class that holds n
// elements.
func class(n int) (number, size int) {
	if n <= 4 {
		return n, n
	}
	shift := bits.Len(uint(n-1)) - 3
	quarters := (n + 1<<shift - 1) >> shift // 5 to 8 quarters of a power of two
	return 4*shift + quarters, quarters << shift
}

// take returns a slice of n elements with unknown content.
func (s *slab[T]) take(n int) vec[T] {
	number, size := class(n)
	var x vec[T]
	if free := s.free[number]; len(free) > 0 {
		x = s.pop(number)
	} else {
		// Grow rounds up to what the allocator really gives, which keeps the
		// accounting exact. The slice is cut to its class: otherwise it would be
		// returned to the next one, where nobody looks for this size.
		fresh := slices.Grow([]T(nil), size)
		s.takes[number] = uint32(cap(fresh))
		x = vec[T]{p: unsafe.SliceData(fresh), cap: uint32(size)}
	}
	s.lent += s.weight(x)
	return x.cut(n)
}

// pop returns a kept slice of the class, if there is one.
func (s *slab[T]) pop(number int) vec[T] {
	free := s.free[number]
	last := len(free) - 1
	x := free[last]
	free[last] = vec[T]{}
	free = free[:last]
	if cap(free) > 64 && len(free) <= cap(free)/4 {
		smaller := append(make([]vec[T], 0, cap(free)/2), free...)
		s.kept -= int64(cap(free) - cap(smaller))
		free = smaller
	}
	s.free[number] = free
	s.idle -= s.weight(x)
	return x
}

// grow returns a slice of n elements that begins with x, which is returned to
// the slab if it is too small.
func (s *slab[T]) grow(x vec[T], n int) vec[T] {
	if n <= int(x.cap) {
		return x.cut(n)
	}
	y := s.take(n)
	copy(y.all(), x.all())
	s.give(x)
	return y
}

// shrink returns the first n elements of x, in a smaller slice if they would
// leave most of it unused.
func (s *slab[T]) shrink(x vec[T], n int) vec[T] {
	if n == 0 || x.cap < 16 || n > int(x.cap)/4 {
		return x.cut(n)
	}
	y := s.take(n)
	copy(y.all(), x.all())
	s.give(x)
	return y
}

func (s *slab[T]) give(x vec[T]) {
	if x.cap == 0 {
		return
	}
	number, _ := class(int(x.cap))
	s.lent -= s.weight(x)
	s.idle += s.weight(x)
	before := cap(s.free[number])
	s.free[number] = append(s.free[number], x)
	s.kept += int64(cap(s.free[number]) - before)
}

// weight returns how many elements a slice takes in memory.
func (s *slab[T]) weight(x vec[T]) int64 {
	number, _ := class(int(x.cap))
	return int64(s.takes[number])
}

// release drops kept slices, the largest first, until n bytes are saved or none
// is left.
func (s *slab[T]) release(n int64) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	for number := classes - 1; number > 0 && n > 0; number-- {
		for len(s.free[number]) > 0 && n > 0 {
			kept := s.kept
			n -= s.weight(s.pop(number))*size + (kept-s.kept)*vecSize
		}
	}
}

// bytes returns the memory of all slices, and how much of it is idle.
func (s *slab[T]) bytes() (all, idle int64) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	return (s.lent+s.idle)*size + s.kept*vecSize, s.idle * size
}
