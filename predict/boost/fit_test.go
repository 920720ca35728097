package boost

import (
	"math"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func predictOne(t require.TestingT, m *Model, row ...float64) float64 {
	var y [1]float64
	require.NoError(t, m.Predict(y[:], row))
	return y[0]
}

func TestFitRefusesABadConfig(t *testing.T) {
	for want, config := range map[string]Config{
		"endpick: config: boost.Config.Features is 0, want 1 to 32":                     {},
		"endpick: config: boost.Config.Features is 33, want 1 to 32":                    {Features: 33},
		"endpick: config: boost.Config.Trees is 1025, want 0 to 1024":                   {Features: 1, Trees: 1025},
		"endpick: config: boost.Config.Trees is -1, want 0 to 1024":                     {Features: 1, Trees: -1},
		"endpick: config: boost.Config.LearningRate is NaN, want 0 to 1":                {Features: 1, LearningRate: math.NaN()},
		"endpick: config: boost.Config.LearningRate is 1.5, want 0 to 1":                {Features: 1, LearningRate: 1.5},
		"endpick: config: boost.Config.Shrinkage is -1, want a finite number of rows":   {Features: 1, Shrinkage: -1},
		"endpick: config: boost.Config.Shrinkage is +Inf, want a finite number of rows": {Features: 1, Shrinkage: math.Inf(1)},
		"endpick: config: boost.Config.Prior names column 1 of 1":                       {Features: 1, Prior: []int{1}},
		"endpick: config: boost.Config.Prior names column -1 of 1":                      {Features: 1, Prior: []int{-1}},
	} {
		require.EqualError(t, rig.Err(Fit(config, Data{X: []float64{1}, Y: []float64{1}})), want)
	}
}

func TestDataOfTheWrongShapeIsRefused(t *testing.T) {
	for _, d := range []Data{
		{X: make([]float64, 3), Y: make([]float64, 2)},
		{X: make([]float64, 4), Y: make([]float64, 2), W: make([]float64, 1)},
	} {
		require.ErrorIs(t, rig.Err(Fit(Config{Features: 2}, d)), ErrShape)
	}
	for _, d := range []Data{{}, {X: []float64{1, 2}, Y: []float64{math.NaN()}}} {
		require.ErrorIs(t, rig.Err(Fit(Config{Features: 2}, d)), ErrNoData)
	}
	m := rig.Must(Fit(Config{Features: 2}, Data{X: []float64{1, 2}, Y: []float64{1}}))
	require.ErrorIs(t, m.Predict(make([]float64, 2), make([]float64, 3)), ErrShape)
	require.NoError(t, m.Predict(nil, nil))

	var zero Model
	require.ErrorIs(t, zero.Predict(make([]float64, 1), []float64{1}), ErrShape)
	require.ErrorIs(t, zero.Predict(nil, nil), ErrShape)
	for _, d := range []Data{{}, {X: []float64{1}, Y: []float64{1}}, {Y: []float64{1}}} {
		require.ErrorIs(t, rig.Err(zero.Refit(d)), ErrNoData)
	}
	require.Zero(t, zero.Trees())
}

// A target is usable if both it and its inverse are within the bound, a weight if it is.
func TestUnusableRowsAreSkipped(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	good := randomData(1, 300, 4)
	bad := Data{}
	add := func(row []float64, y, w float64) {
		bad.X, bad.Y, bad.W = append(bad.X, row...), append(bad.Y, y), append(bad.W, w)
	}
	for i, y := range good.Y {
		if i%10 == 0 {
			for _, v := range []float64{nan, inf, -inf, -3, 0, 2 * maxTarget} {
				add(good.X[:4], v, 1)
				add(good.X[:4], 5, v)
			}
			add(good.X[:4], 0.5/maxTarget, 1)
			add(good.X[:4], 5e-324, 1)
		}
		add(good.X[i*4:(i+1)*4], y, good.W[i])
	}
	m := rig.Must(Fit(Config{Features: 4}, good))
	require.Equal(t, m, rig.Must(Fit(Config{Features: 4}, bad)), "what is skipped leaves no trace")
	require.Equal(t, m, rig.Must(m.Refit(bad)))

	bounds := Data{X: []float64{1, 2, 3, 4}, Y: []float64{maxTarget, 1 / maxTarget, 1, 1}, W: []float64{1, 1, maxTarget, 1e-300}}
	require.Equal(t, bounds, rig.Must(usable(bounds, 1)))
}

func TestDegenerateDataGivesItsMean(t *testing.T) {
	nan := math.NaN()
	rows := 1_000_000
	if testing.Short() || rig.Race {
		rows = 50_000
	}
	million := Data{X: make([]float64, rows), Y: make([]float64, rows)}
	for i := range million.X {
		million.X[i], million.Y[i] = 3, 40
	}
	absent := Data{X: make([]float64, 200), Y: make([]float64, 200)}
	for i := range absent.X {
		absent.X[i], absent.Y[i] = nan, 40
	}
	for name, d := range map[string]Data{
		"one row":                {X: []float64{3}, Y: []float64{40}},
		"a million equal rows":   million,
		"nothing but absent":     absent,
		"one infinite feature":   {X: []float64{math.Inf(1)}, Y: []float64{40}},
		"the smallest feature":   {X: []float64{5e-324}, Y: []float64{40}},
		"the most extreme range": {X: []float64{-math.MaxFloat64, math.MaxFloat64}, Y: []float64{40, 40}},
	} {
		configs := []Config{{Features: 1, Prior: []int{0}}, {Features: 1}}
		if len(d.Y) == rows {
			configs = configs[:1] // one is enough: it takes long
			configs[0].Trees = 8
		}
		for _, config := range configs {
			m := rig.Must(Fit(config, d))
			require.InEpsilon(t, 40, predictOne(t, m, d.X[0]), 1e-9, "%s %+v", name, config)
			for _, x := range []float64{0, -1, 1e300, nan, math.Inf(1)} {
				y := predictOne(t, m, x)
				require.False(t, math.IsNaN(y) || math.IsInf(y, 0), "%s at %v: %v", name, x, y)
			}
		}
	}
}

func TestTreesLearnAStep(t *testing.T) {
	// y = 10 below x = 50, 100 from there on: one test suffices, and every tree repeats it. After 100
	// trees that each take 0.15 of the remainder, 0.85^100 = 1e-7 of the step remains, plus what
	// shrinkage (2 rows in 100) holds back.
	var d Data
	for i := range 200 {
		d.X = append(d.X, float64(i%100), 1)
		d.Y = append(d.Y, 10)
		if i%100 >= 50 {
			d.Y[i] = 100
		}
	}
	m := rig.Must(Fit(Config{Features: 2}, d))
	require.InEpsilon(t, 10, predictOne(t, m, 49, 1), 1e-6)
	require.InEpsilon(t, 100, predictOne(t, m, 50, 1), 1e-6)
	require.Equal(t, []uint8{0}, m.used)
	require.Equal(t, 100, m.Trees())

	one := rig.Must(Fit(Config{Features: 2, Trees: 1, LearningRate: 1, Shrinkage: 100}, d))
	// The mean of the logarithms is that of √1000, the residuals are ∓ln √10; 100 rows with a
	// shrinkage of 100 move halfway.
	require.InEpsilon(t, math.Pow(10, 1.25), predictOne(t, one, 0, 1), 1e-6)
	require.InEpsilon(t, math.Pow(10, 1.75), predictOne(t, one, 99, 1), 1e-6)
}

func TestPriorIsLeastSquaresOnRelativeError(t *testing.T) {
	// y = 5 + 2a + 0·b exactly: the relative error is zero there, so no other coefficients are
	// better. The first feature is always zero.
	var d Data
	for i := range 60 {
		a, b := float64(1+i%7), float64(i%5)
		d.X = append(d.X, 0, a, b)
		d.Y = append(d.Y, 5+2*a)
	}
	m := rig.Must(Fit(Config{Features: 3, Prior: []int{0, 1, 2}}, d))
	require.Zero(t, m.Trees(), "60 rows are too few for trees")
	require.InDelta(t, 25, predictOne(t, m, 0, 10, 3), 1e-6)
	require.InDelta(t, 5+2*1000, predictOne(t, m, 0, 1000, 0), 1e-3, "it extrapolates")

	// y falls with a: the coefficient can't be negative, so it is zero, and the constant c minimises Σ ((y−c)/y)²:
	// c = Σ 1/y / Σ 1/y² = (1/4 + 1/2) / (1/16 + 1/4) = 2.4. The base then corrects the mean logarithm to √8.
	d = Data{X: []float64{0, 1}, Y: []float64{4, 2}}
	m = rig.Must(Fit(Config{Features: 1, Prior: []int{0}}, d))
	require.InDelta(t, 2.4, m.prior.weights[0], 1e-9)
	require.Zero(t, m.prior.weights[1])
	require.InDelta(t, math.Sqrt(8), predictOne(t, m, 5), 1e-9)
}

// What a fixed sample teaches: a change of any constant of the fit shows here.
func TestPredictionsOfAFixedSample(t *testing.T) {
	var d Data
	state := uint64(1)
	next := func(n uint64) float64 {
		state = state*6364136223846793005 + 1442695040888963407
		return float64(state >> 33 % n)
	}
	for range 3000 {
		a, b, c := next(1000), next(50), next(4)
		d.X = append(d.X, a, b, c)
		d.Y = append(d.Y, 10+a+b*b/(1+c)+next(30))
		d.W = append(d.W, 1+next(3))
	}
	m := rig.Must(Fit(Config{Features: 3, Prior: []int{0, 1}}, d))
	require.Equal(t, m, rig.Must(Fit(Config{Features: 3, Prior: []int{0, 1}}, d)), "the same data, the same model")
	predictLikeTwin(t, m, d.X[:3*201])
	for row, want := range map[[3]float64]float64{
		{100, 10, 1}: 178.725620989, {900, 40, 0}: 2525.4320114, {500, 45, 3}: 1029.73689958, {5, 0, 2}: 37.6547328816,
	} {
		require.InEpsilon(t, want, predictOne(t, m, row[:]...), 1e-9, "%v", row)
	}
}

// On the rows that it was fitted to, a refit equals the fit. On others it only keeps the tests.
func TestRefitKeepsWhatTreesAsk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 6).Draw(t, "features")
		c := Config{Features: k, Trees: rapid.IntRange(1, 40).Draw(t, "trees")}
		if rapid.Bool().Draw(t, "prior") {
			c.Prior = []int{k / 2}
		}
		rows := rapid.IntRange(1, 400).Draw(t, "rows")
		d := randomData(rapid.Uint64().Draw(t, "seed"), rows, k)
		m := rig.Must(Fit(c, d))
		before := *m
		require.Equal(t, m, rig.Must(m.Refit(d)))

		other := randomData(rapid.Uint64().Draw(t, "another seed"), rapid.IntRange(1, 400).Draw(t, "other rows"), k)
		moved := rig.Must(m.Refit(other))
		require.Equal(t, before, *m, "the receiver is as it was")
		anew := rig.Must(Fit(c, other))
		if m.Trees() == 0 || len(other.Y) < minTreeRows {
			require.Equal(t, anew, moved, "nothing to keep, or nothing to fit it to")
			return
		}
		require.Equal(t, anew.prior, moved.prior)
		require.Equal(t, anew.base, moved.base)
		for i := range m.trees {
			require.Equal(t, m.trees[i].tests(), moved.trees[i].tests())
		}
		row := other.X[:k]
		require.Equal(t, naivePredict(moved, row), predictOne(t, moved, row...))
	})
}

func meanError(t require.TestingT, m *Model, d Data) float64 {
	y := make([]float64, len(d.Y))
	require.NoError(t, m.Predict(y, d.X))
	s := 0.0
	for i := range y {
		s += math.Abs(y[i]-d.Y[i]) / d.Y[i]
	}
	return s / float64(len(y))
}

func TestPredictAllocatesNothing(t *testing.T) {
	d := randomData(5, 2000, 10)
	m := rig.Must(Fit(Config{Features: 10, Prior: []int{0, 1}}, d))
	y := make([]float64, 100)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = m.Predict(y, d.X[:1000]) }))
}
