package prefix

import (
	"math/bits"
	"unsafe"
)

const (
	chunkLen  = 32 // bits of a word of taken
	maxSpares = 16
)

// arena holds values of one type under small numbers, which are reused. Number 0
// means none. Values never move, so pointers remain valid while others are
// taken. The lowest chunk with room is filled first, so that higher ones run
// empty; all but a few empty chunks are released.
type arena[T any] struct {
	chunks []*[chunkLen]T
	taken  []uint32 // a bit for each value of each chunk
	room   bitset   // allocated chunks with room
	absent bitset   // chunks that were released
	spares []*[chunkLen]T
	count  int
}

func (a *arena[T]) at(i uint32) *T { return &a.chunks[i/chunkLen][i%chunkLen] }

// numbers is above every number in use.
func (a *arena[T]) numbers() uint32 { return uint32(len(a.chunks) * chunkLen) }

// find returns a value, or nil if it has been released.
func (a *arena[T]) find(i uint32) *T {
	if a.taken[i/chunkLen]>>(i%chunkLen)&1 == 0 || i == 0 {
		return nil
	}
	return a.at(i)
}

func (a *arena[T]) take() (uint32, *T) {
	number, ok := a.room.first()
	if !ok {
		number = a.grow()
	}
	bit := bits.TrailingZeros32(^a.taken[number])
	a.taken[number] |= 1 << bit
	if a.taken[number] == ^uint32(0) {
		a.room.remove(number)
	}
	a.count++
	return uint32(number*chunkLen + bit), &a.chunks[number][bit]
}

// grow allocates a chunk and returns its number.
func (a *arena[T]) grow() int {
	var c *[chunkLen]T
	if last := len(a.spares) - 1; last >= 0 {
		c = a.spares[last]
		a.spares[last] = nil
		a.spares = a.spares[:last]
	} else {
		c = new([chunkLen]T)
	}
	number, ok := a.absent.first()
	if ok {
		a.absent.remove(number)
		a.chunks[number] = c
	} else {
		number = len(a.chunks)
		a.chunks, a.taken = append(a.chunks, c), append(a.taken, 0)
	}
	if number == 0 {
		a.taken[0] = 1 // number 0, so that this chunk never runs empty
	}
	a.room.add(number)
	return number
}

func (a *arena[T]) give(i uint32) {
	number := int(i / chunkLen)
	var zero T
	*a.at(i) = zero
	a.taken[number] &^= 1 << (i % chunkLen)
	a.count--
	if a.taken[number] != 0 {
		a.room.add(number)
		return
	}
	if len(a.spares) < maxSpares {
		a.spares = append(a.spares, a.chunks[number])
	}
	a.chunks[number] = nil
	a.room.remove(number)
	a.absent.add(number)
}

// bytes is the memory of all chunks.
func (a *arena[T]) bytes() int64 {
	there := int64(len(a.chunks) - a.absent.count + len(a.spares))
	return there*int64(unsafe.Sizeof([chunkLen]T{})) + int64(cap(a.chunks)+cap(a.spares))*8 + int64(cap(a.taken))*4 +
		a.room.bytes() + a.absent.bytes()
}

// all calls f with every value in use.
func (a *arena[T]) all(f func(uint32, *T)) {
	for i := range a.numbers() {
		if v := a.find(i); v != nil {
			f(i, v)
		}
	}
}

// bitset is a set of small numbers that finds its smallest quickly.
type bitset struct {
	words []uint64
	low   int // all words before this one are empty
	count int
}

func (b *bitset) first() (int, bool) {
	if b.count == 0 {
		return 0, false
	}
	for b.words[b.low] == 0 {
		b.low++
	}
	return 64*b.low + bits.TrailingZeros64(b.words[b.low]), true
}

func (b *bitset) add(i int) {
	for i/64 >= len(b.words) {
		b.words = append(b.words, 0)
	}
	if bit := uint64(1) << (i % 64); b.words[i/64]&bit == 0 {
		b.words[i/64] |= bit
		b.count++
	}
	b.low = min(b.low, i/64)
}

func (b *bitset) remove(i int) {
	if i/64 >= len(b.words) {
		return
	}
	if bit := uint64(1) << (i % 64); b.words[i/64]&bit != 0 {
		b.words[i/64] &^= bit
		b.count--
	}
}

func (b *bitset) bytes() int64 { return int64(cap(b.words)) * 8 }
