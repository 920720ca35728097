package predict

// Eight rows are predicted at once: a column block is a machine word with the bin of one feature for eight rows, one
// byte each. A bin has seven bits, so with the top bit of every byte set, subtracting a threshold from all eight bytes
// borrows across none of them, and the top bits that remain say which rows are at or above the threshold.

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

// A block holds the bins of eight rows, by feature, with every byte's top bit set.
type block [maxFeatures]uint64

// leaves returns the leaf numbers of the eight rows, one byte each.
func (t *tree) leaves(b *block) uint64 {
	l := (b[t.feature[0]&(maxFeatures-1)] - t.threshold[0]) & highBits >> 7
	l |= (b[t.feature[1]&(maxFeatures-1)] - t.threshold[1]) & highBits >> 6
	l |= (b[t.feature[2]&(maxFeatures-1)] - t.threshold[2]) & highBits >> 5
	l |= (b[t.feature[3]&(maxFeatures-1)] - t.threshold[3]) & highBits >> 4
	l |= (b[t.feature[4]&(maxFeatures-1)] - t.threshold[4]) & highBits >> 3
	l |= (b[t.feature[5]&(maxFeatures-1)] - t.threshold[5]) & highBits >> 2
	return l
}

// sumTrees adds up the trees for the eight rows of a block, in the order of the trees.
func sumTrees(trees []tree, b *block) [blockRows]float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for i := range trees {
		t := &trees[i]
		l := t.leaves(b)
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

// load bins up to eight rows of x.
func (b *block) load(qs []quantiser, x []float64) {
	k := len(qs)
	rows := min(len(x)/k, blockRows)
	for f := range qs {
		q := &qs[f]
		w := uint64(highBits)
		for r := range rows {
			w |= uint64(q.bin(x[r*k+f])) << (8 * r)
		}
		b[f&(maxFeatures-1)] = w
	}
}
