package dialect

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Most strings are short, and escapes come in clusters: a string is scanned by words of
// eight bytes, then by blocks of 64, and after a few blocks without an escape the rest
// is searched at the speed of memory.
const (
	wordBytes  = 8
	blockBytes = 64
	few        = 4
)

// skipString returns the index after the string that starts at b[i], or -1 if it
// does not end.
func skipString(b []byte, i int) int {
	end, _ := readString(b, i)
	return end
}

// readString returns the index after the string that starts at b[i], or -1 if it does
// not end, and whether it has an escape that can be written in other ways: \u or \/.
// The second byte of these is odd, that of all others even.
func readString(b []byte, i int) (end int, various bool) {
	i++
	for n := 0; n < few && i+wordBytes <= len(b); n++ {
		if marks := ends(b[i : i+wordBytes]); marks == 0 {
			i += wordBytes
		} else if end := i + bits.TrailingZeros64(marks)/8; b[end] == '"' {
			return end + 1, false
		} else {
			return readLong(b, end)
		}
	}
	return readLong(b, i)
}

// readLong is readString for the rest of a string without an escape so far.
func readLong(b []byte, i int) (end int, various bool) {
	before, odd := uint64(0), ^uint64(0) // as for glance; odd becomes zero when one was found
	plain, quote := 0, 0                 // blocks without an escape; the last quote that was found
	for i < len(b) {
		for stop := i + blockBytes; i < stop && i < len(b); i += wordBytes {
			word := b[i:min(i+wordBytes, len(b))]
			found, escapes := glance(loadWord(word), before, odd)
			if found&highs == 0 {
				before = escapes
				continue
			}
			escaped := before&highest != 0
			before = 0
			for n, c := range word {
				switch {
				case escaped:
					escaped = false
					if c&1 != 0 {
						odd = 0
					}
				case c == '\\':
					escaped = true
				case c == '"':
					return i + n + 1, odd == 0
				}
			}
			if escaped {
				before = highest
			}
		}
		for len(b)-i >= blockBytes {
			block := (*[blockBytes]byte)(b[i:])
			found, crowd, escapes := glanceAt(block, before, odd)
			if found {
				ends, strange, next := lookAt(block, before>>63)
				if strange&(ends&-ends-1) != 0 {
					odd = 0
				}
				if ends != 0 {
					return i + bits.TrailingZeros64(ends) + 1, odd == 0
				}
				escapes = next << 63
			}
			i += blockBytes
			before = escapes
			if plain++; crowd || found {
				plain = 0
			}
			if plain < few {
				continue
			}
			plain = 0
			if quote < i {
				n := bytes.IndexByte(b[i:], '"')
				if n < 0 {
					return -1, odd == 0
				}
				quote = i + n
			}
			n := bytes.IndexByte(b[i:quote], '\\')
			if n < 0 {
				return quote + 1, odd == 0
			}
			i += n
		}
	}
	return -1, odd == 0
}

// ends marks the quotes and backslashes in eight bytes by the highest bit of each.
// The lowest mark is right; those above it may be wrong.
func ends(b []byte) uint64 {
	x := binary.LittleEndian.Uint64(b)
	quote, escape := x^ones*'"', x^ones*'\\'
	return ((quote-ones)&^quote | (escape-ones)&^escape) & highs
}

// glance marks bytes of a word by their highest bits; other bits are meaningless. found
// are quotes that end a string, and bytes that need a closer look: escaped backslashes
// and, if odd is not zero, escaped odd bytes. escapes are the backslashes. before is the
// result escapes for the previous word.
//
// The lowest mark of a kind is right. One above it may be wrong if the byte below has one
// too, as in `\]`. That is noticed, because it looks like an escaped backslash.
func glance(word, before, odd uint64) (found, escapes uint64) {
	quotes, escapes := word^ones*'"', word^ones*'\\'
	quotes = (quotes - ones) &^ quotes
	escapes = (escapes - ones) &^ escapes
	escaped := escapes<<8 | before>>56
	strange := word<<7&odd | escapes
	return quotes ^ (quotes^strange)&escaped, escapes
}

