package transport

import (
	"math/bits"
	"sync"
	"unsafe"
)

// Bodies are read into memory that is used again: a fresh megabyte costs more to get,
// zeros and page by page, than to read. Whoever lets one go must be the last to know
// of it.

const (
	// Shorter bodies are cheap to allocate, and longer ones than Config.MaxBodyBytes
	// is by default are rare. Memory that is not used goes with the second garbage
	// collection.
	leastBuffer, mostBuffer = 4 << 10, 32 << 20
	// steps are sizes to an octave, so that a buffer is an eighth longer than what is
	// in it, at the most.
	steps = 8
)

var buffers [steps * bits.UintSize]sync.Pool // of *byte, by class

// classOf is the smallest class of buffers for n bytes, and their size.
func classOf(n int) (class, size int) {
	octave := max(bits.Len(uint(n-1))-1, 3)
	step := 1 << (octave - 3)
	of := (n - 1 - 1<<octave) / step
	return steps*octave + of, 1<<octave + (of+1)*step
}

// buffer returns an empty slice with room for n bytes. What is in the room is of
// others: it is to be written over before it is read.
func buffer(n int) []byte {
	if n < leastBuffer || n > mostBuffer {
		return make([]byte, 0, n)
	}
	class, size := classOf(n)
	if p, ok := buffers[class].Get().(*byte); ok {
		return unsafe.Slice(p, size)[:0]
	}
	return make([]byte, 0, size)
}

// recycle takes back a slice of buffer. Nobody refers to it any more.
func recycle(b []byte) {
	n := cap(b)
	if n < leastBuffer {
		return
	}
	if class, size := classOf(n); size == n && n <= mostBuffer+mostBuffer/steps {
		buffers[class].Put(unsafe.SliceData(b))
	}
}
