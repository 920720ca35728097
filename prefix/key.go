package prefix

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/endpick/endpick"
)

// Key is the secret that block hashes depend on: 32 bytes that no client may
// know. The zero Key stands for one that this process has drawn at random, the
// same everywhere in the process. Processes that compare hashes, such as
// replicas of a gateway or readers of its recordings, share a key by its text:
// see [ParseKey] and [Key.Reveal].
//
// A Key is never printed by accident, neither by itself nor inside other
// values: fmt shows a fingerprint or an address, and encoding/json shows
// nothing. Keys can be copied; compare them by String.
type Key struct {
	secret **[keyBytes]byte // nil: that of the process
}

const keyBytes = 32

// hide returns v behind two pointers, which fmt does not follow: given a verb
// that does not fit, it prints what a pointer points to, but not if that is
// another pointer.
func hide[T any](v T) **T {
	hidden := &struct {
		at *T
		v  T
	}{v: v}
	hidden.at = &hidden.v
	return &hidden.at
}

// NewKey draws a key at random.
func NewKey() Key {
	var secret [keyBytes]byte
	rand.Read(secret[:]) // never fails
	return Key{hide(secret)}
}

// ParseKey reads a key from 64 hexadecimal digits, as `openssl rand -hex 32`
// makes them. The error, an [endpick.ConfigError], does not show the text.
func ParseKey(text string) (Key, error) {
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != keyBytes {
		return Key{}, &endpick.ConfigError{Field: "prefix.Key", Reason: "is not 64 hexadecimal digits"}
	}
	return Key{hide([keyBytes]byte(secret))}, nil
}

// Reveal returns the key as text for ParseKey. Anybody who sees it can craft
// prompts whose hashes collide.
func (k Key) Reveal() string { return hex.EncodeToString(k.bytes()[:]) }

// String returns a fingerprint, which shows whether two processes have the
// same key. It reveals nothing else about the key.
func (k Key) String() string {
	sum := sha256.Sum256(append([]byte("endpick prefix fingerprint"), k.bytes()[:]...))
	return "key " + hex.EncodeToString(sum[:4])
}

func (k Key) bytes() *[keyBytes]byte {
	if k.secret == nil {
		return processKey()
	}
	return *k.secret
}

var processKey = sync.OnceValue(func() *[keyBytes]byte { return *NewKey().secret })
