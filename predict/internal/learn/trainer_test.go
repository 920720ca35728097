package learn

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheBackgroundLearnsWhileOthersPredict(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Share: 1})
	var wg sync.WaitGroup
	for part := range uint64(4) {
		mine := *c
		mine.engine = newEngine(part)
		wg.Go(func() {
			for range 300 {
				for _, off := range mine.run(quiet, 1) {
					if math.IsNaN(off) || math.IsInf(off, 0) {
						t.Errorf("off by %v", off)
					}
				}
				mine.learner.Health()
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool {
		h := c.learner.Health()
		return h.Labels+h.Dropped == 1200 && h.Refits > 0
	})
	require.Zero(t, c.learner.Health().Dropped)
}

// Nothing needs closing: the goroutine of a fit ends with it.
func TestAFitsGoroutineEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	c := newCourse(t, TTFT, &Trainer{Share: 1})
	c.run(quiet, 300)
	waitFor(t, func() bool { return c.learner.Refits() > 0 && runtime.NumGoroutine() <= before })
}

func TestOneFitAtATime(t *testing.T) {
	trainer := &Trainer{Share: 1}
	var fitting, most atomic.Int32
	trainer.fitting = func(*Learner) {
		most.Store(max(most.Load(), fitting.Add(1)))
		runtime.Gosched()
		fitting.Add(-1)
	}
	all := []*course{newCourse(t, TTFT, trainer), newCourse(t, TTFT, trainer), newCourse(t, TTFT, trainer)}
	waitFor(t, func() bool {
		behind := false
		for _, c := range all {
			c.run(quiet, 30)
			behind = behind || c.learner.Refits() < 2
		}
		return !behind
	})
	require.EqualValues(t, 1, most.Load())
}

// Learners that are due take turns in the order in which they became due, whichever gets the
// most labels.
func TestFitsTakeTurns(t *testing.T) {
	trainer := &Trainer{Share: 1, busy: true} // a fit is going on
	var order []*Learner
	trainer.fitting = func(l *Learner) { order = append(order, l) }
	all := []*course{newCourse(t, TTFT, trainer), newCourse(t, TTFT, trainer), newCourse(t, TTFT, trainer)}
	for _, i := range []int{2, 0, 1, 0, 2} {
		all[i].run(quiet, FirstFit)
	}
	require.Empty(t, order)
	want := []*Learner{all[2].learner, all[0].learner, all[1].learner}
	require.Equal(t, want, trainer.due, "each waits once")
	for range all {
		trainer.mu.Lock()
		trainer.busy = false
		trainer.mu.Unlock()
		all[0].learner.Hurry()
		all[0].run(quiet, 1) // the one with labels asks for another turn each time
		waitFor(t, func() bool {
			trainer.mu.Lock()
			defer trainer.mu.Unlock()
			return !trainer.busy
		})
	}
	require.Equal(t, want, order)
}

// waitFor waits for a condition that another goroutine makes true.
func waitFor(t *testing.T, ok func() bool) {
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(began), 30*time.Second)
	}
}

func TestFitsRestInProportion(t *testing.T) {
	require.Equal(t, 4*time.Second, rest(time.Second, 0), "a fifth of the time by default")
	require.Equal(t, time.Second, rest(time.Second, 0.5))
	require.Zero(t, rest(time.Second, 1))

	trainer := &Trainer{rest: time.Now().Add(time.Hour)}
	trainer.fitting = func(*Learner) { time.Sleep(20 * time.Millisecond) } // more than the grain of any clock
	c := newCourse(t, TTFT, trainer)
	c.run(quiet, 100)
	require.False(t, trainer.busy)
	require.Zero(t, c.learner.Refits())
	trainer.rest = time.Time{}
	c.run(quiet, 1)
	waitFor(t, func() bool { return c.learner.Health().Refits == 1 }) // the next label asks again
	require.Positive(t, c.learner.Health().FitTime)
}

func TestAPanicInAFitIsAnErrorAndTheOldModelStays(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true})
	c.run(quiet, 50)
	m := c.learner.Model()
	require.NotNil(t, m)
	tried := 0
	c.learner.trainer.fitting = func(*Learner) {
		tried++
		panic("no luck")
	}
	refits, labels := c.learner.Refits(), c.learner.Health().Labels
	c.run(quiet, 100)
	require.EqualError(t, c.learner.Health().LastFail, "learn: panic in a fit: no luck")
	require.Equal(t, refits, c.learner.Refits())
	require.Equal(t, 4, tried, "every 25 labels, as if it had gone well")
	require.Same(t, m, c.learner.Model())
	require.Equal(t, labels+100, c.learner.Health().Labels, "labels are taken in as before")
	tried = 0
	c.learner.trainer.fitting = func(*Learner) { tried++ }
	c.learner.config.Boost.Trees = -1 // returns an error instead of panicking
	c.run(quiet, 100)
	require.Error(t, c.learner.Health().LastFail)
	require.Equal(t, 4, tried)
	c.learner.config.Boost.Trees = 0
	c.run(quiet, 100)
	require.NoError(t, c.learner.Health().LastFail)
	require.Greater(t, c.learner.Refits(), refits)
}

func TestTooManyPendingLabelsAreDroppedAndCounted(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Manual: true})
	c.learner.mu.Lock() // as a fit does
	row, label, _ := c.engine.next(quiet)
	for range maxPending + 15 {
		c.learner.Label(row, label, 0, 0, c.engine.at)
	}
	require.Zero(t, c.learner.Health().Labels)
	c.learner.release()
	h := c.learner.Health()
	require.EqualValues(t, 15, h.Dropped)
	require.EqualValues(t, maxPending, h.Labels, "the others are taken in when it is over")
}

func TestLabelAllocatesNothingOnceTheWindowIsFull(t *testing.T) {
	config := Latency(TTFT)
	config.Window.Samples = 500
	l := New(&Trainer{Manual: true}, config)
	row, label, _ := newEngine(5).next(quiet)
	put := func() { l.Label(row, label, label, label, time.Time{}) }
	for range recentErrors {
		put()
	}
	require.Zero(t, testing.AllocsPerRun(500, put))
}

func TestEqualCallsMakeEqualLearners(t *testing.T) {
	a := newCourse(t, TTFT, &Trainer{Synchronous: true})
	b := newCourse(t, TTFT, &Trainer{Synchronous: true})
	require.Equal(t, a.run(quiet, 300), b.run(quiet, 300))
	require.Equal(t, a.learner.Model(), b.learner.Model())
	require.Equal(t, a.learner.spread, b.learner.spread)
}

// The samples taken for a fit do not change while more come in.
func TestLabelsThatComeMeanwhile(t *testing.T) {
	var q queue
	put := func(v float64) { require.True(t, q.put([]float64{v, -v}, sample{label: v})) }
	for round := range 5 {
		a, b := float64(10*round+1), float64(10*round+2)
		put(a)
		put(b)
		samples, rows := q.takeAll()
		for range 3 {
			put(99)
		}
		require.Equal(t, []float64{a, -a, b, -b}, rows)
		require.Equal(t, []sample{{label: a}, {label: b}}, samples)
		require.EqualValues(t, 3, q.waiting.Load())
		samples, _ = q.takeAll()
		require.Len(t, samples, 3)
		require.Zero(t, q.waiting.Load())
	}
}
