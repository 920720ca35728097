package prefix

import (
	"math/bits"
	"slices"
	"unsafe"
)

const chunkLen = 256

// arena holds values of one type under small numbers, which are used again.
// Number 0 is nobody's. Values don't move, so that a pointer stays good while
// others are taken.
type arena[T any] struct {
	chunks []*[chunkLen]T
	free   []uint32
	used   uint32 // numbers given out for the first time
}

func (a *arena[T]) at(i uint32) *T { return &a.chunks[i/chunkLen][i%chunkLen] }

func (a *arena[T]) take() (uint32, *T) {
	if n := len(a.free); n > 0 {
		i := a.free[n-1]
		a.free = a.free[:n-1]
		return i, a.at(i)
	}
	a.used = max(a.used, 1)
	if a.used/chunkLen == uint32(len(a.chunks)) {
		a.chunks = append(a.chunks, new([chunkLen]T))
	}
	i := a.used
	a.used++
	return i, a.at(i)
}

func (a *arena[T]) give(i uint32) {
	var zero T
	*a.at(i) = zero
	a.free = append(a.free, i)
}

// inUse is the number of values taken and not given back.
func (a *arena[T]) inUse() int { return max(int(a.used)-1, 0) - len(a.free) }

func (a *arena[T]) bytes() int64 {
	var chunk [chunkLen]T
	return int64(len(a.chunks))*int64(unsafe.Sizeof(chunk)) + int64(cap(a.chunks))*int64(unsafe.Sizeof(uintptr(0))) + int64(cap(a.free))*4
}

// slab lends slices whose capacity is one of four sizes between two powers of
// two, and keeps those that come back for the next borrower of that size.
type slab[T any] struct {
	free [classes][][]T
	lent int64 // elements, by capacity
	idle int64 // elements in free
}

const classes = 4 * 31

// class returns the number and the size of the smallest class that holds n
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
func (s *slab[T]) take(n int) []T {
	number, size := class(n)
	var x []T
	if free := s.free[number]; len(free) > 0 {
		x = free[len(free)-1]
		free[len(free)-1] = nil
		s.free[number] = free[:len(free)-1]
		s.idle -= int64(cap(x))
	} else {
		// Grow rounds up to what the allocator really gives, so that the
		// account is true.
		x = slices.Grow([]T(nil), size)
	}
	s.lent += int64(cap(x))
	return x[:n]
}

// grow returns a slice of n elements that begins with x, which is given back
// if it is too small.
func (s *slab[T]) grow(x []T, n int) []T {
	if n <= cap(x) {
		return x[:n]
	}
	y := s.take(n)
	copy(y, x)
	s.give(x)
	return y
}

func (s *slab[T]) give(x []T) {
	if cap(x) == 0 {
		return
	}
	number, size := class(cap(x))
	if size > cap(x) {
		number-- // the allocator gave a little more than the class below
	}
	s.lent -= int64(cap(x))
	s.idle += int64(cap(x))
	s.free[number] = append(s.free[number], x[:0])
}

// release leaves idle slices to the garbage collector, the largest first,
// until n bytes are saved or none is left.
func (s *slab[T]) release(n int64) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	for number := classes - 1; number > 0 && n > 0; number-- {
		free := s.free[number]
		for len(free) > 0 && n > 0 {
			x := free[len(free)-1]
			free[len(free)-1] = nil
			free = free[:len(free)-1]
			s.idle -= int64(cap(x))
			n -= int64(cap(x)) * size
		}
		s.free[number] = free
	}
}

// bytes returns what the slab holds, and how much of that is idle.
func (s *slab[T]) bytes() (all, idle int64) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	return (s.lent + s.idle) * size, s.idle * size
}
