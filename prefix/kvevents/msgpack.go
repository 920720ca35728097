package kvevents

import (
	"encoding/binary"
	"math"
)

// reader reads one message in MessagePack. If the next value has another type than asked
// for, its methods return false and don't advance. What they return refers to the
// message.
type reader struct {
	b []byte
	i int
}

type kind uint8

const (
	kindNone kind = iota // the message ends, or is no MessagePack
	kindNil
	kindBool
	kindInt
	kindFloat
	kindString
	kindBytes
	kindArray
	kindMap
	kindExtension
)

// maxDepth limits the nesting of skipped values.
const maxDepth = 32

func (r *reader) kind() kind {
	if r.i >= len(r.b) {
		return kindNone
	}
	switch c := r.b[r.i]; {
	case c <= 0x7f, c >= 0xe0, c >= 0xcc && c <= 0xd3:
		return kindInt
	case c <= 0x8f, c == 0xde, c == 0xdf:
		return kindMap
	case c <= 0x9f, c == 0xdc, c == 0xdd:
		return kindArray
	case c <= 0xbf, c >= 0xd9 && c <= 0xdb:
		return kindString
	case c == 0xc0:
		return kindNil
	case c == 0xc2, c == 0xc3:
		return kindBool
	case c >= 0xc4 && c <= 0xc6:
		return kindBytes
	case c == 0xca, c == 0xcb:
		return kindFloat
	case c >= 0xc7 && c <= 0xc9, c >= 0xd4 && c <= 0xd8:
		return kindExtension
	}
	return kindNone
}

// head returns the n bytes after the first one, which is the kind, as a number.
func (r *reader) head(n int) (uint64, bool) {
	if len(r.b)-r.i-1 < n {
		return 0, false
	}
	p := r.b[r.i+1:]
	switch n {
	case 1:
		return uint64(p[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), true
	case 8:
		return binary.BigEndian.Uint64(p), true
	}
	return 0, true
}

// integer reads a number, a negative one as its two's complement.
func (r *reader) integer() (n uint64, negative, ok bool) {
	if r.kind() != kindInt {
		return 0, false, false
	}
	c := r.b[r.i]
	switch {
	case c <= 0x7f:
		r.i++
		return uint64(c), false, true
	case c >= 0xe0:
		r.i++
		return uint64(int64(int8(c))), true, true
	}
	size := 1 << (c & 3)
	n, ok = r.head(size)
	if !ok {
		return 0, false, false
	}
	r.i += 1 + size
	if c >= 0xd0 {
		shift := 64 - 8*size
		n = uint64(int64(n<<shift) >> shift)
		negative = int64(n) < 0
	}
	return n, negative, true
}

// small reads a number from 0 to 2^31 - 1.
func (r *reader) small() (int, bool) {
	at := r.i
	n, negative, ok := r.integer()
	if !ok || negative || n > math.MaxInt32 {
		r.i = at
		return 0, false
	}
	return int(n), true
}

func (r *reader) float() (float64, bool) {
	switch r.kind() {
	case kindFloat:
		size := 4 << (r.b[r.i] & 1)
		bits, ok := r.head(size)
		if !ok {
			return 0, false
		}
		r.i += 1 + size
		if size == 4 {
			return float64(math.Float32frombits(uint32(bits))), true
		}
		return math.Float64frombits(bits), true
	case kindInt:
		n, negative, ok := r.integer()
		if negative {
			return float64(int64(n)), ok
		}
		return float64(n), ok
	}
	return 0, false
}

func (r *reader) null() bool {
	if r.kind() == kindNil {
		r.i++
		return true
	}
	return false
}

// length reads the head of a value whose short form has its length in the lowest bits.
func (r *reader) length(short, mask byte, first byte, sizes ...int) (int, bool) {
	c := r.b[r.i]
	if c&^mask == short {
		r.i++
		return int(c & mask), true
	}
	size := sizes[c-first]
	n, ok := r.head(size)
	if !ok || n > uint64(len(r.b)) {
		return 0, false
	}
	r.i += 1 + size
	return int(n), true
}

// text reads a string or bytes.
func (r *reader) text() ([]byte, bool) {
	at := r.i
	var n int
	var ok bool
	switch r.kind() {
	case kindString:
		n, ok = r.length(0xa0, 0x1f, 0xd9, 1, 2, 4)
	case kindBytes:
		n, ok = r.length(0xff, 0, 0xc4, 1, 2, 4)
	}
	if !ok || len(r.b)-r.i < n {
		r.i = at
		return nil, false
	}
	r.i += n
	return r.b[r.i-n : r.i], true
}

// array reads the head of an array; the values follow. Each takes at least a byte.
func (r *reader) array() (n int, ok bool) { return r.collection(kindArray, 0x90, 0xdc, 1) }

// mapping reads the head of a map; n pairs follow.
func (r *reader) mapping() (n int, ok bool) { return r.collection(kindMap, 0x80, 0xde, 2) }

func (r *reader) collection(k kind, short, first byte, least int) (int, bool) {
	if r.kind() != k {
		return 0, false
	}
	at := r.i
	n, ok := r.length(short, 0x0f, first, 2, 4)
	if !ok || n*least > len(r.b)-r.i {
		r.i = at
		return 0, false
	}
	return n, true
}

// skip skips any value.
func (r *reader) skip() bool {
	left := 1
	depth := [maxDepth]int{}
	level := 0
	for {
		for left == 0 {
			if level == 0 {
				return true
			}
			level--
			left = depth[level]
		}
		left--
		var n int
		ok := true
		switch r.kind() {
		case kindNone:
			return false
		case kindNil, kindBool:
			r.i++
		case kindInt:
			_, _, ok = r.integer()
		case kindFloat:
			_, ok = r.float()
		case kindString, kindBytes:
			_, ok = r.text()
		case kindArray:
			n, ok = r.array()
		case kindMap:
			n, ok = r.mapping()
			n *= 2
		case kindExtension:
			ok = r.extension()
		}
		if !ok {
			return false
		}
		if n > 0 {
			if level == maxDepth {
				return false
			}
			depth[level] = left
			level++
			left = n
		}
	}
}

func (r *reader) extension() bool {
	c := r.b[r.i]
	n := 0
	if c >= 0xd4 {
		n = 1 << (c - 0xd4)
		r.i++
	} else {
		var ok bool
		if n, ok = r.length(0xff, 0, 0xc7, 1, 2, 4); !ok {
			return false
		}
	}
	if len(r.b)-r.i < n+1 {
		return false
	}
	r.i += n + 1
	return true
}
