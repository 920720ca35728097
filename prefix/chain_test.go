package prefix

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/endpick/endpick/prefix/internal/blockhash"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// someSecret is the secret of some scope under some key.
func someSecret(n uint64) *blockhash.Secret {
	var k [keyBytes]byte
	binary.LittleEndian.PutUint64(k[:], n)
	return *Scope{Key: Key{hide(k)}}.Seed().secret()
}

func seedOf(s *blockhash.Secret) Seed { return Seed{blockhash.NewSeed(&s)} }

// naive is the chain as documented, in integers of any size.
func naive(s *blockhash.Secret, kind uint64, p []byte) (hashes []uint64) {
	whole := func(n uint64) *big.Int { return new(big.Int).SetUint64(n) }
	low := func(n *big.Int, bits uint) *big.Int {
		return new(big.Int).Mod(n, new(big.Int).Lsh(big.NewInt(1), bits))
	}
	state := [2]*big.Int{whole(s.Starts[0] + kind), whole(s.Starts[1] + kind)}
	for ; len(p) >= BlockBytes; p = p[BlockBytes:] {
		sum := new(big.Int)
		for i := 0; i < blockhash.Words; i += 2 {
			x := low(new(big.Int).Add(whole(binary.LittleEndian.Uint64(p[8*i:])), whole(s.Words[i])), 64)
			y := low(new(big.Int).Add(whole(binary.LittleEndian.Uint64(p[8*i+8:])), whole(s.Words[i+1])), 64)
			sum.Add(sum, x.Mul(x, y))
		}
		sum = low(sum, 128)
		for i, half := range []*big.Int{low(sum, 64), new(big.Int).Rsh(sum, 64)} {
			n := new(big.Int).Add(state[i], low(half, 61))
			n.Mul(n, whole(s.Points[i]/8))
			state[i] = new(big.Int).Add(low(n, 61), new(big.Int).Rsh(n, 61)) // because 2^61 is 1
		}
		h := (state[0].Uint64() + bits.RotateLeft64(state[1].Uint64(), 32)) * 0x9e3779b97f4a7c15
		hashes = append(hashes, h^h>>32)
	}
	return hashes
}

func TestChainIsWhatItsCommentSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := someSecret(rapid.Uint64().Draw(t, "key"))
		word := rapid.OneOf(rapid.Uint32(), rapid.SampledFrom([]uint32{0, 1, 1<<32 - 1}))
		tokens := rapid.SliceOfN(word, 0, 200).Draw(t, "tokens")
		var data []byte
		for _, id := range tokens {
			data = binary.LittleEndian.AppendUint32(data, id)
		}
		require.Equal(t, naive(s, blockhash.OfTokens, data), AppendTokens(nil, seedOf(s), tokens))
		require.Equal(t, naive(s, blockhash.OfText, data), AppendText(nil, seedOf(s), string(data)))

		media := binary.LittleEndian.AppendUint32(data, 7)[:len(data)+rapid.IntRange(0, 3).Draw(t, "more")]
		filled := append(media[:len(media):len(media)], make([]byte, BlockBytes-len(media)%BlockBytes)...)
		all := naive(s, blockhash.OfMedia+4*uint64(len(media)), filled)
		require.Equal(t, all[len(all)-1], blockhash.Sum(&s, media))
	})
}

// The largest possible numbers don't overflow.
func TestChainHasRoom(t *testing.T) {
	const most = 1<<64 - 1
	s := &blockhash.Secret{Points: [2]uint64{most >> 4 << 3, most >> 4 << 3}, Starts: [2]uint64{blockhash.Modulus, blockhash.Modulus}}
	for i := range s.Words {
		s.Words[i] = uint64(i % 2) // products of 2^64 - 1 and 2^64 - 1 or 0
	}
	p := make([]byte, 100*BlockBytes)
	for i := range p {
		p[i] = 0xff
	}
	c := seedOf(s).chain(blockhash.OfText)
	require.Equal(t, naive(s, blockhash.OfText, p), c.Append(nil, p))
	state := seedOf(s).chain(blockhash.OfText)
	for range 1000 {
		state.A = blockhash.Times(max(state.A, 1<<63+1<<61-1)+blockhash.Modulus, s.Points[0])
		require.Less(t, state.A, uint64(1<<63+1<<61))
	}
}

