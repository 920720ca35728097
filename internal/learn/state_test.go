package learn

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/codec"
	"github.com/endpick/endpick/predict/boost"
	"github.com/stretchr/testify/require"
)

func TestALearnerSurvivesSaving(t *testing.T) {
	a := newCourse(t, TTFT, &Trainer{Synchronous: true})
	a.run(quiet, 200)
	a.run(overloaded, 200)
	saved, err := a.learner.AppendBinary(nil)
	require.NoError(t, err)
	b := newCourse(t, TTFT, &Trainer{Synchronous: true})
	require.NoError(t, b.learner.Restore(saved))
	again, _ := b.learner.AppendBinary(nil)
	require.Equal(t, saved, again)
	require.Equal(t, a.learner.Health().Samples, b.learner.Health().Samples)
	for range 50 {
		row, _, _ := a.engine.next(code)
		var x, y [1]float64
		require.True(t, a.learner.Predict(x[:], row))
		require.True(t, b.learner.Predict(y[:], row))
		require.Equal(t, x, y)
		bucket := a.learner.Bucket(row)
		require.Equal(t, a.learner.Upper(bucket), b.learner.Upper(bucket))
	}
	a.learner.Hurry() // a restored learner begins with new trees
	require.NoError(t, a.learner.Refit())
	require.NoError(t, b.learner.Refit())
	again, _ = b.learner.AppendBinary(nil)
	saved, _ = a.learner.AppendBinary(nil)
	require.Equal(t, saved, again, "refits agree as well")

	empty := newCourse(t, TTFT, &Trainer{Synchronous: true})
	saved, _ = empty.learner.AppendBinary(nil)
	require.NoError(t, b.learner.Restore(saved))
	require.Nil(t, b.learner.Model())
}

// A saved model counts as a fit, and a prior that was dropped stays dropped; a model of
// other rows is refused.
func TestWhatIsRestoredIsInForce(t *testing.T) {
	a := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	a.run(quiet, 200)
	a.learner.noPrior = true
	require.NoError(t, a.learner.Refit())
	saved, _ := a.learner.AppendBinary(nil)
	b := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	require.NoError(t, b.learner.Restore(saved))
	require.EqualValues(t, 1, b.learner.Refits())
	require.EqualValues(t, 1, b.learner.Health().Refits)
	require.True(t, b.learner.noPrior)
	require.False(t, b.learner.Health().Prior)
	require.Equal(t, 200, b.learner.Health().Samples)

	m, err := boost.Fit(boost.Config{Features: 1}, boost.Data{X: []float64{1}, Y: []float64{1}})
	require.NoError(t, err)
	a.learner.model.Store(m)
	saved, _ = a.learner.AppendBinary(nil)
	require.ErrorIs(t, b.learner.Restore(saved), codec.ErrFormat)
	require.EqualValues(t, 1, b.learner.Refits())
}

// A restored learner knows what was saved and nothing else, whatever it knew before: it
// continues like a new one.
func TestRestoringLeavesNothingOfBefore(t *testing.T) {
	learner := func() *Learner {
		c := Latency(TTFT)
		c.Boost.Trees = 8
		l, err := New(&Trainer{Synchronous: true}, c)
		require.NoError(t, err)
		return l
	}
	run := func(l *Learner, e *engine, r regime, n int) {
		for range n {
			row, label, _ := e.next(r)
			var y [1]float64
			l.Predict(y[:], row)
			l.Label(row, label, y[0], y[0]*l.Upper(l.Bucket(row)), e.at)
		}
	}
	a := learner()
	run(a, newEngine(3), quiet, 600)
	saved, err := a.AppendBinary(nil)
	require.NoError(t, err)
	fresh, used := learner(), learner()
	before := newEngine(4)
	before.scale = 2
	for used.challenger == nil || used.Refits() < 10 {
		run(used, before, quiet, 1)
	}
	before.scale = 6
	run(used, before, quiet, 60) // which looks like the beginning of a shift
	require.NotNil(t, used.challenger)
	require.NotZero(t, used.scores.count)
	require.True(t, used.shifts.suspects())
	used.Hurry()
	require.NoError(t, fresh.Restore(saved))
	require.NoError(t, used.Restore(saved))
	require.Nil(t, used.challenger, "it could win by errors on the labels to come")
	refits := used.Refits() - fresh.Refits()
	one, other := newEngine(5), newEngine(5)
	for range 8 {
		run(fresh, one, quiet, 100)
		run(used, other, quiet, 100)
		x, _ := fresh.AppendBinary(nil)
		y, _ := used.AppendBinary(nil)
		require.Equal(t, x, y)
		require.Equal(t, fresh.Refits(), used.Refits()-refits)
		h := used.Health()
		require.Equal(t, []float64{fresh.Health().MAPE, fresh.Health().Coverage, fresh.Health().Drift}, []float64{h.MAPE, h.Coverage, h.Drift})
	}
	require.Greater(t, fresh.Refits(), uint64(2))
}

