package blockhash

import (
	"encoding/binary"
	"unsafe"
)

// AppendWords is Append for token ids, four bytes each in little-endian order.
func (c *Chain) AppendWords(dst []uint64, tokens []uint32) []uint64 {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return c.Append(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens)))
	}
	return c.AppendWordsPortable(dst, tokens)
}

// AppendWordsPortable is AppendWords for any architecture.
func (c *Chain) AppendWordsPortable(dst []uint64, tokens []uint32) []uint64 {
	var block [Bytes]byte
	for len(tokens) >= Bytes/4 {
		for i, t := range tokens[:Bytes/4] {
			binary.LittleEndian.PutUint32(block[4*i:], t)
		}
		dst = c.Append(dst, block[:])
		tokens = tokens[Bytes/4:]
	}
	return dst
}
