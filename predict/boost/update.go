package boost

// updateRows is how many rows the old value of a leaf stands for when new ones are mixed in.
const updateRows = 10

// Update returns a model with the same prior, bins and tests, whose leaves have been moved towards what data says; a
// leaf that no row reaches keeps its value. It takes a fraction of the time of Fit and bridges the time until the next
// one: a model that is only ever updated goes on asking old questions. A model without trees moves its base alone.
// Unusable rows are skipped. The receiver does not change.
func (m *Model) Update(data Data) (*Model, error) {
	n := &Model{config: m.config, quantisers: m.quantisers, prior: m.prior, base: m.base, gained: m.gained, used: m.used}
	data, err := n.usable(data)
	if err != nil {
		return nil, err
	}
	r := n.residuals(data)
	if len(m.trees) == 0 {
		shift, weight := 0.0, float64(updateRows)
		for i, v := range r {
			shift += float64(v * data.W[i])
			weight += data.W[i]
		}
		n.base += shift / weight
		return n, nil
	}
	n.trees = make([]tree, len(m.trees))
	g := newGrower(n.quantisers, data.X, n.config.Shrinkage)
	leaf := make([]uint64, g.words)
	for i := range n.trees {
		t := &n.trees[i]
		*t = m.trees[i]
		g.leafNumbers(t, leaf)
		sums, weights := leafSums(leaf, r, data.W, clipOf(r, data.W))
		for a, old := range m.trees[i].leaf {
			v := float64(n.config.LearningRate*sums[a]) + float64(updateRows*float64(old))
			t.leaf[a] = float32(v / (weights[a] + updateRows))
		}
		subtract(t, leaf, r, data.W)
	}
	return n, nil
}
