package dialect

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// maxDepth is how deep objects and arrays may be nested. Engines' parsers give
// up at 200 (pydantic) to 1,000.
const maxDepth = 256

// skipValue returns the index after the value that starts at b[i]. It is ErrMalformed if there is
// none or it does not end, and tooDeep if it is nested deeper than maxDepth.
func skipValue(b []byte, i int) (end int, err error) {
	if i >= len(b) {
		return 0, ErrMalformed
	}
	switch b[i] {
	case '{', '[':
		return skipContainer(b, i)
	case '"':
		end = skipString(b, i)
	default:
		for end = i; end < len(b) && !delimiters[b[end]]; {
			end++
		}
	}
	if end <= i {
		return 0, ErrMalformed
	}
	return end, nil
}

func skipContainer(b []byte, i int) (end int, err error) {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			if i = skipString(b, i) - 1; i < 0 {
				return 0, ErrMalformed
			}
		case '{', '[':
			if depth++; depth > maxDepth {
				return 0, tooDeep
			}
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		}
	}
	return 0, ErrMalformed
}

// delimiters end what is no string.
var delimiters = [256]bool{',': true, ':': true, '}': true, ']': true, '{': true, '[': true, '"': true, ' ': true, '\n': true, '\r': true, '\t': true}

// skipString returns the index after the string that starts at b[i], or -1 if it
// does not end.
func skipString(b []byte, i int) int {
	for {
		n := bytes.IndexByte(b[i+1:], '"')
		if n < 0 {
			return -1
		}
		i += n + 1
		backslashes := 0
		for b[i-1-backslashes] == '\\' { // no further than the quote before
			backslashes++
		}
		if backslashes%2 == 0 {
			return i + 1
		}
	}
}

// isShortest reports whether appendShortest would change nothing: the content of a string has no \u and no \/.
func isShortest(s []byte) bool {
	i := bytes.IndexByte(s, '\\')
	if i < 0 || !hasOddEscape(s[i:]) {
		return true
	}
	for ; i >= 0 && i+1 < len(s); i = bytes.IndexByte(s, '\\') {
		if s[i+1] == 'u' || s[i+1] == '/' {
			return false
		}
		s = s[i+2:]
	}
	return true
}

// hasOddEscape reports whether a byte after a backslash is odd, as those of \u and \/ are, and of no
// other escape. It reads eight at a time.
func hasOddEscape(s []byte) bool {
	const ones = 0x0101010101010101
	found := uint64(0)
	for ; len(s) > 8; s = s[8:] {
		x := binary.LittleEndian.Uint64(s) ^ ones*'\\'
		found |= (x - ones) &^ x >> 7 & binary.LittleEndian.Uint64(s[1:])
	}
	for i := 1; i < len(s); i++ {
		if s[i-1] == '\\' {
			found |= uint64(s[i])
		}
	}
	return found&ones != 0
}

func isString(v []byte) bool { return len(v) >= 2 && v[0] == '"' }
func isObject(v []byte) bool { return len(v) >= 2 && v[0] == '{' }
func isTrue(v []byte) bool   { return string(v) == "true" }
func isNull(v []byte) bool   { return string(v) == "null" }

// present reports whether a member is there and not null.
func present(v []byte) bool { return len(v) > 0 && !isNull(v) }

// hasElements reports whether v is a non-empty array.
func hasElements(v []byte) bool {
	c := elementsOf(v)
	return c.element()
}

// length is the number of elements of an array; 0 if v is none.
func length(v []byte) (n int) {
	for e := elementsOf(v); e.element(); e.value() {
		n++
	}
	return n
}

// count reads a count: an integer from 0 to 2^31 − 1.
func count(v []byte) (int, bool) {
	if len(v) == 0 || len(v) > 20 || v[0]-'0' > 9 { // errors take memory
		return 0, false
	}
	n, err := strconv.ParseUint(viewString(v), 10, 31)
	return int(n), err == nil
}

// inQuotes is what is between the quotes of a string value; nil if v is none.
func inQuotes(v []byte) []byte {
	if !isString(v) {
		return nil
	}
	return v[1 : len(v)-1]
}

// stringBytes returns the content of the string value v, which shares memory
// with v if nothing is escaped; nil if v is not a string.
func stringBytes(v []byte) []byte {
	s := inQuotes(v)
	if bytes.IndexByte(s, '\\') < 0 {
		return s
	}
	return appendUnquoted(nil, s)
}

// plain is the content of a string value; it shares memory with it.
func plain(v []byte) string { return viewString(stringBytes(v)) }

// viewString converts b to a string without copying. b must not change afterwards.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// appendUnquoted appends the content of a string, given without its quotes.
func appendUnquoted(dst, s []byte) []byte { return appendText(dst, s, false) }

// appendShortest appends it in JSON's shortest encoding: the characters of \u and \/ are written
// themselves, or by their short escape if they need one. Invalid escapes remain as they are.
func appendShortest(dst, s []byte) []byte { return appendText(dst, s, true) }

func appendText(dst, s []byte, escaped bool) []byte {
	dst = slices.Grow(dst, len(s))
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		r, size := unescape(s[i:])
		switch short := strings.IndexRune(characters, r); {
		case escaped && short >= 0 && r != '/':
			dst = append(dst, '\\', escapes[short])
		case escaped && size <= 2 && r != '/':
			dst = append(dst, s[i:i+size]...)
		default:
			dst = utf8.AppendRune(dst, r)
		}
		s = s[i+size:]
	}
}

// escapes are what may follow a backslash, for these characters.
const escapes, characters = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// unescape reads the escape at the start of s and returns its length. Invalid
// escapes, and half surrogate pairs, stand for U+FFFD.
func unescape(s []byte) (rune, int) {
	if len(s) < 2 {
		return utf8.RuneError, len(s)
	}
	if i := strings.IndexByte(escapes, s[1]); i >= 0 {
		return rune(characters[i]), 2
	}
	r := codeUnit(s)
	switch {
	case r < 0:
		return utf8.RuneError, 2
	case !utf16.IsSurrogate(r):
		return r, 6
	}
	if pair := utf16.DecodeRune(r, codeUnit(s[6:])); pair != utf8.RuneError {
		return pair, 12
	}
	return utf8.RuneError, 6
}

// codeUnit is the value of the \u escape at the start of s; -1 if there is none.
func codeUnit(s []byte) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	var digits [2]byte
	if _, err := hex.Decode(digits[:], s[2:6]); err != nil {
		return -1
	}
	return rune(digits[0])<<8 | rune(digits[1])
}
