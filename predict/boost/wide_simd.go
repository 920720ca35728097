//go:build goexperiment.simd && amd64

package boost

import (
	"simd/archsimd"

	"github.com/endpick/endpick/internal/portable"
)

// With GOEXPERIMENT=simd and AVX-512, 64 rows are predicted at once: a level is one comparison of
// 64 bins, and a leaf is selected among the 64 by its number, which fits four registers. Each row
// still adds up its leaves in the order of the trees, so that the result is the same to the last
// bit.

const (
	wideRows = 64
	// fewWide is the number of rows up to which eight at a time are faster.
	fewWide = 2 * blockRows
)

// A wideBlock holds the bins of 64 rows, by feature.
type wideBlock [maxFeatures][wideRows]uint8

// predictWide is Predict for as many of the rows as it is faster for, and returns their number.
func (m *Model) predictWide(dst, x []float64) (done int) {
	if !archsimd.X86.AVX512() {
		return 0
	}
	k := m.config.Features
	var b wideBlock
	var sums [wideRows]float32
	for len(dst)-done > fewWide {
		rows := min(wideRows, len(dst)-done)
		batch := x[done*k:][:rows*k]
		for _, f := range m.used {
			q, bins := &m.quantisers[f], &b[f%maxFeatures]
			for r := range rows {
				bins[r] = q.bin(batch[r*k+int(f)])
			}
		}
		sumWide(m.trees, &b, &sums)
		for r := range rows {
			dst[done+r] = portable.Exp(m.base+float64(sums[r])) * m.prior.at(batch[r*k:(r+1)*k])
		}
		done += rows
	}
	return done
}

// sumWide sums the trees for the rows of a block.
func sumWide(trees []tree, b *wideBlock, sums *[wideRows]float32) {
	var s0, s1, s2, s3 archsimd.Float32x16
	var bits [treeDepth]archsimd.Uint8x64
	for l := range bits {
		bits[l] = archsimd.BroadcastUint8x64(1 << l)
	}
	half := archsimd.BroadcastUint32x16(treeLeafs / 2)
	passed := func(t *tree, level int) archsimd.Uint8x64 {
		bins := archsimd.LoadUint8x64(&b[t.feature[level]%maxFeatures])
		return bits[level].Masked(bins.GreaterEqual(archsimd.BroadcastUint8x64(uint8(t.threshold[level]))))
	}
	for i := range trees {
		t := &trees[i]
		leaf := passed(t, 0).Or(passed(t, 1)).Or(passed(t, 2)).Or(passed(t, 3)).Or(passed(t, 4)).Or(passed(t, 5))
		l0 := archsimd.LoadFloat32x16((*[16]float32)(t.leaf[0:]))
		l1 := archsimd.LoadFloat32x16((*[16]float32)(t.leaf[16:]))
		l2 := archsimd.LoadFloat32x16((*[16]float32)(t.leaf[32:]))
		l3 := archsimd.LoadFloat32x16((*[16]float32)(t.leaf[48:]))
		pick := func(leaves archsimd.Uint8x16) archsimd.Float32x16 {
			at := leaves.ExtendToUint32() // a permutation uses the lowest five bits
			return l2.ConcatPermute(l3, at).Merge(l0.ConcatPermute(l1, at), at.GreaterEqual(half))
		}
		lo, hi := leaf.GetLo(), leaf.GetHi()
		s0 = s0.Add(pick(lo.GetLo()))
		s1 = s1.Add(pick(lo.GetHi()))
		s2 = s2.Add(pick(hi.GetLo()))
		s3 = s3.Add(pick(hi.GetHi()))
	}
	s0.Store((*[16]float32)(sums[0:]))
	s1.Store((*[16]float32)(sums[16:]))
	s2.Store((*[16]float32)(sums[32:]))
	s3.Store((*[16]float32)(sums[48:]))
}