// A restart alone causes no fit: the next one is due after as many labels as if the last had been
// made by this learner.
func TestARestartIsNoReasonToFit(t *testing.T) {
	a := newCourse(t, TTFT, &Trainer{Synchronous: true})
	a.run(quiet, 2000)
	saved, _ := a.learner.AppendBinary(nil)
	b := newCourse(t, TTFT, &Trainer{Synchronous: true})
	require.NoError(t, b.learner.Restore(saved))
	b.run(quiet, 2000/5-1)
	require.EqualValues(t, 1, b.learner.Refits())
	b.run(quiet, 110) // a fifth of the samples at that time
	require.EqualValues(t, 2, b.learner.Refits())
}

// Nothing that a learner knew before affects what it does after a restore: not its model's errors,
// nor a challenger's score, nor the beginning of a shift.
func TestWhatWasKnownBeforeIsForgotten(t *testing.T) {
	saved := newCourse(t, TTFT, &Trainer{Synchronous: true})
	saved.run(quiet, 1500)
	b, err := saved.learner.AppendBinary(nil)
	require.NoError(t, err)
	empty, err := newCourse(t, TTFT, &Trainer{Synchronous: true}).learner.AppendBinary(nil)
	require.NoError(t, err)
	for name, before := range map[string]func(*course){
		"another regime": func(c *course) { c.run(overloaded, 900) },
		"the beginning of a shift": func(c *course) {
			c.run(quiet, 1200)
			c.engine.scale *= 2
			c.run(quiet, 90)
		},
		"a challenger that wins": func(c *course) {
			c.run(quiet, 300)
			c.learner.scores.model, c.learner.scores.challenger, c.learner.scores.count = 100, 1, 100
		},
		"a refit that is due": func(c *course) {
			c.run(quiet, 300)
			c.learner.Hurry()
		},
	} {
		for of, b := range map[string][]byte{"something": b, "nothing": empty} {
			t.Run(name+", "+of, func(t *testing.T) {
				old, fresh := newCourse(t, TTFT, &Trainer{Synchronous: true}), newCourse(t, TTFT, &Trainer{Synchronous: true})
				before(old)
				old.engine = newEngine(5)
				for _, c := range []*course{old, fresh} {
					require.NoError(t, c.learner.Restore(b))
				}
				require.Equal(t, fresh.run(code, 700), old.run(code, 700))
				x, _ := fresh.learner.AppendBinary(nil)
				y, _ := old.learner.AppendBinary(nil)
				require.Equal(t, x, y)
				h, g := fresh.learner.Health(), old.learner.Health()
				require.Equal(t, h.MAPE, g.MAPE)
				require.Equal(t, h.Drift, g.Drift)
				require.Equal(t, h.Coverage, g.Coverage)
				require.NoError(t, g.LastFail)
			})
		}
	}
}

