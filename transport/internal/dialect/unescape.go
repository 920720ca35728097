package dialect

import (
	"bytes"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnquoted appends the content of a string, given without its quotes.
func appendUnquoted(dst, s []byte) []byte { return appendContent(dst, s, false) }

// appendShortest appends it in JSON's shortest encoding: the characters of \u and
// \/ are written themselves, or by their short escape if they need one. Invalid
// escapes remain as they are.
func appendShortest(dst, s []byte) []byte { return appendContent(dst, s, true) }

func appendContent(dst, s []byte, shortest bool) []byte {
	dst = slices.Grow(dst, len(s))
	n, out := len(dst), dst[:cap(dst)]
	for i, broken := 0, 0; i < len(s); {
		if i >= broken {
			written, read := unquoteBlocks(out[n:], s[i:], shortest)
			if n, i = n+written, i+read; i == len(s) {
				break
			}
		}
		if s[i] != '\\' {
			end := bytes.IndexByte(s[i:], '\\')
			if end < 0 {
				end = len(s) - i
			}
			n, i = n+copy(out[n:], s[i:i+end]), i+end
			continue
		}
		if i+1 < len(s) && shortEscapes[s[i+1]] != 0 {
			if shortest && s[i+1] != '/' {
				out[n] = '\\'
				out[n+1] = s[i+1]
				n, i = n+2, i+2
				continue
			}
			out[n] = shortEscapes[s[i+1]]
			n, i = n+1, i+2
			continue
		}
		if written, read := unquoteCode(out[n:], s[i:], shortest); read > 0 {
			n, i = n+written, i+read
			continue
		}
		r, size := unescape(s[i:])
		broken = i + size + unquoteRoom // more of these may follow
		if shortest && size <= 2 {
			n, i = n+copy(out[n:], s[i:i+size]), i+size
			continue
		}
		i += size
		// An invalid escape becomes longer.
		dst = slices.Grow(utf8.AppendRune(out[:n], r), len(s)-i)
		n, out = len(dst), dst[:cap(dst)]
	}
	return out[:n]
}

const (
	// unquoteBytes are processed together, as one bit each.
	unquoteBytes = blockBytes
	// unquoteRoom must follow in both slices, because too much is copied, and then
	// overwritten.
	unquoteRoom = 2 * unquoteBytes
)

// unquoteBlocks writes the content of the head of s to out, and returns how much it
// wrote and read: up to an invalid escape, or to where little is left. Escapes come in
// clusters, at places that no branch predictor can guess: all escapes of a block are
// first found without a branch, and then processed. shortest is as in appendShortest.
func unquoteBlocks(out, s []byte, shortest bool) (n, i int) {
	for plain := 0; len(s)-i >= unquoteRoom && len(out)-n >= unquoteRoom; {
		block := (*[unquoteRoom]byte)(s[i:])
		marks := matches((*[blockBytes]byte)(block[:]), '\\')
		if marks == 0 {
			copy(out[n:n+unquoteBytes], block[:unquoteBytes])
			n, i = n+unquoteBytes, i+unquoteBytes
			if plain++; plain >= few {
				end := bytes.IndexByte(s[i:], '\\')
				if end < 0 {
					end = len(s) - i
				}
				n, i, plain = n+copy(out[n:], s[i:i+end]), i+end, 0
			}
			continue
		}
		plain = 0
		from, end := 0, unquoteBytes
		for marks != 0 {
			at := bits.TrailingZeros64(marks)
			marks &= marks - 1
			c := shortEscapes[block[at+1]]
			if shortest && c != 0 && c != '/' { // kept
				if at == unquoteBytes-1 {
					end = at // do not separate it from what it escapes
				} else if c == '\\' {
					marks &= ^uint64(0) << (at + 2)
				}
				continue
			}
			copyRun(out[n:], block, from, at)
			n += at - from
			if c == 0 {
				written, read := unquoteCode(out[n:], s[i+at:], shortest)
				if read == 0 {
					return n, i + at
				}
				n, from = n+written, at+read
				marks &= ^uint64(0) << from // of the second half of a surrogate pair
				continue
			}
			out[n] = c
			n, from = n+1, at+2
			if c == '\\' {
				marks &= ^uint64(0) << from // an escaped backslash escapes nothing
			}
		}
		if from < end {
			copyRun(out[n:], block, from, end)
			n += end - from
			from = end
		}
		i += from
	}
	return n, i
}

// copyRun copies block[from:to], and what follows up to a multiple of 32 bytes.
func copyRun(out []byte, block *[unquoteRoom]byte, from, to int) {
	_, _ = out[unquoteBytes-1], block[from+unquoteBytes-1]
	copy(out[:16], block[from:from+16])
	copy(out[16:32], block[from+16:from+32])
	if to-from > 32 {
		copy(out[32:48], block[from+32:from+48])
		copy(out[48:64], block[from+48:from+64])
	}
}

// unquoteCode writes the character of a complete \u escape at the start of s; 0, 0 if
// there is none.
func unquoteCode(out, s []byte, shortest bool) (n, size int) {
	if len(s) < 6 || s[1] != 'u' {
		return 0, 0
	}
	r := hex4(s[2:6])
	switch {
	case r < 0:
		return 0, 0
	case r < utf8.RuneSelf:
		if shortest && shortNames[r] != 0 {
			out[0], out[1] = '\\', shortNames[r]
			return 2, 6
		}
		out[0] = byte(r)
		return 1, 6
	case r < 0x800:
		out[0], out[1] = 0xc0|byte(r>>6), 0x80|byte(r&0x3f)
		return 2, 6
	case r&0xf800 != 0xd800: // not part of a surrogate pair
		out[0], out[1], out[2] = 0xe0|byte(r>>12), 0x80|byte(r>>6&0x3f), 0x80|byte(r&0x3f)
		return 3, 6
	}
	if r, size = unescape(s); size != 12 {
		return 0, 0
	}
	return utf8.EncodeRune(out, r), size
}

// shortEscapes are the characters that letters after a backslash stand for,
// shortNames the letters for characters that must be escaped.
var (
	shortEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}
	shortNames   = [utf8.RuneSelf]byte{'"': '"', '\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}
)

// unescape reads the escape at the start of s and returns its length. Invalid
// escapes, and half surrogate pairs, stand for U+FFFD.
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
	if len(s) < 6 {
		return utf8.RuneError, 2
	}
	r := hex4(s[2:6])
	if r < 0 {
		return utf8.RuneError, 2
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(s) >= 12 && s[6] == '\\' && s[7] == 'u' {
		if low := hex4(s[8:12]); low >= 0 {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 12
			}
		}
	}
	return utf8.RuneError, 6
}

// hex4 is the value of four hexadecimal digits; negative if they are none.
func hex4(s []byte) rune {
	_ = s[3]
	return rune(hexDigits[s[0]])<<12 | rune(hexDigits[s[1]])<<8 | rune(hexDigits[s[2]])<<4 | rune(hexDigits[s[3]])
}

// hexDigits are the values of digits; -1: not a digit.
var hexDigits = func() (digits [256]int8) {
	for c := range digits {
		switch {
		case c >= '0' && c <= '9':
			digits[c] = int8(c - '0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			digits[c] = int8(c | 0x20 - 'a' + 10)
		default:
			digits[c] = -1
		}
	}
	return digits
}()
