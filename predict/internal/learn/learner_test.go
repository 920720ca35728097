package learn

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict/boost"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oneGoroutine skips a long test under the race detector, which can find nothing in one goroutine,
// and on 32-bit machines, which are several times slower.
func oneGoroutine(t *testing.T) {
	if rig.Race || strconv.IntSize == 32 {
		t.Skip("one goroutine: nothing to race with")
	}
}

// engine differs from the server that the benchmark data comes from: attention is quadratic, the
// step time of a batch saturates, a full cache costs more, and prefills slow decoding down.
type engine struct {
	rng   *rand.Rand
	scale float64
	at    time.Time
}

// regime is a kind of traffic.
type regime struct{ tokens, kv, running, waiting, share float64 }

var (
	quiet      = regime{6, 0.2, 15, 0, 0.5}
	code       = regime{8.3, 0.55, 35, 0.5, 0.8}
	overloaded = regime{7, 0.93, 60, 8, 0.2}
)

func newEngine(seed uint64) *engine {
	return &engine{rng: rand.New(rand.NewPCG(seed, 9)), scale: 1, at: time.Unix(0, 0)}
}

func (e *engine) next(r regime) (row []float64, ttft, tpot float64) {
	f := Features{
		KVUsage:              min(1, max(0, r.kv+0.06*e.rng.NormFloat64())),
		InputTokens:          math.Floor(math.Exp(r.tokens + 0.8*e.rng.NormFloat64())),
		Waiting:              math.Floor(r.waiting * e.rng.ExpFloat64()),
		Running:              math.Floor(max(0, r.running+8*e.rng.NormFloat64())),
		PrefixShare:          math.Pow(e.rng.Float64(), 1/(r.share+0.01)),
		ResidentTokens:       math.NaN(),
		PrefillRate:          math.Floor(3000 * e.rng.Float64()),
		ExpectedOutputTokens: 100,
		Variant:              math.NaN(),
	}
	f.PrefillTokens = math.Floor(f.Waiting * math.Exp(r.tokens) * (0.5 + e.rng.Float64()))
	row = make([]float64, FeatureCount)
	f.Row(row)
	step := 7 + 0.9*math.Pow(f.Running, 0.75) + 20*f.KVUsage
	ttft = 15 + row[columnNew]*(0.04+3e-7*f.InputTokens)*(1+0.01*f.Running) + f.PrefillTokens*0.05 + step
	if f.KVUsage > 0.9 {
		ttft += f.Waiting * step * 3
	}
	tpot = max(step, 9+0.25*f.Running) * (1 + 0.5*f.PrefillRate/3000)
	e.at = e.at.Add(50 * time.Millisecond)
	noise := func(s float64) float64 { return e.scale * math.Exp(s*e.rng.NormFloat64()) }
	return row, ttft * noise(0.045), tpot * noise(0.03)
}

// course runs a learner through regimes and collects the errors of its predictions.
type course struct {
	t       require.TestingT
	learner *Learner
	engine  *engine
	tpot    bool
	held    int // predictions below their upper bound
}

func newCourse(t require.TestingT, target Target, trainer *Trainer) *course {
	return &course{t: t, learner: New(trainer, Latency(target)), engine: newEngine(5), tpot: target == TPOT}
}

// run returns the absolute errors, as shares.
func (c *course) run(r regime, n int) []float64 {
	var errs []float64
	c.held = 0
	var y [1]float64
	for range n {
		row, label, tpot := c.engine.next(r)
		if c.tpot {
			label = tpot
		}
		upper := 0.0
		if y[0] = 0; c.learner.Predict(y[:], row) {
			upper = y[0] * c.learner.Upper(c.learner.Bucket(row))
			errs = append(errs, math.Abs(y[0]-label)/label)
			if label <= upper {
				c.held++
			}
		}
		c.learner.Label(row, label, y[0], upper, c.engine.at)
	}
	return errs
}

func mape(errs []float64) float64 {
	mean, _ := MeanAndP90(errs)
	return mean
}

