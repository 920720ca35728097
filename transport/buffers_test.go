package transport

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBuffers(t *testing.T) {
	last := 0
	for n := leastBuffer; n <= mostBuffer; n += 1 + n/50 {
		class, size := classOf(n)
		assert.GreaterOrEqual(t, size, n)
		assert.LessOrEqual(t, size, n+n/steps+1, n)
		assert.GreaterOrEqual(t, class, last)
		again, same := classOf(size)
		assert.Equal(t, [2]int{class, size}, [2]int{again, same}, "what is given back is of the class that it was taken from")
		assert.Less(t, class, len(buffers))
		last = class
	}
	for _, n := range []int{0, 1, leastBuffer - 1, leastBuffer, 100_000, mostBuffer, mostBuffer + 1, 3 * mostBuffer} {
		b := buffer(n)
		assert.Empty(t, b)
		assert.GreaterOrEqual(t, cap(b), n)
		recycle(b)
	}
	recycle(nil)
}

// A buffer in use is never handed out again.
func TestBuffersAreNotShared(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var held [][]byte
	for i := range 2000 {
		if len(held) > 0 && r.IntN(2) == 0 {
			at := r.IntN(len(held))
			b := held[at]
			require.Equal(t, len(b), bytes.Count(b, b[:1]))
			held = append(held[:at], held[at+1:]...)
			recycle(b)
			continue
		}
		b := buffer(leastBuffer + r.IntN(leastBuffer))
		b = b[:cap(b)]
		for j := range b {
			b[j] = byte(i)
		}
		held = append(held, b)
	}
}
