package boost

import (
	"slices"

	"github.com/endpick/endpick/internal/portable"
)

// Linear returns the columns of the prior and its weights: the constant, then what one
// unit of each column adds to a prediction if the trees add nothing. There are no
// columns if the model has no prior.
func (m *Model) Linear() (columns []int, weights []float64) {
	if m.prior.floor == 0 {
		return nil, nil
	}
	weights = slices.Clone(m.prior.weights)
	for i := range weights {
		weights[i] *= portable.Exp(m.base)
	}
	return slices.Clone(m.prior.columns), weights
}
