package boost

// The prior is a linear function of some features with coefficients that are not negative, in the unit of the target:
// more work never makes it faster. It is fitted by least squares on the relative error, Σ w ((y − ŷ)/y)², by coordinate
// descent, and carries predictions where there are too few samples for trees, or none nearby.

type prior struct {
	columns []int
	weights []float64 // weights[0] is the constant, then one for each column
	floor   float64   // the smallest value it gives; 0 when there is no prior
}

func (p *prior) used() bool { return p.floor > 0 }

// at returns the prior's value for a row; 1 when there is none.
func (p *prior) at(row []float64) float64 {
	if p.floor == 0 {
		return 1
	}
	v := p.weights[0]
	for i, c := range p.columns {
		// Absent and negative values contribute nothing; the comparison is false for NaN.
		if x := row[c]; x > 0 {
			if x > maxTarget {
				x = maxTarget // no infinity times zero
			}
			v += float64(p.weights[i+1] * x)
		}
	}
	if v < p.floor {
		return p.floor
	}
	if v > maxTarget {
		return maxTarget
	}
	return v
}

const priorSweeps = 200

func fitPrior(columns []int, x []float64, features int, y, w []float64) prior {
	n := len(columns) + 1
	p := prior{columns: columns, weights: make([]float64, n)}
	gram := make([]float64, n*n)
	target := make([]float64, n)
	row := make([]float64, n)
	lowest := y[0]
	for i, label := range y {
		lowest = min(lowest, label)
		inv := 1 / label
		row[0] = inv
		for j, c := range columns {
			row[j+1] = float64(max(0, min(finite(x[i*features+c]), maxTarget)) * inv)
		}
		for a := range n {
			wa := float64(w[i] * row[a])
			target[a] += wa
			for b := range a + 1 {
				gram[a*n+b] += float64(wa * row[b])
			}
		}
	}
	for a := range n {
		for b := range a {
			gram[b*n+a] = gram[a*n+b]
		}
	}
	for range priorSweeps {
		for a := range n {
			if gram[a*n+a] <= 0 {
				continue
			}
			s := target[a]
			for b := range n {
				if b != a {
					s -= float64(gram[a*n+b] * p.weights[b])
				}
			}
			p.weights[a] = max(0, s/gram[a*n+a])
		}
	}
	p.floor = lowest / 10
	return p
}
