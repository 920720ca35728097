package boost

import "math"

// fitTrees fits the leaves of trees with the tests that choose returns, one after the other. It takes the trees off the
// residuals r, and tells choose where to clip these.
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
		sums, weights := leafSums(leaf, r, w, clip)
		for a := range sums {
			t.leaf[a] = float32(m.config.LearningRate * sums[a] / (weights[a] + m.config.Shrinkage))
		}
		clip = clipAt(subtract(t, leaf, r, w) / total)
	}
}

// clipOf returns where to clip residuals.
func clipOf(r, w []float64) float64 {
	sum, total := 0.0, 0.0
	for i, v := range r {
		sum += float64(math.Abs(v) * w[i])
		total += w[i]
	}
	return clipAt(sum / total)
}

func clipAt(meanAbs float64) float64 { return max(clipFactor*meanAbs, 1e-12) }

// leafSums adds up the clipped residuals and the weights of the rows in each leaf.
func leafSums(leaf []uint64, r, w []float64, clip float64) (sums, weights [treeLeafs]float64) {
	for i, l := range leaf {
		rows := min(laneRows, len(r)-i*laneRows)
		rb, wb := r[i*laneRows:][:rows], w[i*laneRows:][:rows]
		for j, v := range rb {
			a := l >> (16 * j) & (treeLeafs - 1)
			weights[a] += wb[j]
			sums[a] += float64(max(-clip, min(v, clip)) * wb[j])
		}
	}
	return sums, weights
}

// subtract takes the tree off the residuals and returns the weighted sum of what is left, in absolute value.
func subtract(t *tree, leaf []uint64, r, w []float64) (total float64) {
	for i, l := range leaf {
		rows := min(laneRows, len(r)-i*laneRows)
		rb, wb := r[i*laneRows:][:rows], w[i*laneRows:][:rows]
		for j := range rb {
			rb[j] -= float64(t.leaf[l>>(16*j)&(treeLeafs-1)])
			total += float64(math.Abs(rb[j]) * wb[j])
		}
	}
	return total
}
