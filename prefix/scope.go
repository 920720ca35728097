package prefix

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// Scope is what two prompts must have in common to share blocks. Engines
// separate the KV caches of adapters, and of tenants if they are given a
// salt.
type Scope struct {
	// Key makes hashes unpredictable to anybody who does not have it. Zero:
	// one that this process has drawn at random.
	Key   Key
	Model string
	// Adapter is the LoRA adapter. Empty: none.
	Adapter string
	// Tenant owns the prompt. Empty: shared with all requests without a tenant.
	Tenant string
	// Salt separates blocks within a tenant, as the cache_salt of a request
	// to vLLM does. Empty: none.
	Salt string
}

// Seed is what the hashes of one scope are made with. The zero Seed is that of
// the zero Scope. Like a [Key] it is secret, is not printed by accident, and
// can be copied and used from many goroutines.
type Seed struct{ blockhash.Seed }

// Seed returns the seed of the scope. It costs about a microsecond and an
// allocation: keep the seed while the scope stays the same.
func (s Scope) Seed() Seed {
	// Lengths precede the names, so that no two scopes give the same text.
	text := make([]byte, 0, 256)
	text = append(text, "endpick prefix seed 1\n"...)
	text = append(text, s.Key.bytes()[:]...)
	for _, name := range [...]string{s.Model, s.Adapter, s.Tenant, s.Salt} {
		text = binary.LittleEndian.AppendUint64(text, uint64(len(name)))
		text = append(text, name...)
	}
	sum := sha256.Sum256(text)
	var numbers [3 * sha256.Size]byte
	for i := range 3 {
		text = append(append(text[:0], sum[:]...), byte(i))
		next := sha256.Sum256(text)
		copy(numbers[i*sha256.Size:], next[:])
	}
	at := 0
	draw := func() uint64 {
		at += 8
		return binary.LittleEndian.Uint64(numbers[at-8:])
	}
	var m blockhash.Secret
	for i := range m.Words {
		m.Words[i] = draw()
	}
	for i := range m.Points {
		m.Points[i] = draw() >> 4 << 3
		m.Starts[i] = draw() & blockhash.Modulus
	}
	return Seed{blockhash.NewSeed(hide(m))}
}

// chain starts a hash of this kind.
func (s Seed) chain(kind uint64) blockhash.Chain { return blockhash.Start(s.secret(), kind) }

func (s Seed) secret() **blockhash.Secret {
	if m := blockhash.SecretOf(s.Seed); m != nil {
		return m
	}
	return blockhash.SecretOf(zeroSeed().Seed)
}

var zeroSeed = sync.OnceValue(func() Seed { return Scope{}.Seed() })
