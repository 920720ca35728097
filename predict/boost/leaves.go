package boost

import "math"

// fitTrees fits the leaves of one tree after the other, with the tests that choose returns. It
// subtracts the trees from the residuals r, and tells choose where to clip them.
func (m *Model) fitTrees(columns []column, r, w []float64, choose func(i int, clip float64) tests) {
	m.trees = make([]tree, m.config.Trees)
	total := 0.0
	for _, v := range w {
		total += v
	}
	clip := clipOf(r, w)
	leaf := make([]uint64, (len(r)+laneRows-1)/laneRows)
	for i := range m.trees {
		asked := choose(i, clip)
		leafNumbers(columns, &asked, leaf)
		t := &m.trees[i]
		sums := leafSums(leaf, r, w, clip)
		for a := range sums {
			t.leaf[a] = float32(m.config.LearningRate * sums[a].residuals / (sums[a].weight + m.config.Shrinkage))
		}
		clip = clipAt(subtract(t, leaf, r, w) / total)
	}
}

// clipOf returns where to clip residuals.
func clipOf(r, w []float64) float64 {
	sum, total := 0.0, 0.0
	for i, v := range r {
		sum += math.Abs(v) * w[i]
		total += w[i]
	}
	return clipAt(sum / total)
}

func clipAt(meanAbs float64) float64 { return max(clipFactor*meanAbs, 1e-12) }

// A leafSum sums the rows of a leaf.
type leafSum struct{ residuals, weight float64 }

// leafSums sums the clipped residuals and the weights of the rows in each leaf. Each lane has its
// own sums, so that a row need not wait for the previous one if both are in the same leaf.
func leafSums(leaf []uint64, r, w []float64, clip float64) (sums [treeLeafs]leafSum) {
	var lanes [laneRows - 1][treeLeafs]leafSum
	full := len(r) / laneRows
	for i, l := range leaf[:full] {
		rb, wb := (*[laneRows]float64)(r[i*laneRows:]), (*[laneRows]float64)(w[i*laneRows:])
		sums[l&(treeLeafs-1)].add(rb[0], wb[0], clip)
		lanes[0][l>>16&(treeLeafs-1)].add(rb[1], wb[1], clip)
		lanes[1][l>>32&(treeLeafs-1)].add(rb[2], wb[2], clip)
		lanes[2][l>>48&(treeLeafs-1)].add(rb[3], wb[3], clip)
	}
	for i := full * laneRows; i < len(r); i++ {
		sums[leaf[full]>>(16*(i%laneRows))&(treeLeafs-1)].add(r[i], w[i], clip)
	}
	for a := range sums {
		for j := range lanes {
			sums[a].residuals += lanes[j][a].residuals
			sums[a].weight += lanes[j][a].weight
		}
	}
	return sums
}

func (s *leafSum) add(v, w, clip float64) {
	if math.Abs(v) > clip {
		v = math.Copysign(clip, v)
	}
	s.residuals += v * w
	s.weight += w
}

// subtract subtracts a tree from the residuals, and returns the weighted sum of their absolute
// values.
func subtract(t *tree, leaf []uint64, r, w []float64) float64 {
	var t0, t1, t2, t3 float64
	full := len(r) / laneRows
	for i, l := range leaf[:full] {
		rb, wb := (*[laneRows]float64)(r[i*laneRows:]), (*[laneRows]float64)(w[i*laneRows:])
		rb[0] -= float64(t.leaf[l&(treeLeafs-1)])
		rb[1] -= float64(t.leaf[l>>16&(treeLeafs-1)])
		rb[2] -= float64(t.leaf[l>>32&(treeLeafs-1)])
		rb[3] -= float64(t.leaf[l>>48&(treeLeafs-1)])
		t0 += math.Abs(rb[0]) * wb[0]
		t1 += math.Abs(rb[1]) * wb[1]
		t2 += math.Abs(rb[2]) * wb[2]
		t3 += math.Abs(rb[3]) * wb[3]
	}
	for i := full * laneRows; i < len(r); i++ {
		r[i] -= float64(t.leaf[leaf[full]>>(16*(i%laneRows))&(treeLeafs-1)])
		t0 += math.Abs(r[i]) * w[i]
	}
	return t0 + t1 + t2 + t3
}
