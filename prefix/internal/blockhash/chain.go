// Package blockhash is the chained hash that names the blocks of a prompt. Package
// prefix exports it; package precise continues chains from engines' events.
package blockhash

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Bytes is the length of a block: of text, or of token ids of four bytes in
// little-endian order.
const Bytes = 64

// Words is the number of words in a block.
const Words = Bytes / 8

// Modulus is the modulus of the polynomials.
const Modulus = 1<<61 - 1

// What is hashed, added to the start of a chain, so that text, tokens and media
// are never equal. For media, the length is added above these two bits.
const (
	OfTokens = iota
	OfText
	OfMedia
)

// Secret is the expanded form of a seed: numbers that look random to anyone
// without the key, and differ between scopes. See [Chain] for their use.
type Secret struct {
	Words  [Words]uint64
	Points [2]uint64
	Starts [2]uint64
}

// Seed refers to a Secret in a way that fmt does not follow.
type Seed struct{ secret **Secret }

// NewSeed returns the seed of a secret.
func NewSeed(secret **Secret) Seed { return Seed{secret} }

// SecretOf returns the secret of a seed; nil for the zero Seed. It is not a method,
// so that none is promoted to the public type that embeds Seed.
func SecretOf(s Seed) **Secret { return s.secret }

// Start starts a hash of this kind under a secret.
func Start(secret **Secret, kind uint64) Chain {
	starts := &(*secret).Starts
	return Chain{secret, starts[0] + kind, starts[1] + kind}
}

// Chain is a hash in the middle of its input, which gives a sum after each
// block.
//
// A block is compressed by NH, the inner hash of UMAC (Black et al., CRYPTO
// 1999): a secret word is added to each of its eight words, the sums are
// multiplied in pairs, and the four products of 128 bits are added up. For any
// two blocks and any number, the probability that their sums differ by that
// number is at most 2^-64, if the secret is not known when the blocks are
// chosen: to make a factor zero, or any other value, one has to know the word
// that is added to it. (Words combined by exclusive or, and products folded by
// it, as in wyhash, mix as well, but nothing is proven.)
//
// The chain is two polynomials modulo the prime 2^61 - 1, each at a secret
// point of its own, with 61 bits of the lower and of the upper half of the
// blocks' sums as coefficients. Two different polynomials of degree n are equal
// at n points at most, of 2^60; and unless the point is zero, what differs
// before equal blocks differs after them. (Modulo 2^64 there would be long
// texts that collide for every key.) The starts are secret too, so that heads
// of different lengths are different polynomials.
//
// A hash mixes the two into one number. For two heads of n blocks that were
// chosen without knowing the key, hashes are equal with a probability of at
// most about n in 2^58. As there are 122 bits of state behind 64 of hash, a
// collision in one block says nothing of the next; one that lasts, because the
// states are equal, has a probability of about 2^-58, however long the heads.
// All this takes seven multiplications per block, most of which are
// independent.
//
// This is no cryptographic hash. Its guarantee holds against those who do not
// see hashes; from enough of them, with their prompts, the secret can be found.
type Chain struct {
	Secret **Secret
	A, B   uint64
}

// Append appends the sum of everything so far after each full block of p, and
// leaves out a partial last one.
func (c *Chain) Append(dst []uint64, p []byte) []uint64 {
	n := len(p) / Bytes
	dst = slices.Grow(dst, n)
	out := dst[len(dst) : len(dst)+n]
	k := &(*c.Secret).Words
	x, y := (*c.Secret).Points[0], (*c.Secret).Points[1]
	a, b := c.A, c.B
	for i := range out {
		m := (*[Bytes]byte)(p[Bytes*i:])
		hi, lo := product(m[0:16], k[0], k[1])
		hi, lo = plus(hi, lo, m[16:32], k[2], k[3])
		hi, lo = plus(hi, lo, m[32:48], k[4], k[5])
		hi, lo = plus(hi, lo, m[48:64], k[6], k[7])

		a = Times(a+lo&Modulus, x)
		b = Times(b+hi&Modulus, y)
		h := (a + bits.RotateLeft64(b, 32)) * 0x9e3779b97f4a7c15
		out[i] = h ^ h>>32
	}
	c.A, c.B = a, b
	return dst[:len(dst)+n]
}

// Sum is the hash of a whole, such as a picture.
func Sum(secret **Secret, p []byte) uint64 {
	// The last block is padded with zeros, which is unambiguous because the length is hashed too.
	c := Start(secret, OfMedia+uint64(len(p))<<2)
	var some [64]uint64
	for len(p) >= Bytes {
		n := min(len(p), len(some)*Bytes)
		c.Append(some[:0], p[:n])
		p = p[n-n%Bytes:]
	}
	var last [Bytes]byte
	copy(last[:], p)
	return c.Append(some[:0], last[:])[0]
}

// product multiplies two words, after adding a secret to each.
func product(p []byte, k0, k1 uint64) (hi, lo uint64) {
	return bits.Mul64(binary.LittleEndian.Uint64(p)+k0, binary.LittleEndian.Uint64(p[8:])+k1)
}

// plus adds the next product.
func plus(hi, lo uint64, p []byte, k0, k1 uint64) (uint64, uint64) {
	h, l := product(p, k0, k1)
	lo, carry := bits.Add64(lo, l, 0)
	hi, _ = bits.Add64(hi, h, carry)
	return hi, lo
}

// Times returns v times the point modulo 2^61 - 1, as a number below 2^63 +
// 2^61. Points are stored times eight, so that the part above 2^61 is in the
// upper word.
func Times(v, point uint64) uint64 {
	hi, lo := bits.Mul64(v, point)
	return hi + lo>>3
}

// Mix spreads the bits of a number: it is one step of splitmix64, a bijection. It hides nothing.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
