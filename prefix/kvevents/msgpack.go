package kvevents

import (
	"bytes"
	"io"
	"math"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// reader reads a message in MessagePack. Its methods return false if the next value has
// another type than asked for, or is incomplete. What they return refers to the message.
//
// The library neither limits the nesting of values nor compares lengths with what is
// there, so this does.
type reader struct {
	b  []byte
	in bytes.Reader
	d  *msgpack.Decoder // of in, without a buffer of its own
}

type kind uint8

const (
	kindNone kind = iota // the message ends, or is no MessagePack
	kindNil
	kindNumber // whole
	kindFloat
	kindString
	kindBytes
	kindArray
	kindMap
	kindOther
)

// maxDepth limits the nesting of skipped values.
const maxDepth = 32

func (r *reader) reset(message []byte) {
	r.b = message
	r.in.Reset(message)
	if r.d == nil {
		r.d = msgpack.NewDecoder(&r.in)
	}
}

// at is the position in the message, and seek changes it.
func (r *reader) at() int { return len(r.b) - r.in.Len() }

func (r *reader) seek(at int) { _, _ = r.in.Seek(int64(at), io.SeekStart) }

func (r *reader) kind() kind {
	c, err := r.d.PeekCode()
	switch {
	case err != nil, c == msgpcode.Ext32: // whose length may exceed an int
		return kindNone
	case msgpcode.IsFixedNum(c), c >= msgpcode.Uint8 && c <= msgpcode.Int64:
		return kindNumber
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		return kindMap
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		return kindArray
	case msgpcode.IsString(c):
		return kindString
	case msgpcode.IsBin(c):
		return kindBytes
	case c == msgpcode.Nil:
		return kindNil
	case c == msgpcode.Float, c == msgpcode.Double:
		return kindFloat
	}
	return kindOther
}

// integer reads a number, a negative one as its two's complement.
func (r *reader) integer() (uint64, bool) {
	if r.kind() != kindNumber {
		return 0, false
	}
	n, err := r.d.DecodeUint64()
	return n, err == nil
}

// small reads a number from 0 to 2^31 - 1, and does not advance if it is another.
func (r *reader) small() (int, bool) {
	at := r.at()
	n, ok := r.integer()
	if !ok || n > math.MaxInt32 {
		r.seek(at)
		return 0, false
	}
	return int(n), true
}

// number skips a number of any kind.
func (r *reader) number() bool {
	k := r.kind()
	return (k == kindFloat || k == kindNumber) && r.skip()
}

func (r *reader) null() bool { return r.kind() == kindNil && r.d.DecodeNil() == nil }

// text reads a string or bytes.
func (r *reader) text() ([]byte, bool) {
	if k := r.kind(); k != kindString && k != kindBytes {
		return nil, false
	}
	n, err := r.d.DecodeBytesLen()
	if err != nil || uint(n) > uint(r.in.Len()) {
		return nil, false
	}
	at := r.at()
	r.seek(at + n)
	return r.b[at : at+n], true
}

// array reads the head of an array; the values follow. Each takes at least a byte.
func (r *reader) array() (int, bool) {
	if r.kind() != kindArray {
		return 0, false
	}
	n, err := r.d.DecodeArrayLen()
	return n, err == nil && uint(n) <= uint(r.in.Len())
}

// mapping reads the head of a map; n pairs follow.
func (r *reader) mapping() (int, bool) {
	if r.kind() != kindMap {
		return 0, false
	}
	n, err := r.d.DecodeMapLen()
	return n, err == nil && uint(n) <= uint(r.in.Len()/2)
}

// value skips a value and returns its position, to seek it later.
func (r *reader) value() (int, bool) {
	at := r.at()
	return at, r.skip()
}

func (r *reader) skip() bool { return r.skipWithin(maxDepth) }

func (r *reader) skipWithin(levels int) bool {
	n, ok := 0, true
	switch r.kind() {
	case kindNone:
		return false
	case kindString, kindBytes:
		_, ok = r.text()
	case kindArray:
		n, ok = r.array()
	case kindMap:
		n, ok = r.mapping()
		n *= 2
	default:
		return r.d.Skip() == nil
	}
	if !ok || n > 0 && levels == 0 {
		return false
	}
	for range n {
		if !r.skipWithin(levels - 1) {
			return false
		}
	}
	return true
}