func TestSeedIsNotPrintedByAccident(t *testing.T) {
	seed := seedOf(someSecret(1))
	var h Hasher
	h.Reset(seed, nil)
	for _, v := range []any{seed, &seed, h, &h, struct{ seed Seed }{seed}, struct{ h Hasher }{h}} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			for _, look := range []string{"%d", "%x", "%X"} {
				require.NotContains(t, fmt.Sprintf(format, v), fmt.Sprintf(look, (*seed.secret()).Words[0]))
			}
		}
	}
}

func TestChainIsPortable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		fast := seedOf(someSecret(rapid.Uint64().Draw(t, "key"))).chain(blockhash.OfTokens)
		slow := fast
		require.Equal(t, slow.AppendWordsPortable([]uint64{0}, tokens), fast.AppendWords([]uint64{0}, tokens))
		require.Equal(t, slow, fast)
	})
}

// With the secret, one can make the second factor of a product zero, so that
// the first does not matter, and get as many collisions as there are words.
// Under any other secret the texts differ, in every block.
func TestCollisionsUnderAnotherKey(t *testing.T) {
	known := someSecret(1)
	tail := make([]byte, 4*BlockBytes)
	for word := 0; word < blockhash.Words; word++ {
		var texts []string
		for n := range uint64(50) {
			p := make([]byte, BlockBytes)
			binary.LittleEndian.PutUint64(p[8*word:], n)
			other := word ^ 1
			binary.LittleEndian.PutUint64(p[8*other:], -known.Words[other])
			texts = append(texts, string(append(p, tail...)))
		}
		for _, text := range texts {
			require.Equal(t, AppendText(nil, seedOf(known), texts[0]), AppendText(nil, seedOf(known), text), "this is how to collide")
		}
		for key := range uint64(20) {
			unknown := seedOf(someSecret(2 + key))
			seen := map[uint64]bool{}
			for _, text := range texts {
				for _, h := range AppendText(nil, unknown, text) {
					require.False(t, seen[h])
					seen[h] = true
				}
			}
		}
	}
}

// A polynomial modulo a power of two collides, at every point, for two texts of
// two kinds of block in the order of the Thue-Morse sequence, and its inverse.
func TestNoTextsCollideForEveryKey(t *testing.T) {
	x, y := make([]byte, BlockBytes), make([]byte, BlockBytes)
	binary.LittleEndian.PutUint64(y, 1<<63)
	var one, two []byte
	for i := range uint(1 << 12) {
		if bits.OnesCount(i)%2 == 0 {
			one, two = append(one, x...), append(two, y...)
		} else {
			one, two = append(one, y...), append(two, x...)
		}
	}
	for key := range uint64(50) {
		seed := seedOf(someSecret(key))
		a, b := AppendText(nil, seed, string(one)), AppendText(nil, seed, string(two))
		for i := range a {
			require.NotEqual(t, a[i], b[i], "key %d, block %d", key, i)
		}
	}
}

// Two states with the same hash have different hashes after the next block.
func TestCollisionsDoNotLast(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := someSecret(3)
	block := make([]byte, BlockBytes)
	for range 10_000 {
		c := blockhash.Chain{Secret: seedOf(s).secret(), A: r.Uint64() >> 3, B: r.Uint64() >> 3}
		by := r.Uint64() >> 40
		d := blockhash.Chain{Secret: c.Secret, A: c.A + by, B: bits.RotateLeft64(bits.RotateLeft64(c.B, 32)-by, 32)}
		require.NotEqual(t, c, d)
		assert.NotEqual(t, c.Append(nil, block), d.Append(nil, block))
	}
}