func TestAccuracyOnAnotherEngine(t *testing.T) {
	oneGoroutine(t)
	for _, target := range []Target{TTFT, TPOT} {
		c := newCourse(t, target, &Trainer{Synchronous: true})
		c.run(quiet, 2000)
		c.run(code, 2000)
		c.run(overloaded, 3000)
		limit := 0.06 // the noise is 0.036 of TTFT and 0.024 of TPOT
		if target == TPOT {
			limit = 0.035
		}
		require.Less(t, mape(c.run(overloaded, 1000)), limit)
		c.run(quiet, 3000)
		require.Less(t, mape(c.run(quiet, 1000)), limit)
		require.Less(t, mape(c.run(overloaded, 500)), 1.5*limit, "not forgotten")
		require.Zero(t, c.learner.Health().Shifts, "a change of regime is no shift of the labels")
	}
}

func TestUpperBoundsHoldInEveryRegime(t *testing.T) {
	oneGoroutine(t)
	c := newCourse(t, TTFT, &Trainer{Synchronous: true})
	c.run(quiet, 3000)
	c.run(overloaded, 3000)
	all := 0
	for _, r := range []regime{quiet, overloaded, quiet, overloaded} {
		c.run(r, 1000)
		require.Greater(t, c.held, 850)
		all += c.held
	}
	require.InDelta(t, 3600, all, 160, "the bounds follow, at their pace, a model that gets better")
}

func TestDriftIsOverWithin2000Samples(t *testing.T) {
	oneGoroutine(t)
	for factor, target := range map[float64]Target{1.3: TTFT, 1 / 1.3: TPOT} {
		c := newCourse(t, target, &Trainer{Synchronous: true})
		c.run(overloaded, 2000)
		c.run(quiet, 2000)
		c.run(code, 2000)
		before := mape(c.run(code, 1000))
		c.engine.scale = factor
		c.run(code, 1000)
		require.Less(t, mape(c.run(code, 1000)), 1.5*before, "the second thousand")
		require.EqualValues(t, 1, c.learner.Health().Shifts)
		require.Less(t, mape(c.run(overloaded, 500)), 0.1, "also where nothing was seen of it")
	}
}

func TestBadLabelsAreSkippedAndCounted(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true})
	row, _, _ := c.engine.next(quiet)
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -5, 1e300} {
		c.learner.Label(row, v, 1, 1, time.Time{})
	}
	h := c.learner.Health()
	require.EqualValues(t, 6, h.Skipped)
	require.Zero(t, h.Samples)
	for _, v := range []float64{math.NaN(), math.Inf(1), -1, 0} {
		c.learner.Label(row, 5, v, math.NaN(), time.Time{})
	}
	require.Equal(t, 4, c.learner.Health().Samples, "a prediction that never was is no reason to lose the label")
	require.True(t, math.IsNaN(c.learner.Health().MAPE))
}

// One absurd label, before the first fit or in the middle of a day, shows neither in later
// predictions nor in Health. A label of 50 µs once took the error from 3 % to 79 %.
func TestOneAbsurdLabelChangesLittle(t *testing.T) {
	oneGoroutine(t)
	days := func(at int, label float64) (later, health float64) {
		c := newCourse(t, TTFT, &Trainer{Synchronous: true})
		c.run(quiet, at)
		row, _, _ := c.engine.next(quiet)
		var y [1]float64
		c.learner.Predict(y[:], row)
		c.learner.Label(row, label, y[0], 2*y[0], c.engine.at)
		c.run(quiet, 30)
		return mape(c.run(quiet, 300)), c.learner.Health().MAPE
	}
	for _, at := range []int{10, 23, 60, 400} {
		later, health := days(at, 100)
		for _, label := range []float64{0.05, 1 / maxLabel, maxLabel, 1e9, math.NaN(), math.Inf(1), 0, -1} {
			l, h := days(at, label)
			require.Less(t, l, 1.15*later, "%v as number %d", label, at)
			require.Less(t, h, 1.15*health+1.0/300, "%v as number %d", label, at)
		}
	}
}

