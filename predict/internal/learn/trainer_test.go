package learn

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/rig"
)

func TestTheBackgroundLearnsWhileOthersPredict(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Share: 1})
	type labelled struct {
		row   []float64
		label float64
	}
	var all []labelled
	for range 1200 {
		row, label, _ := c.engine.next(quiet)
		all = append(all, labelled{row, label})
	}
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			var y [1]float64
			for i := part; i < len(all); i += 4 {
				if c.learner.Predict(y[:], all[i].row) && !(y[0] > 0) {
					t.Errorf("predicted %v", y[0])
				}
				if u := c.learner.Upper(c.learner.Bucket(all[i].row)); !(u >= 1) {
					t.Errorf("upper bound %v", u)
				}
				c.learner.Label(all[i].row, all[i].label, y[0], y[0], time.Unix(int64(i), 0))
				c.learner.Health()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool {
		h := c.learner.Health()
		return h.Labels+h.Dropped == 1200 && h.Refits > 0
	}, 30*time.Second, time.Millisecond)
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
	var all []*course
	for range 3 {
		c := newCourse(t, TTFT, trainer)
		trainer.fitting = func(*Learner) {
			most.Store(max(most.Load(), fitting.Add(1)))
			runtime.Gosched()
			fitting.Add(-1)
		}
		all = append(all, c)
	}
	require.Eventually(t, func() bool {
		for _, c := range all {
			c.run(quiet, 30)
		}
		return all[0].learner.Refits() > 1 && all[1].learner.Refits() > 1 && all[2].learner.Refits() > 1
	}, 30*time.Second, time.Millisecond)
	require.EqualValues(t, 1, most.Load())
}

// Learners that are due take turns in the order in which they became due, whichever gets the
// most labels.
func TestFitsTakeTurns(t *testing.T) {
	trainer := &Trainer{Share: 1, busy: true} // a fit is going on
	var order []*Learner
	trainer.fitting = func(l *Learner) { order = append(order, l) }
	var all []*course
	for range 3 {
		c := newCourse(t, TTFT, trainer)
		all = append(all, c)
	}
	for _, i := range []int{2, 0, 1, 0, 2} {
		all[i].run(quiet, FirstFit)
	}
	require.Empty(t, order)
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
	require.Equal(t, []*Learner{all[2].learner, all[0].learner, all[1].learner}, order)
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

	trainer := &Trainer{}
	trainer.rest = time.Now().Add(time.Hour)
	c := newCourse(t, TTFT, trainer)
	c.run(quiet, 100)
	require.False(t, trainer.busy)
	require.Zero(t, c.learner.Refits())
	trainer.rest = time.Time{}
	c.run(quiet, 1)
	require.Eventually(t, func() bool { return c.learner.Refits() == 1 }, 30*time.Second, time.Millisecond, "the next label asks again")
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
	l := rig.Must(New(&Trainer{Manual: true}, config))
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
		put(float64(10*round + 1))
		put(float64(10*round + 2))
		samples, rows := q.takeAll()
		for range 3 {
			put(99)
		}
		require.Equal(t, []float64{float64(10*round + 1), -float64(10*round + 1), float64(10*round + 2), -float64(10*round + 2)}, rows)
		require.Equal(t, []sample{{label: float64(10*round + 1)}, {label: float64(10*round + 2)}}, samples)
		require.EqualValues(t, 3, q.waiting.Load())
		samples, _ = q.takeAll()
		require.Len(t, samples, 3)
		require.Zero(t, q.waiting.Load())
	}
}