// Samples keep their age across a restart: those that are too old go at the same time.
func TestSamplesKeepTheirAge(t *testing.T) {
	config := Config{Boost: boost.Config{Features: 1}, Window: WindowConfig{Features: 1, Samples: 100, MaxAge: time.Hour}}
	a, err := New(&Trainer{Manual: true}, config)
	require.NoError(t, err)
	start := time.Unix(1e9, 0)
	for i := range 90 {
		a.Label([]float64{float64(i)}, 1+float64(i), 0, 0, start.Add(time.Duration(i)*time.Minute))
	}
	saved, err := a.AppendBinary(nil)
	require.NoError(t, err)
	b, err := New(&Trainer{Manual: true}, config)
	require.NoError(t, err)
	require.NoError(t, b.Restore(saved))
	for _, minutes := range []int{60, 75, 100, 149, 500} {
		now := start.Add(time.Duration(minutes) * time.Minute)
		a.window.Expire(now)
		b.window.Expire(now)
		require.Equal(t, a.window.Len(), b.window.Len(), "after %d minutes", minutes)
		var x, y boost.Data
		a.window.AppendTo(&x)
		b.window.AppendTo(&y)
		require.Equal(t, x, y)
	}
	require.Equal(t, 25, b.window.Len(), "a quarter stays")
}

func TestRestoringWhatDoesNotFitIsRefused(t *testing.T) {
	a := newCourse(t, TTFT, &Trainer{Synchronous: true})
	a.run(quiet, 120)
	saved, _ := a.learner.AppendBinary(nil)
	other, err := New(a.learner.trainer, Config{Boost: boost.Config{Features: 2}, Window: WindowConfig{Features: 2}})
	require.NoError(t, err)
	require.ErrorIs(t, other.Restore(saved), codec.ErrFormat)
	for i := 0; i < len(saved); i += 1 + len(saved)/300 {
		require.ErrorIs(t, a.learner.Restore(saved[:i]), codec.ErrFormat)
		if i >= codec.HeaderSize {
			require.ErrorIs(t, a.learner.Restore(reseal(saved[:i])), codec.ErrFormat)
		}
	}
	again, _ := a.learner.AppendBinary(nil)
	require.Equal(t, saved, again, "what is refused changes nothing")
}

// reseal gives changed content a correct header, so that only the content can be at fault.
func reseal(b []byte) []byte {
	if len(b) < codec.HeaderSize {
		return b
	}
	return codec.Seal(nil, string(b[:4]), b[codec.HeaderSize:])
}

// FuzzRestore decodes garbage with a valid checksum: it is refused, or yields a learner that works
// and saves the same. Seeds are small, since minimising an interesting input takes time quadratic
// in its length.
func FuzzRestore(f *testing.F) {
	config := Config{
		Boost:  boost.Config{Features: 1, Trees: 1},
		Window: WindowConfig{Features: 1, Samples: 3, Strata: []Stratum{{Edges: []float64{1}}}},
	}
	fresh := func(t require.TestingT) *Learner {
		l, err := New(&Trainer{Synchronous: true}, config)
		require.NoError(t, err)
		return l
	}
	for _, labels := range []int{0, 3, FirstFit} {
		l := fresh(f)
		for i := range labels {
			l.Label([]float64{float64(i % 3)}, float64(1+i), 2, 3, time.Unix(int64(i), 0))
		}
		saved, _ := l.AppendBinary(nil)
		f.Add(saved)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := fresh(t)
		if l.Restore(reseal(b)) != nil {
			require.Nil(t, l.Model())
			require.Zero(t, l.Health().Samples)
			return
		}
		var y [1]float64
		for _, x := range []float64{0, -1, 2, math.NaN(), math.Inf(1)} {
			require.Equal(t, l.Model() != nil, l.Predict(y[:], []float64{x}))
			require.GreaterOrEqual(t, l.Upper(l.Bucket([]float64{x})), 1.0)
		}
		saved, _ := l.AppendBinary(nil)
		again := fresh(t)
		require.NoError(t, again.Restore(saved))
		twice, _ := again.AppendBinary(nil)
		require.Equal(t, saved, twice)
		l.Label([]float64{0}, 5, 4, 6, time.Unix(9, 0))
		_ = l.Refit()
	})
}
