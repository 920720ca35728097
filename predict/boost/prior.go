package boost

// The prior is a linear function of some features with non-negative coefficients, in the unit of
// the target: more work never makes it faster. It is fitted by least squares on the relative error,
// Σ w ((y − ŷ)/y)², by coordinate descent, and carries predictions where there are too few samples
// for trees, or none nearby.

type prior struct {
	columns []int
	weights []float64 // weights[0] is the constant, then one for each column
	floor   float64   // its smallest value; 0 without a prior
}

// at returns the prior's value for a row; 1 without a prior.
func (p *prior) at(row []float64) float64 {
	if p.floor == 0 {
		return 1
	}
	v := p.weights[0]
	for i, c := range p.columns {
		// Absent and negative values add nothing; the comparison is false for NaN.
		if x := row[c]; x > 0 {
			if x > maxTarget {
				x = maxTarget // no infinity times zero
			}
			v += p.weights[i+1] * x
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

const (
	priorSweeps = 200
	// priorPasses is how often the rows of a sample are reweighted before all rows are fitted.
	priorPasses = 2
	// priorTrust is the factor by which a target may be below the prior before its row weighs
	// less.
	priorTrust = 3
)

// fitPrior fits a prior. A target near zero would dominate the relative error. So the first pass,
// over a sample, measures errors relative to at least the median target, and the next ones weigh a
// row whose target is below a third of the previous pass's prediction, ŷ, by (3y/ŷ)⁴, which removes
// it as its error grows. A target far above ŷ needs no such weight: its relative error is never
// above 1.
func fitPrior(columns []int, x []float64, features int, y, w []float64) prior {
	sorted := sampled(y)
	low, _ := ordinary(sorted)
	p := prior{columns: columns, floor: low / 10}
	middle := sorted[len(sorted)/2]
	f := newPriorFit(len(columns) + 1)
	sampleRows(len(y), func(i int) {
		f.add(columns, x[i*features:(i+1)*features], y[i], w[i], max(y[i], middle))
	})
	p.weights = f.solve()
	again := func(i int) {
		row, weight := x[i*features:(i+1)*features], w[i]
		if share := priorTrust * y[i] / p.at(row); share < 1 {
			share *= share
			weight *= share * share
		}
		f.add(columns, row, y[i], weight, y[i])
	}
	for range priorPasses {
		f.reset()
		sampleRows(len(y), again)
		p.weights = f.solve()
	}
	f.reset()
	for i := range y {
		again(i)
	}
	p.weights = f.solve()
	return p
}

// A priorFit solves a prior's weighted least squares: minimise Σ w ((y − ŷ)/scale)² over
// non-negative coefficients.
type priorFit struct {
	gram, target, row []float64
}

func newPriorFit(n int) *priorFit {
	return &priorFit{make([]float64, n*n), make([]float64, n), make([]float64, n)}
}

func (f *priorFit) reset() {
	clear(f.gram)
	clear(f.target)
}

func (f *priorFit) add(columns []int, x []float64, y, w, scale float64) {
	n := len(f.row)
	inv := 1 / scale
	f.row[0] = inv
	for j, c := range columns {
		f.row[j+1] = max(0, min(finite(x[c]), maxTarget)) * inv
	}
	share := y * inv
	for a := range n {
		wa := w * f.row[a]
		f.target[a] += wa * share
		for b := range a + 1 {
			f.gram[a*n+b] += wa * f.row[b]
		}
	}
}

// solve returns the coefficients, the constant first.
func (f *priorFit) solve() []float64 {
	n := len(f.row)
	for a := range n {
		for b := range a {
			f.gram[b*n+a] = f.gram[a*n+b]
		}
	}
	weights := make([]float64, n)
	for range priorSweeps {
		for a := range n {
			if f.gram[a*n+a] <= 0 {
				continue
			}
			s := f.target[a]
			for b := range n {
				if b != a {
					s -= f.gram[a*n+b] * weights[b]
				}
			}
			weights[a] = max(0, s/f.gram[a*n+a])
		}
	}
	return weights
}
