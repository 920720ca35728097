package learn

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict/boost"
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
	fresh := row[columnNew]
	ttft = 15 + fresh*(0.04+3e-7*f.InputTokens)*(1+0.01*f.Running) + f.PrefillTokens*0.05 + step
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
	l, err := New(trainer, Latency(target))
	require.NoError(t, err)
	return &course{t: t, learner: l, engine: newEngine(5), tpot: target == TPOT}
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

func TestDriftShowsInHealth(t *testing.T) {
	oneGoroutine(t)
	c := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	require.True(t, math.IsNaN(c.learner.Health().MAPE))
	c.run(quiet, 1000)
	require.NoError(t, c.learner.Refit())
	c.run(quiet, 1500)
	require.InDelta(t, 1, c.learner.Health().Drift, 0.3)
	c.engine.scale = 2
	c.run(quiet, 150)
	require.Greater(t, c.learner.Health().Drift, 3.0)
	h := c.learner.Health()
	require.Greater(t, h.P90, h.MAPE)
	require.EqualValues(t, 2650, h.Labels)
	require.EqualValues(t, 1, h.Refits)
}

func TestBadLabelsAreSkippedAndCounted(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true})
	row, _, _ := c.engine.next(quiet)
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -5, 1e300} {
		c.learner.Label(row, v, 1, 1, time.Time{})
	}
	c.learner.Label(row[:3], 5, 1, 1, time.Time{})
	h := c.learner.Health()
	require.EqualValues(t, 7, h.Skipped)
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

func TestAFailingRefitIsVisibleAndTheOldModelStays(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	require.ErrorIs(t, c.learner.Refit(), boost.ErrNoData)
	require.ErrorIs(t, c.learner.Health().LastFail, boost.ErrNoData)
	c.run(quiet, 200)
	require.NoError(t, c.learner.Refit())
	require.NoError(t, c.learner.Health().LastFail)
	m := c.learner.Model()
	c.learner.config.Boost.Trees = -1 // no validated configuration makes Fit fail
	c.learner.Hurry()                 // to fit from scratch
	require.Error(t, c.learner.Refit())
	require.Error(t, c.learner.Health().LastFail)
	require.Same(t, m, c.learner.Model())
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

func TestLearnersRefuseABadConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "endpick: config: boost.Config.Features is 0, want 1 to 32"},
		{Config{Boost: boost.Config{Features: 2}}, "endpick: config: learn.Config.Window.Features is 0, and the model has 2"},
		{Config{Boost: boost.Config{Features: 1}, Window: WindowConfig{Features: 1, HalfLife: -1}}, "endpick: config: learn.WindowConfig.HalfLife is -1, want 0 or more"},
	} {
		_, err := New(&Trainer{}, c.config)
		require.EqualError(t, err, c.want)
		require.ErrorAs(t, err, new(*endpick.ConfigError))
	}
}

func TestMeanAndP90(t *testing.T) {
	mean, p90 := MeanAndP90([]float64{10, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	require.Equal(t, 5.5, mean)
	require.Equal(t, 9.0, p90, "nine in ten do not exceed it")
	_, p90 = MeanAndP90([]float64{3})
	require.Equal(t, 3.0, p90)
}
