package boost

// Eight rows are predicted at once: a word of a block has the bin of one feature for eight rows,
// one byte each. A bin has seven bits. So if the top bit of every byte is set, subtracting a
// threshold from all eight bytes borrows across none of them, and the top bits that remain say
// which rows are at or above the threshold.

const (
	blockRows = 8
	treeDepth = 6
	treeLeafs = 1 << treeDepth
	highBits  = 0x8080808080808080
	lowBits   = 0x0101010101010101
)

// A tree is oblivious: all nodes of a level share one test, so that a leaf's number is the six answers as bits.
type tree struct {
	leaf      [treeLeafs]float32
	threshold [treeDepth]uint64 // a bin in each of the eight bytes
	feature   [treeDepth]uint8
}

// tests returns the tests among the model's bins.
func (t *tree) tests() tests {
	own := tests{feature: t.feature}
	for l, at := range t.threshold {
		own.bin[l] = uint16(at & 0xff) // a bin that is never reached stays above all of them
	}
	return own
}

// A block holds the bins of eight rows, by feature, with every byte's top bit set. It has a word
// for every value of a feature number, which saves a bounds check; only maxFeatures of them are
// used.
type block [256]uint64

// sumTrees sums the trees for the eight rows of a block, in the order of the trees.
func sumTrees(trees []tree, b *block) [blockRows]float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for i := range trees {
		t := &trees[i]
		l := (b[t.feature[0]] - t.threshold[0]) & highBits >> 7
		l |= (b[t.feature[1]] - t.threshold[1]) & highBits >> 6
		l |= (b[t.feature[2]] - t.threshold[2]) & highBits >> 5
		l |= (b[t.feature[3]] - t.threshold[3]) & highBits >> 4
		l |= (b[t.feature[4]] - t.threshold[4]) & highBits >> 3
		l |= (b[t.feature[5]] - t.threshold[5]) & highBits >> 2
		// Bits of one byte don't reach the next, so the mask only saves a bounds check.
		s0 += t.leaf[l&63]
		s1 += t.leaf[l>>8&63]
		s2 += t.leaf[l>>16&63]
		s3 += t.leaf[l>>24&63]
		s4 += t.leaf[l>>32&63]
		s5 += t.leaf[l>>40&63]
		s6 += t.leaf[l>>48&63]
		s7 += t.leaf[l>>56&63]
	}
	return [blockRows]float32{s0, s1, s2, s3, s4, s5, s6, s7}
}

// load bins the used features of up to eight rows of x. If there are fewer, the last one fills
// the block.
func (b *block) load(qs []quantiser, used []uint8, x []float64) {
	k := len(qs)
	last := len(x)/k - 1
	row := func(r int) []float64 { return x[min(r, last)*k:][:k] }
	x0, x1, x2, x3, x4, x5, x6, x7 := row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)
	for _, f := range used {
		q := &qs[f]
		b[f] = highBits | uint64(q.bin(x0[f])) | uint64(q.bin(x1[f]))<<8 |
			uint64(q.bin(x2[f]))<<16 | uint64(q.bin(x3[f]))<<24 | uint64(q.bin(x4[f]))<<32 |
			uint64(q.bin(x5[f]))<<40 | uint64(q.bin(x6[f]))<<48 | uint64(q.bin(x7[f]))<<56
	}
}

// loadOne bins the used features of one row, into the lowest byte.
func (b *block) loadOne(qs []quantiser, used []uint8, x []float64) {
	for _, f := range used {
		b[f] = 0x80 | uint64(qs[f].bin(x[f]))
	}
}

// sumOne is sumTrees for the row in the lowest byte. Borrows from it only reach higher bytes.
func sumOne(trees []tree, b *block) (sum float32) {
	for i := range trees {
		t := &trees[i]
		l := (b[t.feature[0]] - t.threshold[0]) & 0x80 >> 7
		l |= (b[t.feature[1]] - t.threshold[1]) & 0x80 >> 6
		l |= (b[t.feature[2]] - t.threshold[2]) & 0x80 >> 5
		l |= (b[t.feature[3]] - t.threshold[3]) & 0x80 >> 4
		l |= (b[t.feature[4]] - t.threshold[4]) & 0x80 >> 3
		l |= (b[t.feature[5]] - t.threshold[5]) & 0x80 >> 2
		sum += t.leaf[l&63]
	}
	return sum
}
