package protocol

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"hash"
)

// tagBytes of an HMAC-SHA-256 end each message. A forger without the key succeeds once
// in 2^64 messages, and can't try without sending.
const tagBytes = 8

// A sealer makes and checks tags. It is not safe for concurrent use.
//
// Its key is derived irreversibly from the secret that prompts are hashed with, and is
// never sent. No digest of the secret needs to be sent either, for replicas to notice
// that theirs differ: the tags of another secret are wrong.
type sealer struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

func newSealer(secret string) *sealer {
	of := hmac.New(sha256.New, []byte(secret))
	of.Write([]byte("endpick replica 1"))
	return &sealer{mac: hmac.New(sha256.New, of.Sum(nil))}
}

func (s *sealer) tag(message []byte) []byte {
	s.mac.Reset()
	s.mac.Write(message)
	return s.mac.Sum(s.sum[:0])[:tagBytes]
}

func (s *sealer) seal(message []byte) []byte { return append(message, s.tag(message)...) }

// open returns the message without its tag; false if the tag is wrong.
func (s *sealer) open(sealed []byte) ([]byte, bool) {
	if len(sealed) < tagBytes {
		return nil, false
	}
	message, tag := sealed[:len(sealed)-tagBytes], sealed[len(sealed)-tagBytes:]
	return message, subtle.ConstantTimeCompare(tag, s.tag(message)) == 1
}
