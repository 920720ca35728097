package dialect

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
	"unsafe"
)

// This file finds values in JSON without building any. It reads every valid
// text as encoding/json does (the fuzz target compares them) and is tolerant of
// others, because the engine is the one to judge them.

// skipSpace returns the index of the first byte of b from i on that is not white space.
func skipSpace(b []byte, i int) int {
	if i < len(b) && b[i] <= ' ' {
		return skipSpaces(b, i)
	}
	return i
}

func skipSpaces(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// maxDepth is how deep objects and arrays may be nested. Engines' parsers give
// up at 200 (pydantic) to 1,000.
const maxDepth = 256

// skipValue returns the index after the value that starts at b[i], or -1 if
// there is none or it does not end, or -2 if it is nested deeper than maxDepth.
func skipValue(b []byte, i int) int { return skipValueBy(nil, b, i) }

// skipValueBy is skipValue with the known long strings of the body, of which b is a part; known
// may be nil.
func skipValueBy(known *longStrings, b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return known.skip(b, i)
	case '{', '[':
		return skipContainer(known, b, i)
	}
	start := i
	for i < len(b) && !isDelimiter(b[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// skipContainer skips an object or an array. It counts brackets, eight bytes at a
// time, and continues after each string.
func skipContainer(known *longStrings, b []byte, i int) int {
	depth := 1
	for i++; i+wordBytes <= len(b); {
		x := binary.LittleEndian.Uint64(b[i : i+wordBytes])
		quotes := x ^ ones*'"'
		quotes = (quotes - ones) &^ quotes & highs
		before := quotes&-quotes - 1 // everything before the first quote
		folded := x | ones*0x20      // makes both kinds of bracket equal
		opens, closes := zeros(folded^ones*'{')&before, zeros(folded^ones*'}')&before
		opened, closed := marked(opens), marked(closes)
		if closed < depth && depth+opened <= maxDepth {
			depth += opened - closed
		} else { // it may end here
			for marks := opens | closes; marks != 0; marks &= marks - 1 {
				if opens&marks&-marks != 0 {
					if depth++; depth > maxDepth {
						return -2
					}
				} else if depth--; depth == 0 {
					return i + bits.TrailingZeros64(marks)/8 + 1
				}
			}
		}
		if quotes == 0 {
			i += wordBytes
			continue
		}
		i += bits.TrailingZeros64(quotes) / 8
		// Most strings are short, such as keys.
		if i+wordBytes < len(b) {
			if marks := ends(b[i+1 : i+1+wordBytes]); marks != 0 {
				if end := i + 1 + bits.TrailingZeros64(marks)/8; b[end] == '"' {
					i = end + 1
					continue
				}
			}
		}
		if i = known.skip(b, i); i < 0 {
			return -1
		}
	}
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = known.skip(b, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			if depth++; depth > maxDepth {
				return -2
			}
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// Masks of the lowest and highest bit of each byte.
const ones, highs = 0x0101010101010101, 0x8080808080808080

// zeros marks the bytes that are zero, and no others, by their highest bit.
func zeros(x uint64) uint64 { return ^((x&^highs + ^uint64(highs)) | x | ^uint64(highs)) }

// marked counts marks.
func marked(x uint64) int { return int(x >> 7 * ones >> 56) }

func isDelimiter(c byte) bool { return delimiters[c] }

var delimiters = [256]bool{
	',': true, ':': true, '}': true, ']': true, '{': true, '[': true, '"': true, ' ': true, '\n': true, '\r': true, '\t': true,
}

// members walks over the members of an object, elements over those of an array.
// The zero value of either is at the end.
type members struct {
	b []byte
	i int
	// broken says that the walk ended before the object did.
	broken bool
}

// membersOf starts at the object in b; false if there is none.
func membersOf(b []byte) (members, bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return members{}, false
	}
	return members{b: b, i: i + 1}, true
}

// member is one member of an object.
type member struct {
	key   []byte // without quotes, unescaped
	value []byte
	// at and end bound "key": value in the text.
	at, end int
}

func (m *members) next() (member, bool) {
	b := m.b
	i := skipSpace(b, m.i)
	if i < len(b) && b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	if i >= len(b) || b[i] != '"' {
		m.broken = i >= len(b) || b[i] != '}'
		m.b, m.i = nil, i+1
		return member{}, false
	}
	at := i
	if i = skipString(b, i); i < 0 {
		return m.fail()
	}
	key := b[at+1 : i-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		key = appendUnquoted(nil, key)
	}
	if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
		return m.fail()
	}
	i = skipSpace(b, i+1)
	end := skipValue(b, i)
	if end < 0 {
		return m.fail()
	}
	m.i = end
	return member{key: key, value: b[i:end], at: at, end: end}, true
}

func (m *members) fail() (member, bool) {
	m.b, m.broken = nil, true
	return member{}, false
}

type elements struct {
	b []byte
	i int
}

// elementsOf starts at the array in b; false if there is none.
func elementsOf(b []byte) (elements, bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return elements{}, false
	}
	return elements{b: b, i: i + 1}, true
}

func (e *elements) next() ([]byte, bool) {
	i := skipSpace(e.b, e.i)
	if i < len(e.b) && e.b[i] == ',' {
		i = skipSpace(e.b, i+1)
	}
	end := skipValue(e.b, i)
	if end < 0 {
		e.b = nil
		return nil, false
	}
	e.i = end
	return e.b[i:end], true
}

// field returns the last member of the object in b with this key, as parsers
// that build a map do; nil if there is none.
func field(b []byte, key string) []byte {
	var value []byte
	m, _ := membersOf(b)
	for {
		f, ok := m.next()
		if !ok {
			return value
		}
		if string(f.key) == key {
			value = f.value
		}
	}
}

func isString(v []byte) bool { return len(v) >= 2 && v[0] == '"' }
func isObject(v []byte) bool { return len(v) >= 2 && v[0] == '{' }
func isTrue(v []byte) bool   { return string(v) == "true" }
func isNull(v []byte) bool   { return string(v) == "null" }

// present reports whether a member is there and not null.
func present(v []byte) bool { return len(v) > 0 && !isNull(v) }

// count reads a count: an integer from 0 to 2^31 − 1, which may be written as a
// float.
func count(v []byte) (int, bool) {
	const most = 1<<31 - 1
	if len(v) == 0 || len(v) > 20 {
		return 0, false
	}
	n := int64(0)
	for i, c := range v {
		if c == '.' && i > 0 && i+1 < len(v) && len(bytes.Trim(v[i+1:], "0")) == 0 {
			break
		}
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = 10*n + int64(c-'0'); n > most {
			return 0, false
		}
	}
	return int(n), true
}

// stringBytes returns the content of the string value v, which shares memory
// with v if nothing is escaped; nil if v is not a string.
func stringBytes(v []byte) []byte {
	if !isString(v) {
		return nil
	}
	v = v[1 : len(v)-1]
	if bytes.IndexByte(v, '\\') < 0 {
		return v
	}
	return appendUnquoted(make([]byte, 0, len(v)), v)
}

// viewString converts b to a string without copying. b must not change afterwards.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// stringLen is the length in bytes of the content of the string value v,
// without decoding it; 0 if it is not a string.
func stringLen(v []byte) int {
	if !isString(v) {
		return 0
	}
	v = v[1 : len(v)-1]
	n := bytes.IndexByte(v, '\\')
	if n < 0 {
		return len(v)
	}
	for v = v[n:]; len(v) > 0; {
		if v[0] == '\\' {
			r, size := unescape(v)
			n += utf8.RuneLen(r)
			v = v[size:]
			continue
		}
		i := 1
		for i < len(v) && i < wordBytes && v[i] != '\\' {
			i++
		}
		if i == wordBytes {
			if i = bytes.IndexByte(v, '\\'); i < 0 {
				return n + len(v)
			}
		}
		n += i
		v = v[i:]
	}
	return n
}
