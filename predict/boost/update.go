package boost

import (
	"fmt"

	"github.com/endpick/endpick/internal/portable"
)

const (
	// leafRows is how many rows the old value of a leaf counts for when new ones are mixed in: with
	// the default number of trees, one row then moves its own prediction a tenth of the way.
	leafRows = 200
	// baseRows is the same for the base of a model without trees.
	baseRows = 10
)

var errNotFitted = fmt.Errorf("%w: the model has not been fitted", ErrNoData)

// Update returns a model with the same prior, bins and tests, whose leaves have been moved towards
// data; a leaf that no row reaches keeps its value. It takes a fraction of the time of Fit and
// bridges the time between rare fits; if a fit after every thousand new rows is affordable, it
// gains nothing. A model that is only ever updated keeps outdated tests. In a model without trees
// only the base moves. No row counts as off by more than a factor of twenty, and unusable ones are
// skipped. The receiver does not change. The zero Model is ErrNoData.
func (m *Model) Update(data Data) (*Model, error) {
	if m.config.Features == 0 {
		return nil, errNotFitted
	}
	n := &Model{config: m.config, quantisers: m.quantisers, prior: m.prior, base: m.base, gained: m.gained, used: m.used}
	data, err := n.usable(data)
	if err != nil {
		return nil, err
	}
	r := m.bounded(data)
	if len(m.trees) == 0 {
		shift, weight := 0.0, float64(baseRows)
		for i, v := range r {
			shift += v * data.W[i]
			weight += data.W[i]
		}
		n.base += shift / weight
		return n, nil
	}
	n.trees = make([]tree, len(m.trees))
	columns := modelColumns(n.quantisers, data.X)
	leaf := make([]uint64, (len(r)+laneRows-1)/laneRows)
	for i := range n.trees {
		t := &n.trees[i]
		*t = m.trees[i]
		asked := t.tests()
		leafNumbers(columns, &asked, leaf)
		sums := leafSums(leaf, r, data.W, clipOf(r, data.W))
		for a, old := range m.trees[i].leaf {
			v := n.config.LearningRate*sums[a].residuals + leafRows*float64(old)
			t.leaf[a] = float32(v / (sums[a].weight + leafRows))
		}
		subtract(t, leaf, r, data.W)
	}
	return n, nil
}

// bounded returns the residuals, limited to farOff from the model's predictions.
func (m *Model) bounded(data Data) []float64 {
	y := make([]float64, len(data.Y))
	_ = m.Predict(y, data.X) // cannot fail: the shape is right
	for i, predicted := range y {
		off := portable.Ln(data.Y[i] / predicted)
		y[i] = data.Y[i] * portable.Exp(max(-farOff, min(off, farOff))-off)
	}
	return m.residuals(Data{X: data.X, Y: y})
}
