package prefix_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick/prefix"
)

// The yardstick: one hash over as many bytes as 16,384 token ids have.
func BenchmarkSum64(b *testing.B) {
	data := make([]byte, 65536)
	for i := range data {
		data[i] = byte(i * 7)
	}
	b.Run("bytes=65536", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		var sum uint64
		for b.Loop() {
			sum += xxhash.Sum64(data)
		}
		_ = sum
	})
}

func BenchmarkHash(b *testing.B) {
	seed := seed(1)
	for _, n := range []int{2048, 16384} {
		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = uint32(i) * 2654435761 % 128000
		}
		var dst []uint64
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(4 * n))
			for b.Loop() {
				dst = prefix.AppendTokens(dst[:0], seed, tokens)
			}
		})
	}
	text := strings.Repeat("a prefix is shared by many requests. ", 1800)[:65536]
	var dst []uint64
	b.Run("text=65536", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			dst = prefix.AppendText(dst[:0], seed, text)
		}
	})
}
