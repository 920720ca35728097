package learn

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/predict/boost"
)

// manual is a learner of one feature that is fitted on demand.
func manual(t *testing.T, window WindowConfig) *Learner {
	window.Features = 1
	l, err := New(&Trainer{Synchronous: true, Manual: true}, Config{Boost: boost.Config{Features: 1, Trees: 4}, Window: window})
	require.NoError(t, err)
	return l
}

// Health's errors, worked out by hand as shares of the measured value.
func TestErrorsByHand(t *testing.T) {
	l := manual(t, WindowConfig{})
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

	l = manual(t, WindowConfig{})
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
	l := manual(t, WindowConfig{})
	assert.InDelta(t, 2, l.Upper(0), 1e-12, "nothing is known")
	say(l, 1, 200)
	// Twice the mean residual, ln 4, less half a step: a sixth of ln 2, as there are eleven.
	assert.InDelta(t, 4*math.Exp2(-1./12), l.Upper(0), 1e-9)
	say(l, 3000, 200)
	assert.InDelta(t, 2, l.Upper(0), 0.1)
	l = manual(t, WindowConfig{})
	say(l, 3000, 50)
	assert.Equal(t, 1.0, l.Upper(0))
}

// When a fit is due, by hand: after a number of samples, sooner during drift, and later if
// the newest look like a shift.
func TestDue(t *testing.T) {
	l := manual(t, WindowConfig{})
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
	for range shiftEvery {
		l.shifts.residuals = append(l.shifts.residuals, shiftResidual{value: 0.5})
	}
	require.True(t, l.shifts.suspects())
	assert.Equal(t, 1000+shiftHistory, first(5000))
	l.hurry.Store(true)
	assert.Zero(t, first(5000))
}

// What a fit reports of itself, and the data it covers.
func TestFitsTellOfThemselves(t *testing.T) {
	l := manual(t, WindowConfig{MaxAge: time.Hour})
	start := time.Unix(1_000_000, 0)
	for i := range 1500 {
		l.Label([]float64{float64(i % 10)}, 10, 0, 0, start)
	}
	last := start.Add(10 * time.Hour)
	for range 10 {
		l.Label([]float64{1}, 10, 0, 0, last)
	}
	l.Unfinished = func(now time.Time, add func([]float64, float64)) {
		assert.Equal(t, last, now)
		for range 3 {
			add([]float64{1}, 20)
		}
	}
	require.NoError(t, l.Refit())
	h := l.Health()
	assert.Equal(t, last, h.LastFit)
	assert.Equal(t, 3, h.Overdue)
	assert.Equal(t, 1000, l.window.Len(), "the old ones have gone, but for the newest thousand")
	assert.Equal(t, 1003, l.Model().Rows())
	l.Unfinished = nil
	require.NoError(t, l.Refit())
	assert.Zero(t, l.Health().Overdue)
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
			d.residuals = append(d.residuals, shiftResidual{value(i, i%3), i % 3, uint64(1000 + i)})
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

// A learner queues for its turn once.
func TestATurnIsWaitedForOnce(t *testing.T) {
	trainer := &Trainer{busy: true}
	l := &Learner{trainer: trainer}
	for range 3 {
		trainer.fit(l)
	}
	assert.Equal(t, []*Learner{l}, trainer.due)
}

// Labels are compared with the model in force, and with nothing if there is none.
func TestNothingIsLearnedOfNothing(t *testing.T) {
	l := manual(t, WindowConfig{})
	assert.True(t, math.IsNaN(l.Health().Coverage))
	assert.Equal(t, "heuristic", l.Health().Phase)
	require.Error(t, l.Refit())
	assert.True(t, l.Health().LastFit.IsZero())
}
