package kvevents

import (
	"bytes"
	"io"
	"math"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// reader reads a message in MessagePack. If the next value has another type than asked for,
// or is incomplete, it is bad from then on, and all that it reads is zero. What it returns
// refers to the message.
//
// The library neither limits the nesting of values nor compares lengths with what is
// there, so this does.
type reader struct {
	b  []byte
	in bytes.Reader
	d  *msgpack.Decoder // of in, without a buffer of its own

	bad bool
}

type kind uint8

const (
	kindNone kind = iota // the message ends, or is no MessagePack
	kindNil
	kindNumber // whole
	kindString
	kindBytes
	kindArray
	kindMap
	kindOther
)

// maxDepth limits the nesting of skipped values.
const maxDepth = 32

func (r *reader) reset(message []byte) {
	r.b, r.bad = message, false
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
	}
	return kindOther
}

// is reports whether the next value is of this kind, and all is well if it is.
func (r *reader) is(k kind) bool {
	r.bad = r.bad || r.kind() != k
	return !r.bad
}

// length returns the number of values that follow the head of an array, a map or a text.
// Each takes at least so many bytes.
func (r *reader) length(n int, err error, bytes int) int {
	if r.bad = err != nil || uint(n) > uint(r.in.Len()/bytes); r.bad {
		return 0
	}
	return n
}

// integer reads a number, a negative one as its two's complement.
func (r *reader) integer() uint64 {
	if !r.is(kindNumber) {
		return 0
	}
	n, err := r.d.DecodeUint64()
	r.bad = err != nil
	return n
}

// small reads a number from 0 to 2^31 - 1.
func (r *reader) small() int {
	n := r.integer()
	if n > math.MaxInt32 {
		r.bad = true
		return 0
	}
	return int(n)
}

// null reports whether the next value is nil, and skips it.
func (r *reader) null() bool { return !r.bad && r.kind() == kindNil && r.d.DecodeNil() == nil }

// text reads a string or bytes.
func (r *reader) text() []byte {
	if r.kind() != kindBytes && !r.is(kindString) || r.bad {
		return nil
	}
	n, err := r.d.DecodeBytesLen()
	n = r.length(n, err, 1)
	at := r.at()
	r.seek(at + n)
	return r.b[at : at+n]
}

// array reads the head of an array; the values follow.
func (r *reader) array() int {
	if !r.is(kindArray) {
		return 0
	}
	n, err := r.d.DecodeArrayLen()
	return r.length(n, err, 1)
}

// mapping reads the head of a map; n pairs follow.
func (r *reader) mapping() int {
	if !r.is(kindMap) {
		return 0
	}
	n, err := r.d.DecodeMapLen()
	return r.length(n, err, 2)
}

// value skips a value and returns its position, to seek it later.
func (r *reader) value() int {
	at := r.at()
	r.skip()
	return at
}

func (r *reader) skip() { r.skipWithin(maxDepth) }

func (r *reader) skipWithin(levels int) {
	n := 0
	switch r.kind() {
	case kindNone:
		r.bad = true
	case kindString, kindBytes:
		r.text()
	case kindArray:
		n = r.array()
	case kindMap:
		n = 2 * r.mapping()
	default:
		r.bad = r.bad || r.d.Skip() != nil
	}
	for r.bad = r.bad || n > 0 && levels == 0; n > 0 && !r.bad; n-- {
		r.skipWithin(levels - 1)
	}
}