// Before the first fit there is nothing to report; a fit that fails is reported, and the old model stays.
func TestAFailingRefitIsVisibleAndTheOldModelStays(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	h := c.learner.Health()
	require.Equal(t, "heuristic", h.Phase)
	require.True(t, math.IsNaN(h.MAPE) && math.IsNaN(h.P90) && math.IsNaN(h.Coverage))
	require.ErrorIs(t, c.learner.Refit(), boost.ErrNoData)
	require.ErrorIs(t, c.learner.Health().LastFail, boost.ErrNoData)
	require.True(t, c.learner.Health().LastFit.IsZero())
	for _, phase := range []string{"prior", "trees"} {
		c.run(quiet, 80)
		require.NoError(t, c.learner.Refit())
		require.NoError(t, c.learner.Health().LastFail)
		require.Equal(t, phase, c.learner.Health().Phase)
	}
	m, last := c.learner.Model(), c.learner.Health().LastFit
	c.run(quiet, 1)
	c.learner.config.Boost.Trees = -1 // no validated configuration makes Fit fail
	c.learner.Hurry()                 // to fit from scratch
	require.Error(t, c.learner.Refit())
	h = c.learner.Health()
	require.Error(t, h.LastFail)
	require.Equal(t, last, h.LastFit)
	require.Same(t, m, c.learner.Model())
	require.EqualValues(t, 2, h.Refits)
}

// A refit keeps the tests of its trees only while samples resemble those that the tests were
// chosen from.
func TestTestsAreChosenAnewForWhatIsNew(t *testing.T) {
	oneGoroutine(t)
	c := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	asks := func() bool {
		before := c.learner.Model()
		require.NoError(t, c.learner.Refit())
		require.NotSame(t, before, c.learner.Model())
		return c.learner.renewed == 0
	}
	c.run(quiet, 2000)
	require.True(t, asks(), "the first time")
	c.run(quiet, 150)
	require.False(t, asks())
	c.run(quiet, 150)
	require.False(t, asks())
	c.run(overloaded, 150)
	require.True(t, asks(), "another regime")
	c.run(quiet, 200)
	require.False(t, asks())
	c.run(quiet, 1600)
	require.True(t, asks(), "a third of the window")
	c.learner.Hurry()
	require.True(t, asks(), "a new kind of endpoint")
}

// A bucket is new if it has grown by half since the tests were chosen, and by more than one row in
// fifty of the window. In a window that has grown, buckets are compared with their old size times
// the square root of its growth.
func TestHowMuchOfAWindowIsNew(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	c.run(quiet, 200)
	require.NoError(t, c.learner.Refit())
	l := c.learner
	for _, tc := range []struct {
		then, now [3]int32
		keeps     bool
	}{
		{[3]int32{9000, 1000, 0}, [3]int32{9000, 1000, 0}, true},
		{[3]int32{9000, 700, 300}, [3]int32{8845, 700, 455}, true},  // 155 of 10,000
		{[3]int32{9000, 700, 300}, [3]int32{8790, 700, 510}, false}, // 210
		{[3]int32{9000, 400, 600}, [3]int32{8730, 400, 870}, true},  // 270, but less than half as large again
		{[3]int32{9900, 100, 0}, [3]int32{9702, 99, 199}, true},     // there were none before
		{[3]int32{9900, 100, 0}, [3]int32{9699, 100, 201}, false},
		{[3]int32{9000, 800, 100}, [3]int32{9000, 700, 300}, false},
		{[3]int32{4000, 800, 200}, [3]int32{8000, 1600, 400}, true},  // twice as many of all, and of each
		{[3]int32{4000, 800, 200}, [3]int32{7900, 1600, 500}, false}, // more than that of one, though it is the rarest
		{[3]int32{4000, 800, 200}, [3]int32{7975, 1600, 425}, true},
	} {
		l.chosenFrom = l.window.rowsByBucket(l.chosenFrom[:0])
		rows := 0
		for i := range l.chosenFrom {
			l.chosenFrom[i], l.window.buckets[i].rows = 0, 0
			if i < len(tc.then) {
				l.chosenFrom[i], l.window.buckets[i].rows = tc.then[i], int(tc.now[i])
				rows += int(tc.now[i])
			}
		}
		l.window.rows, l.renewed = rows, 0
		require.Equal(t, tc.keeps, l.keepsTests(), "%+v", tc)
	}
}

