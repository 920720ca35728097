//go:build goexperiment.simd && amd64

package dialect

import "simd/archsimd"

// glanceAt is glanceBlock. With GOEXPERIMENT=simd and AVX-512 a block takes three
// comparisons, and only ends of strings and escaped odd bytes are found.
func glanceAt(b *[blockBytes]byte, before, odd uint64) (found, crowd bool, escapes uint64) {
	if !archsimd.X86.AVX512() {
		return glanceBlock(b, before, odd)
	}
	bytes, one := archsimd.LoadUint8x64(b), archsimd.BroadcastUint8x64(1)
	quotes := bytes.Equal(archsimd.BroadcastUint8x64('"')).ToBits()
	backslashes := bytes.Equal(archsimd.BroadcastUint8x64('\\')).ToBits()
	if backslashes == 0 {
		first := before >> 63
		return quotes&^first|bytes.And(one).Equal(one).ToBits()&first&odd != 0, false, 0
	}
	escaped, next := escapedBy(backslashes, before>>63)
	strange := bytes.And(one).Equal(one).ToBits() & escaped & odd
	return quotes&^escaped|strange != 0, true, next << 63
}
