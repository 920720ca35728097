package prefix

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// chain is XXH64 in the middle of its input, asked after each block for the sum
// so far. Package xxhash has no call for that: one Sum64 a block, mixed into
// the hash before it, takes a third longer. Here the four lanes run on from
// block to block, and what makes a sum of them is off the critical path.
type chain struct {
	v1, v2, v3, v4 uint64
	length         uint64
}

// The primes of XXH64.
const (
	prime1 uint64 = 11400714785074694791
	prime2 uint64 = 14029467366897019727
	prime3 uint64 = 1609587929392839161
	prime4 uint64 = 9650029242287828579
)

func newChain(seed uint64) chain {
	p1 := prime1 // not a constant, so that the sums may wrap around
	return chain{v1: seed + p1 + prime2, v2: seed + prime2, v3: seed, v4: seed - p1}
}

// append appends the sum of everything so far after each full block of p, and
// leaves out a partial last one.
func (c *chain) append(dst []uint64, p []byte) []uint64 {
	n := len(p) / BlockBytes
	dst = slices.Grow(dst, n)
	out := dst[len(dst) : len(dst)+n]
	v1, v2, v3, v4, length := c.v1, c.v2, c.v3, c.v4, c.length
	for i := range out {
		b := p[:BlockBytes:BlockBytes]
		p = p[BlockBytes:]
		v1 = round(round(v1, binary.LittleEndian.Uint64(b[0:])), binary.LittleEndian.Uint64(b[32:]))
		v2 = round(round(v2, binary.LittleEndian.Uint64(b[8:])), binary.LittleEndian.Uint64(b[40:]))
		v3 = round(round(v3, binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint64(b[48:]))
		v4 = round(round(v4, binary.LittleEndian.Uint64(b[24:])), binary.LittleEndian.Uint64(b[56:]))

		h := bits.RotateLeft64(v1, 1) + bits.RotateLeft64(v2, 7) + bits.RotateLeft64(v3, 12) + bits.RotateLeft64(v4, 18)
		h = merge(h, v1)
		h = merge(h, v2)
		h = merge(h, v3)
		h = merge(h, v4)
		length += BlockBytes
		h += length
		h = (h ^ h>>33) * prime2
		h = (h ^ h>>29) * prime3
		out[i] = h ^ h>>32
	}
	c.v1, c.v2, c.v3, c.v4, c.length = v1, v2, v3, v4, length
	return dst[:len(dst)+n]
}

func round(lane, word uint64) uint64 {
	return bits.RotateLeft64(lane+word*prime2, 31) * prime1
}

func merge(h, lane uint64) uint64 { return (h^round(0, lane))*prime1 + prime4 }

// mix makes one number of two. For a fixed a it is a bijection of b, and the
// other way around.
func mix(a, b uint64) uint64 {
	h := (a ^ b) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}
