package transport

import (
	"math/bits"
	"sync"
	"unsafe"
)

// Bodies are read into reused memory: a fresh megabyte costs more to allocate, zero
// and map page by page than to read. Whoever recycles a buffer must hold the last
// reference to it.

const (
	// Shorter bodies are cheap to allocate, and bodies longer than the default
	// Config.MaxBodyBytes are rare. Unused memory is freed by the second garbage
	// collection.
	leastBuffer, mostBuffer = 4 << 10, 32 << 20
	// steps is the number of sizes per octave: a buffer is at most an eighth longer
	// than its content.
	steps = 8
)

var buffers [steps * bits.UintSize]sync.Pool // of *byte, by class

// classOf returns the smallest class of buffers for n bytes, and its size.
func classOf(n int) (class, size int) {
	octave := max(bits.Len(uint(n-1))-1, 3)
	step := 1 << (octave - 3)
	of := (n - 1 - 1<<octave) / step
	return steps*octave + of, 1<<octave + (of+1)*step
}

// buffer returns an empty slice with room for n bytes, which may hold others'
// data: overwrite it before reading.
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

// recycle returns a slice from buffer. Nothing may refer to it any more.
func recycle(b []byte) {
	n := cap(b)
	if n < leastBuffer {
		return
	}
	if class, size := classOf(n); size == n && n <= mostBuffer+mostBuffer/steps {
		buffers[class].Put(unsafe.SliceData(b))
	}
}
