package boost

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/codec"
	"github.com/endpick/endpick/internal/portable"
)

const (
	defaultTrees        = 64
	defaultLearningRate = 0.3
	defaultShrinkage    = 2
	maxTrees            = 1024
	// minTreeRows is how many rows it takes to grow trees; with fewer the prior, or the mean, is the model.
	minTreeRows = 100
	maxTarget   = 1e15
	// clipFactor bounds the pull of a straggler: residuals beyond this many mean absolute residuals count as that much.
	clipFactor = 5
)

// Config says what a model looks like. The zero value of every field but Features is a usable default.
type Config struct {
	// Features is the number of values in a row, 1 to 32.
	Features int
	// Trees is how many trees are fitted; 0 means 64, at most 1024.
	Trees int
	// LearningRate is the share of a leaf's mean residual that a tree takes on, in (0, 1]; 0 means 0.3.
	LearningRate float64
	// Shrinkage is how many rows of residual zero a leaf is mixed with; 0 means 2.
	Shrinkage float64
	// Prior lists the features of a linear prior with non-negative coefficients, which the trees then correct; none
	// means no prior.
	Prior []int
}

func (c *Config) validate() error {
	switch {
	case c.Features < 1 || c.Features > maxFeatures:
		return badConfig("Features", "is %d, want 1 to %d", c.Features, maxFeatures)
	case c.Trees < 0 || c.Trees > maxTrees:
		return badConfig("Trees", "is %d, want 0 to %d", c.Trees, maxTrees)
	case !(c.LearningRate >= 0 && c.LearningRate <= 1):
		return badConfig("LearningRate", "is %v, want 0 to 1", c.LearningRate)
	case !(c.Shrinkage >= 0) || math.IsInf(c.Shrinkage, 0):
		return badConfig("Shrinkage", "is %v, want a finite number of rows", c.Shrinkage)
	case len(c.Prior) > maxFeatures:
		return badConfig("Prior", "has %d columns, want at most %d", len(c.Prior), maxFeatures)
	}
	for _, f := range c.Prior {
		if f < 0 || f >= c.Features {
			return badConfig("Prior", "names column %d of %d", f, c.Features)
		}
	}
	if c.Trees == 0 {
		c.Trees = defaultTrees
	}
	if c.LearningRate == 0 {
		c.LearningRate = defaultLearningRate
	}
	if c.Shrinkage == 0 {
		c.Shrinkage = defaultShrinkage
	}
	return nil
}

// Data is a training set.
type Data struct {
	// X holds the features row by row. NaN means absent, which trees tell from every value.
	X []float64
	// Y is the target of each row.
	Y []float64
	// W is the weight of each row; nil means that all weigh 1.
	W []float64
}

// The errors of this package, for errors.Is.
var (
	// ErrShape: the lengths of what was passed do not match.
	ErrShape = errors.New("boost: lengths do not match")
	// ErrNoData: there was nothing to fit.
	ErrNoData = errors.New("boost: no usable row")
	// ErrFormat: the bytes are not a saved model: cut short, damaged or something else.
	ErrFormat = codec.ErrFormat
	// ErrVersion: the bytes come from another version of this package.
	ErrVersion = codec.ErrVersion
)

// A Model is a fitted regressor. It is immutable, so any number of goroutines may use it. The zero Model is for
// UnmarshalBinary to fill; it predicts nothing.
type Model struct {
	config     Config
	quantisers []quantiser
	prior      prior
	base       float64
	trees      []tree
	gained     []float64 // by feature: the squared error that its tests took away
	used       []uint8   // the features that some tree tests
	rows       int
	skipped    int
}

// Fit trains a model. Rows whose target or weight is unusable (NaN, infinite, not positive where it has to be) are
// skipped and counted. The same configuration and data, in the same order, give the same model on every machine. Fit
// keeps nothing of data.
func Fit(config Config, data Data) (*Model, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	m := &Model{config: config}
	data, err := m.usable(data)
	if err != nil {
		return nil, err
	}
	k := config.Features
	if len(config.Prior) > 0 {
		m.prior = fitPrior(config.Prior, data.X, k, data.Y, data.W)
	}
	m.quantisers = makeQuantisers(data.X, k)
	r := m.residuals(data)
	m.centre(r, data.W)
	m.gained = make([]float64, k)
	if m.rows >= minTreeRows {
		m.fitTrees(newGrower(m.quantisers, data.X, config.Shrinkage), r, data.W)
	}
	m.findUsed()
	return m, nil
}