func TestMeanAndP90(t *testing.T) {
	mean, p90 := MeanAndP90([]float64{10, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	require.Equal(t, 5.5, mean)
	require.Equal(t, 9.0, p90, "nine in ten do not exceed it")
	_, p90 = MeanAndP90([]float64{3})
	require.Equal(t, 3.0, p90)
}

// manual is a learner of one feature that is fitted on demand.
func manual(window WindowConfig) *Learner {
	window.Features = 1
	return New(&Trainer{Synchronous: true, Manual: true}, Config{Boost: boost.Config{Features: 1, Trees: 4}, Window: window})
}

// Health's errors, worked out by hand as shares of the measured value.
func TestErrorsByHand(t *testing.T) {
	l := manual(WindowConfig{})
	say := func(times int, predicted, upper float64) {
		for range times {
			l.Label([]float64{1}, 100, predicted, upper, time.Unix(1, 0))
		}
	}
	say(1, 50, 120)
	say(1, 80, 90)
	say(1, 125, 100) // exactly at its bound counts as within
	say(1, 1000, 2000)
	h := l.Health()
	assert.InDelta(t, (0.5+0.2+0.25+1)/4, h.MAPE, 1e-12)
	assert.Equal(t, 0.75, h.Coverage)
	assert.InDelta(t, 0.4875, l.longRun, 1e-12)
	say(recentErrors, 90, 95)
	h = l.Health()
	assert.InDelta(t, 0.1, h.MAPE, 1e-12, "the newest thousand")
	assert.Zero(t, h.Coverage)
	say(recentErrors/2, 90, 105)
	assert.Equal(t, 0.5, l.Health().Coverage)

	l = manual(WindowConfig{})
	say(100, 90, 0)
	say(99, 70, 0)
	assert.Equal(t, 1.0, l.Health().Drift, "that is too little to say")
	say(1, 70, 0)
	assert.InDelta(t, 0.3/0.2, l.Health().Drift, 1e-9)
	say(100, 80, 0)
	assert.InDelta(t, 1, l.Health().Drift, 1e-9, "0.2 of 0.2")
	l.longN, l.longRun = 1e6, 0.1
	say(1, 10, 0)
	assert.InDelta(t, 0.1+0.8/10_000, l.longRun, 1e-12, "the long run is that of ten thousand")
}

// The upper bound over a prediction, by hand: it follows labels that are longer and never falls
// below the prediction.
func TestUpperBoundsByHand(t *testing.T) {
	say := func(l *Learner, times int, label float64) {
		for range times {
			l.Label([]float64{1}, label, 100, 0, time.Unix(1, 0))
			require.GreaterOrEqual(t, l.Upper(0), 1.0)
		}
	}
	l := manual(WindowConfig{})
	assert.InDelta(t, 2, l.Upper(0), 1e-12, "nothing is known")
	say(l, 1, 200)
	// Twice the mean residual, ln 4, less half a step: a sixth of ln 2, as there are eleven.
	assert.InDelta(t, 4*math.Exp2(-1./12), l.Upper(0), 1e-9)
	say(l, 3000, 200)
	assert.InDelta(t, 2, l.Upper(0), 0.1)
	l = manual(WindowConfig{})
	say(l, 3000, 50)
	assert.Equal(t, 1.0, l.Upper(0))
}

// When a fit is due, by hand: after a number of samples, sooner during drift, and later if
// the newest look like a shift.
func TestDue(t *testing.T) {
	l := manual(WindowConfig{})
	l.trainer.Manual = false
	first := func(rows int) int {
		l.window.rows = rows
		for l.since = 0; !l.due(); l.since++ {
		}
		return l.since
	}
	for rows, want := range map[int]int{0: 25, 100: 25, 300: 30, 990: 99, 1000: 200, 4000: 800, 5000: 1000, 25_000: 1000} {
		assert.Equal(t, want, first(rows), "%d", rows)
	}
	l.errors = make([]float64, 200)
	for i := range l.errors {
		l.errors[i] = 0.1
	}
	l.longRun = 0.1
	assert.Equal(t, 1000, first(5000))
	l.longRun = 0.06
	assert.Equal(t, 250, first(5000), "a drift")
	assert.Equal(t, 100, first(1500), "but for the errors that tell of it")
	assert.Equal(t, 30, first(300))
	l.longRun = 0.1
	for _, value := range []float64{0.09, 0.5} {
		l.shifts.residuals = slices.Repeat([]shiftResidual{{value: value}}, shiftEvery)
		require.Equal(t, value == 0.5, l.shifts.suspects(), "only what is a tenth or more")
	}
	assert.Equal(t, 1000+shiftHistory, first(5000))
	l.hurry.Store(true)
	assert.Zero(t, first(5000))
}

// What a fit reports of itself, and the data it covers.
func TestFitsTellOfThemselves(t *testing.T) {
	l := manual(WindowConfig{MaxAge: time.Hour})
	start := time.Unix(1_000_000, 0)
	for i := range 1500 {
		l.Label([]float64{float64(i % 10)}, 10, 0, 0, start)
	}
	last := start.Add(10 * time.Hour)
	for range 10 {
		l.Label([]float64{1}, 10, 0, 0, last)
	}
	require.NoError(t, l.Refit())
	h := l.Health()
	assert.Equal(t, last, h.LastFit)
	assert.Zero(t, h.FitTime, "a synchronous trainer reads no clock")
	assert.Equal(t, 1000, l.window.Len(), "the old ones have gone, but for the newest thousand")
	l.Forget(0, 1)
	assert.Equal(t, 891, l.window.Len(), "the last ten, and a tenth of the others")
}

// The columns of a row, and which are in the linear part for which latency.
func TestRowsByHand(t *testing.T) {
	f := Features{
		KVUsage: 0.51, InputTokens: 1000, Waiting: 2, Running: 3, PrefixShare: 0.25, PrefillTokens: 400, ResidentTokens: 5, PrefillRate: 6,
		ExpectedOutputTokens: 7, Variant: 8,
	}
	var row [FeatureCount]float64
	f.Row(row[:])
	assert.InDeltaSlice(t, []float64{0.51, 1000, 2, 3, 0.25, 400, 5, 6, 7, 8, 750, 1150, 1150 / 0.5}, row[:], 1e-9)

	first := []int{columnKV, columnInput, columnWaiting, columnRunning, columnPrefill, columnNew, columnAhead}
	for target, want := range map[Target][]int{
		TTFT: first, TPOT: {columnKV, columnRunning, columnResident}, E2E: append(first[:7:7], columnOutput),
	} {
		assert.Equal(t, want, Latency(target).Boost.Prior)
	}
}

// A shift, by hand: the mean after it minus the mean before, where all buckets have moved
// alike.
func TestShiftsByHand(t *testing.T) {
	look := func(value func(i, bucket int) float64) (float64, uint64) {
		d := shiftDetector{known: []bool{true, true, true, false}, scale: 0.01}
		for i := range 199 {
			bucket := i % 3
			if i == 150 {
				bucket = 3 // of which there is too little to say
			}
			d.residuals = append(d.residuals, shiftResidual{value(i, bucket), bucket, uint64(1000 + i)})
		}
		return d.add(shiftResidual{value(199, 1), 1, 1199})
	}
	both := func(before, after float64) func(i, bucket int) float64 {
		return func(i, _ int) float64 {
			if i < 100 {
				return before
			}
			return after
		}
	}
	shift, first := look(both(0.05, 0.5))
	assert.InDelta(t, 0.45, shift, 1e-9)
	assert.EqualValues(t, 1100, first)
	shift, _ = look(func(i, bucket int) float64 {
		if bucket == 3 {
			return 5
		}
		return both(0, 0.5)(i, bucket)
	})
	assert.InDelta(t, 0.545, shift, 1e-9)
	shift, _ = look(both(0, -0.2))
	assert.InDelta(t, -0.2, shift, 1e-9)
	shift, _ = look(both(0, 0.09))
	assert.Zero(t, shift, "less than a tenth")
	for _, odd := range []float64{0.1, 2} {
		shift, _ = look(func(i, bucket int) float64 {
			if i >= 100 && bucket == 2 {
				return odd
			}
			return both(0, 0.5)(i, 0)
		})
		assert.Zero(t, shift, "one of them moved by something else")
	}

	s := newSpread(3)
	s.buckets[0].count, s.buckets[1].count, s.all.scale = knownResiduals-1, knownResiduals, 0.25
	d := shiftDetector{pause: true, residuals: make([]shiftResidual, 7)}
	d.refitted(s)
	assert.Equal(t, shiftDetector{known: []bool{false, true, false}, scale: 0.25, residuals: d.residuals[:0]}, d)
	shift, _ = d.add(shiftResidual{bucket: 0})
	assert.Zero(t, shift)
	assert.Empty(t, d.residuals, "of what is not known nothing is looked at")
}
