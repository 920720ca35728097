//go:build !(goexperiment.simd && amd64)

package dialect

func glanceAt(b *[blockBytes]byte, before, odd uint64) (found, crowd bool, escapes uint64) {
	return glanceBlock(b, before, odd)
}
