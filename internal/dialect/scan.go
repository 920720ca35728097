package dialect

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// This file finds values in JSON without building any. It reads every valid
// text as encoding/json does (the fuzz target compares them) and is tolerant of
// others, because the engine behind is the one to judge them.

// skipSpace returns the index of the first byte of b from i that is no space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// few bytes are looked at one by one before the rest is searched at the speed of
// memory: most strings are short, and escapes come in crowds.
const (
	few  = 16 // from the start of a string
	near = 4  // after an escape
)

// skipString returns the index after the string that starts at b[i], or -1 if
// it does not end.
func skipString(b []byte, i int) int {
	quote := -1 // the nearest one, once it was looked for
	for i, n := i+1, few; i < len(b); n = near {
		for end := min(i+n, len(b)); i < end; {
			switch b[i] {
			case '"':
				return i + 1
			case '\\':
				i += 2
				end = min(i+near, len(b))
			default:
				i++
			}
		}
		if i >= len(b) {
			return -1
		}
		if quote < i {
			n := bytes.IndexByte(b[i:], '"')
			if n < 0 {
				return -1
			}
			quote = i + n
		}
		n := bytes.IndexByte(b[i:quote], '\\')
		if n < 0 {
			return quote + 1
		}
		i += n
	}
	return -1
}

// maxDepth is how deep objects and arrays may be nested. The parsers of engines
// give up at 200 (pydantic) to 1,000.
const maxDepth = 256

// skipValue returns the index after the value that starts at b[i], or -1 if
// there is none or it does not end, or -2 if it is nested deeper than maxDepth.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		depth := 0
		for i < len(b) {
			c := b[i]
			if !structural[c] {
				i++
				continue
			}
			switch c {
			case '"':
				end := i + 1
				for end < len(b) && end < i+few && !quoted[b[end]] {
					end++
				}
				if end < len(b) && b[end] == '"' {
					i = end + 1
					continue
				}
				if i = skipString(b, i); i < 0 {
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
	start := i
	for i < len(b) && !isDelimiter(b[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func isDelimiter(c byte) bool { return delimiters[c] }

var (
	structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}
	quoted     = [256]bool{'"': true, '\\': true} // what matters in a string
	delimiters = [256]bool{
		',': true, ':': true, '}': true, ']': true, '{': true, '[': true, '"': true, ' ': true, '\n': true, '\r': true, '\t': true,
	}
)

// members walks over the members of an object, elements over those of an
// array. The zero value of either is at an end.
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

// member is one member of an object, as it stands in the text.
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
func isTrue(v []byte) bool   { return string(v) == "true" }
func isNull(v []byte) bool   { return string(v) == "null" }

// present reports whether a member is there and not null.
func present(v []byte) bool { return len(v) > 0 && !isNull(v) }

// count reads a number of things: an integer from 0 to 2^31 − 1, which may be
// written as a float. Anything else is not one.
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

// stringBytes returns the content of the string value v; it shares memory with
// v where nothing is escaped. Not a string: nil.
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

// viewString makes a string of b without copying. b must not change after.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// stringLen is the length in bytes of the content of the string value v,
// without building it; 0 if it is not a string.
func stringLen(v []byte) int {
	if !isString(v) {
		return 0
	}
	v = v[1 : len(v)-1]
	n := 0
	for len(v) > 0 {
		i := bytes.IndexByte(v, '\\')
		if i < 0 {
			return n + len(v)
		}
		r, size := unescape(v[i:])
		n += i + utf8.RuneLen(r)
		v = v[i+size:]
	}
	return n
}

// appendUnquoted appends the content of a string, given without its quotes.
func appendUnquoted(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		if s[i] == '\\' {
			if i+1 < len(s) && shortEscapes[s[i+1]] != 0 {
				dst = append(dst, shortEscapes[s[i+1]])
				i += 2
				continue
			}
			r, size := unescape(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += size
			continue
		}
		end := i + 1
		for end < len(s) && end < i+near && s[end] != '\\' {
			end++
		}
		if end == i+near {
			n := bytes.IndexByte(s[end:], '\\')
			if n < 0 {
				return append(dst, s[i:]...)
			}
			end += n
		}
		dst = append(dst, s[i:end]...)
		i = end
	}
	return dst
}

var shortEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape reads the escape at the start of s and returns its length. What is
// no escape, or half a surrogate pair, stands for U+FFFD.
func unescape(s []byte) (rune, int) {
	if len(s) < 2 {
		return utf8.RuneError, len(s)
	}
	if c := shortEscapes[s[1]]; c != 0 {
		return rune(c), 2
	}
	if s[1] != 'u' {
		return utf8.RuneError, 2
	}
	r, ok := hex4(s[2:])
	if !ok {
		return utf8.RuneError, 2
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(s) >= 12 && s[6] == '\\' && s[7] == 'u' {
		if low, ok := hex4(s[8:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 12
			}
		}
	}
	return utf8.RuneError, 6
}

func hex4(s []byte) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range s[:4] {
		r <<= 4
		switch {
		case c >= '0' && c <= '9':
			r |= rune(c - '0')
		case c >= 'a' && c <= 'f':
			r |= rune(c-'a') + 10
		case c >= 'A' && c <= 'F':
			r |= rune(c-'A') + 10
		default:
			return 0, false
		}
	}
	return r, true
}
