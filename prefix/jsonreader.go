package prefix

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonReader copies tokens of JSON to dst, with as few escapes in strings as
// possible. Its methods report whether the input is valid.
type jsonReader struct {
	src  []byte // valid UTF-8
	at   int
	dst  []byte
	done int // src[done:at] has yet to be copied
}

// place is the reader's position in its output.
func (r *jsonReader) place() uint32 { return uint32(len(r.dst) + r.at - r.done) }

// flush copies what has yet to be copied.
func (r *jsonReader) flush() {
	r.dst = append(r.dst, r.src[r.done:r.at]...)
	r.done = r.at
}

// peek returns the next byte, or 0 at the end.
func (r *jsonReader) peek() byte {
	if r.at < len(r.src) {
		return r.src[r.at]
	}
	return 0
}

// space skips white space and returns the next byte, or 0 at the end.
func (r *jsonReader) space() byte {
	if b := r.peek(); b > ' ' {
		return b
	}
	return r.spaces()
}

func (r *jsonReader) spaces() byte {
	for {
		switch b := r.peek(); b {
		case ' ', '\t', '\r', '\n':
			if r.done < r.at {
				r.flush()
			}
			r.at++
			r.done = r.at
		default:
			return b
		}
	}
}

func (r *jsonReader) copy(n int) { r.at += n }

// word reads a number, true, false or null.
func (r *jsonReader) word() bool {
	switch r.peek() {
	case 't':
		return r.literal("true")
	case 'f':
		return r.literal("false")
	case 'n':
		return r.literal("null")
	}
	if r.peek() == '-' {
		r.at++
	}
	if r.peek() == '0' {
		r.at++
	} else if !r.digits() {
		return false
	}
	if r.peek() == '.' {
		r.at++
		if !r.digits() {
			return false
		}
	}
	if b := r.peek(); b == 'e' || b == 'E' {
		r.at++
		if b := r.peek(); b == '+' || b == '-' {
			r.at++
		}
		if !r.digits() {
			return false
		}
	}
	return true
}

func (r *jsonReader) literal(w string) bool {
	if !bytes.HasPrefix(r.src[r.at:], bytesOf(w)) {
		return false
	}
	r.copy(len(w))
	return true
}

// digits skips one or more digits.
func (r *jsonReader) digits() bool {
	from := r.at
	for b := r.peek(); b >= '0' && b <= '9'; b = r.peek() {
		r.at++
	}
	return r.at > from
}

// string reads a string.
func (r *jsonReader) string() bool {
	r.at++
	for {
		for r.at+8 <= len(r.src) {
			marks := ends(r.src[r.at : r.at+8])
			if marks != 0 {
				r.at += bits.TrailingZeros64(marks) / 8
				break
			}
			r.at += 8
		}
		switch b := r.peek(); {
		case b == '"':
			r.at++
			return true
		case b == '\\' && r.at+1 < len(r.src) && short[r.src[r.at+1]]:
			r.at += 2 // kept as it is
		case b == '\\':
			r.flush()
			if !r.escape() {
				return false
			}
			r.done = r.at
		case b < ' ': // or the end
			return false
		default:
			r.at++
		}
	}
}

// ends marks the quotes, backslashes and control characters among eight bytes,
// by the highest bit of each. The lowest mark is right; those above it may be
// wrong.
func ends(b []byte) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	x := binary.LittleEndian.Uint64(b)
	quote, escape := x^ones*'"', x^ones*'\\'
	return ((quote-ones)&^quote | (escape-ones)&^escape | (x-ones*' ')&^x) & highs
}

var escapedLetter = []byte(`\u`)

// short are the letters of escapes that are kept.
var short = [256]bool{'"': true, '\\': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escape reads any other escape, and writes the character itself if it can stand unescaped.
func (r *jsonReader) escape() bool {
	r.at++
	b := r.peek()
	switch b {
	case '/':
		r.dst = append(r.dst, b)
	case 'u':
		return r.unicode()
	default:
		return false
	}
	r.at++
	return true
}

// unicode reads a \u escape from the u on, and the second half of a surrogate pair.
func (r *jsonReader) unicode() bool {
	c, ok := r.hex()
	if ok && utf16.IsSurrogate(c) {
		var low rune
		if ok = bytes.HasPrefix(r.src[r.at:], escapedLetter); ok {
			r.at++
			low, ok = r.hex()
		}
		c = utf16.DecodeRune(c, low)
		ok = ok && c != utf8.RuneError
	}
	switch {
	case !ok:
		return false
	case c == '"' || c == '\\':
		r.dst = append(r.dst, '\\', byte(c))
	case c >= ' ':
		r.dst = utf8.AppendRune(r.dst, c)
	case c >= '\b' && c <= '\r' && c != '\v':
		r.dst = append(r.dst, '\\', "btn_fr"[c-'\b'])
	default:
		r.dst = append(r.dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
	return true
}

const hexDigits = "0123456789abcdef"

// hex reads a u and four hexadecimal digits.
func (r *jsonReader) hex() (rune, bool) {
	if len(r.src)-r.at < 5 {
		return 0, false
	}
	digits := r.src[r.at+1 : r.at+5]
	r.at += 5
	c := rune(0)
	for i := range len(digits) {
		b := digits[i]
		switch {
		case b >= '0' && b <= '9':
			b -= '0'
		case b|0x20 >= 'a' && b|0x20 <= 'f':
			b = b | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		c = c<<4 | rune(b)
	}
	return c, true
}