func (m *Model) findUsed() {
	var seen [maxFeatures]bool
	for i := range m.trees {
		for _, f := range m.trees[i].feature {
			if !seen[f] {
				seen[f] = true
				m.used = append(m.used, f)
			}
		}
	}
	slices.Sort(m.used)
}

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// usable returns the rows that can be trained on, all weights filled in.
func (m *Model) usable(data Data) (Data, error) {
	k, n := m.config.Features, len(data.Y)
	if len(data.X) != n*k || data.W != nil && len(data.W) != n {
		return Data{}, fmt.Errorf("%w: %d values of %d features, %d targets, %d weights", ErrShape, len(data.X), k, n, len(data.W))
	}
	ok := func(i int) bool {
		y := data.Y[i]
		w := 1.0
		if data.W != nil {
			w = data.W[i]
		}
		return y >= 1/maxTarget && y <= maxTarget && w > 0 && w <= maxTarget
	}
	var out Data
	for i := range n {
		if !ok(i) {
			m.skipped++
		}
	}
	m.rows = n - m.skipped
	if m.rows == 0 {
		return Data{}, fmt.Errorf("%w: all %d were skipped", ErrNoData, n)
	}
	if m.skipped == 0 && data.W != nil {
		return data, nil
	}
	out.X = make([]float64, 0, m.rows*k)
	out.Y = make([]float64, 0, m.rows)
	out.W = make([]float64, 0, m.rows)
	for i := range n {
		if !ok(i) {
			continue
		}
		out.X = append(out.X, data.X[i*k:(i+1)*k]...)
		out.Y = append(out.Y, data.Y[i])
		if data.W != nil {
			out.W = append(out.W, data.W[i])
		} else {
			out.W = append(out.W, 1)
		}
	}
	return out, nil
}

// residuals returns what the prior and the base leave of the targets.
func (m *Model) residuals(data Data) []float64 {
	k := m.config.Features
	r := make([]float64, len(data.Y))
	for i, y := range data.Y {
		r[i] = portable.Ln(y/m.prior.at(data.X[i*k:(i+1)*k])) - m.base
	}
	return r
}

func (m *Model) fitTrees(g *grower, r, w []float64) {
	m.trees = make([]tree, m.config.Trees)
	g.gained = m.gained
	cumulated := make([]float64, len(w))
	total := 0.0
	for i, v := range w {
		total += v
		cumulated[i] = total
	}
	clip := clipOf(r, w)
	leaf := make([]uint64, g.words)
	for i := range m.trees {
		g.sample(r, cumulated, clip, i)
		t := &m.trees[i]
		g.grow(t)
		g.leafNumbers(t, leaf)
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

// golden steps the offset of the row sample from tree to tree so that all rows get their turn.
const golden = 0.6180339887498949

// sample takes every n-th row, by weight, into g.rows with its clipped residual.
func (g *grower) sample(r, cumulated []float64, clip float64, turn int) {
	n := len(r)
	total := cumulated[n-1]
	rate := float64(min(structureRows, max(n/2, 1024))) / total
	offset := float64(turn) * golden
	offset -= math.Floor(offset)
	scale := (1 << residualBits) / clip
	g.rows = g.rows[:0]
	last := math.Floor(offset)
	for i, v := range r {
		at := math.Floor(float64(cumulated[i]*rate) + offset)
		if at == last {
			continue
		}
		last = at
		if len(g.rows) == len(g.inverse)-2 {
			break
		}
		g.rows = append(g.rows, sampledRow{int32(i), int32(max(-clip, min(v, clip)) * scale)})
	}
}

// leafSums adds up the clipped residuals and the weights of the rows in each leaf.
func leafSums(leaf []uint64, r, w []float64, clip float64) (sums, weights [treeLeafs]float64) {
	for i, l := range leaf {
		rows := min(blockRows, len(r)-i*blockRows)
		rb, wb := r[i*blockRows:][:rows], w[i*blockRows:][:rows]
		for j, v := range rb {
			a := l >> (8 * j) & (treeLeafs - 1)
			weights[a] += wb[j]
			sums[a] += float64(max(-clip, min(v, clip)) * wb[j])
		}
	}
	return sums, weights
}

// subtract takes the tree off the residuals and returns the weighted sum of what is left, in absolute value.
func subtract(t *tree, leaf []uint64, r, w []float64) (total float64) {
	for i, l := range leaf {
		rows := min(blockRows, len(r)-i*blockRows)
		rb, wb := r[i*blockRows:][:rows], w[i*blockRows:][:rows]
		for j := range rb {
			rb[j] -= float64(t.leaf[l>>(8*j)&(treeLeafs-1)])
			total += float64(math.Abs(rb[j]) * wb[j])
		}
	}
	return total
}

// Predict writes one prediction for each row of x into dst: positive and finite, whatever the row. It allocates nothing.
// The error is ErrShape if x does not hold len(dst) rows, and always for the zero Model, whose rows have no length.
func (m *Model) Predict(dst, x []float64) error {
	k := m.config.Features
	if len(x) != len(dst)*k || k == 0 {
		return ErrShape
	}
	var b block
	for len(dst) > 0 {
		rows := min(blockRows, len(dst))
		b.load(m.quantisers, m.used, x[:rows*k])
		sums := sumTrees(m.trees, &b)
		for r := range rows {
			dst[r] = portable.Exp(m.base+float64(sums[r])) * m.prior.at(x[r*k:(r+1)*k])
		}
		dst, x = dst[rows:], x[rows*k:]
	}
	return nil
}

func badConfig(field, reason string, args ...any) error {
	return &endpick.ConfigError{Field: "boost.Config." + field, Reason: fmt.Sprintf(reason, args...)}
}