// glanceBlock is glance for a block; crowd tells whether there is any escape. It is no
// part of its caller, which leaves it too few registers.
//
//go:noinline
func glanceBlock(b *[blockBytes]byte, before, odd uint64) (found, crowd bool, escapes uint64) {
	le := binary.LittleEndian
	f0, e0 := glance(le.Uint64(b[0:8]), before, odd)
	f1, e1 := glance(le.Uint64(b[8:16]), e0, odd)
	f2, e2 := glance(le.Uint64(b[16:24]), e1, odd)
	f3, e3 := glance(le.Uint64(b[24:32]), e2, odd)
	f4, e4 := glance(le.Uint64(b[32:40]), e3, odd)
	f5, e5 := glance(le.Uint64(b[40:48]), e4, odd)
	f6, e6 := glance(le.Uint64(b[48:56]), e5, odd)
	f7, e7 := glance(le.Uint64(b[56:64]), e6, odd)
	return (f0|f1|f2|f3|f4|f5|f6|f7)&highs != 0, (e0|e1|e2|e3|e4|e5|e6|e7)&highs != 0, e7
}

// highest is the bit that marks the last byte of a word.
const highest = 1 << 63

// lookAt has a bit for each byte of a block, the first one lowest: ends are quotes that
// end a string, strange are escaped odd bytes. first is 1 if the first byte is escaped,
// next if the byte after the block is.
//
//go:noinline
func lookAt(b *[blockBytes]byte, first uint64) (ends, strange, next uint64) {
	escaped, next := escapedBy(matches(b, '\\'), first)
	return matches(b, '"') &^ escaped, odds(b) & escaped, next
}

// matches has a bit for each byte of a block that is c, the first one lowest.
func matches(b *[blockBytes]byte, c byte) (bits uint64) {
	all := ones * uint64(c)
	for n := 0; n <= blockBytes-wordBytes; n += wordBytes {
		bits |= gather(zeros(binary.LittleEndian.Uint64(b[n:n+wordBytes])^all)) << n
	}
	return bits
}

// odds has a bit for each byte of a block that is odd.
func odds(b *[blockBytes]byte) (bits uint64) {
	for n := 0; n <= blockBytes-wordBytes; n += wordBytes {
		bits |= gather(binary.LittleEndian.Uint64(b[n:n+wordBytes])<<7&highs) << n
	}
	return bits
}

// gather moves the highest bits of eight bytes into one, the lowest first.
func gather(marks uint64) uint64 {
	const steps = 1<<49 | 1<<42 | 1<<35 | 1<<28 | 1<<21 | 1<<14 | 1<<7 | 1
	return marks * steps >> 56
}

// escapedBy are the bytes of a block that its backslashes escape, and the first one if
// first is 1; next is 1 if the byte after the block is escaped. It is simdjson's scanner
// of escapes: in a run of backslashes every other one escapes, beginning with the first.
// Subtracting a run from the odd positions, including those after its bytes, flips these
// bits if the run begins at an even position, and leaves them if it begins at an odd
// one.
func escapedBy(backslashes, first uint64) (escaped, next uint64) {
	const oddPlaces = 0xaaaaaaaaaaaaaaaa
	runs := backslashes &^ first
	codes := ((runs<<1 | oddPlaces) - runs) ^ oddPlaces
	return codes ^ (backslashes | first), (codes & backslashes) >> 63
}

// loadWord loads a word, padded with zeros at the end of a text.
func loadWord(b []byte) uint64 {
	if len(b) == wordBytes {
		return binary.LittleEndian.Uint64(b)
	}
	var last [wordBytes]byte
	copy(last[:], b)
	return binary.LittleEndian.Uint64(last[:])
}
