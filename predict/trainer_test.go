package predict

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
)

func TestTheBackgroundLearnsWhileOthersPredict(t *testing.T) {
	c := newCourse(t, endpick.TTFT, TrainerConfig{Share: 1})
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
	require.NoError(t, c.learner.trainer.Close())
	require.NoError(t, c.learner.trainer.Close(), "again")
	var y [1]float64
	require.True(t, c.learner.Predict(y[:], all[0].row), "what was learned stays")
}

func TestClosingWhileBusyReturns(t *testing.T) {
	c := newCourse(t, endpick.TTFT, TrainerConfig{})
	c.run(quiet, 300)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.learner.trainer.Close()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("Close hangs")
	}
}

func TestTooManyPendingLabelsAreDroppedAndCounted(t *testing.T) {
	c := newCourse(t, endpick.TTFT, TrainerConfig{Pending: 10})
	require.NoError(t, c.learner.trainer.Close()) // nobody takes them any more
	c.run(quiet, 25)
	h := c.learner.Health()
	require.EqualValues(t, 15, h.Dropped)
	require.Zero(t, h.Labels)
}

func TestLabelAllocatesNothingOnTheRequestPath(t *testing.T) {
	c := newCourse(t, endpick.TTFT, TrainerConfig{Pending: 1000})
	require.NoError(t, c.learner.trainer.Close())
	row, label, _ := c.engine.next(quiet)
	put := func() { c.learner.Label(row, label, label, label, time.Time{}) }
	for range 1000 {
		put()
	}
	c.learner.step()
	for range 1000 {
		put()
	}
	c.learner.step() // both buffers have grown by now
	require.Zero(t, testing.AllocsPerRun(500, put))
}

func TestEqualCallsMakeEqualLearners(t *testing.T) {
	a := newCourse(t, endpick.TTFT, TrainerConfig{Synchronous: true})
	b := newCourse(t, endpick.TTFT, TrainerConfig{Synchronous: true})
	require.Equal(t, a.run(quiet, 300), b.run(quiet, 300))
	x, _ := a.learner.AppendBinary(nil)
	y, _ := b.learner.AppendBinary(nil)
	require.Equal(t, x, y)
}

func TestALearnerSurvivesSaving(t *testing.T) {
	a := newCourse(t, endpick.TTFT, TrainerConfig{Synchronous: true})
	a.run(quiet, 200)
	a.run(overloaded, 200)
	saved, err := a.learner.AppendBinary(nil)
	require.NoError(t, err)
	b := newCourse(t, endpick.TTFT, TrainerConfig{Synchronous: true})
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
	require.NoError(t, a.learner.Refit())
	require.NoError(t, b.learner.Refit())
	require.Equal(t, modelBytes(t, a.learner.Model()), modelBytes(t, b.learner.Model()), "refits agree as well")

	empty := newCourse(t, endpick.TTFT, TrainerConfig{Synchronous: true})
	saved, _ = empty.learner.AppendBinary(nil)
	require.NoError(t, b.learner.Restore(saved))
	require.Nil(t, b.learner.Model())
}

func TestRestoringWhatDoesNotFitIsRefused(t *testing.T) {
	a := newCourse(t, endpick.TTFT, TrainerConfig{Synchronous: true})
	a.run(quiet, 120)
	saved, _ := a.learner.AppendBinary(nil)
	other, err := a.learner.trainer.Learner(LearnerConfig{Boost: BoostConfig{Features: 2}, Window: WindowConfig{Features: 2}})
	require.NoError(t, err)
	require.ErrorIs(t, other.Restore(saved), ErrFormat)
	for i := 0; i < len(saved); i += 1 + len(saved)/300 {
		require.ErrorIs(t, a.learner.Restore(saved[:i]), ErrFormat)
		if i >= envelopeSize {
			require.ErrorIs(t, a.learner.Restore(reseal(saved[:i])), ErrFormat)
		}
	}
	again, _ := a.learner.AppendBinary(nil)
	require.Equal(t, saved, again, "what is refused changes nothing")
}

func TestThePredictorSurvivesARestart(t *testing.T) {
	w := newWorld(t, synchronous())
	for i := range 300 {
		req := w.request()
		req.Stream = i%3 > 0
		w.finish(req, w.candidate([]string{"a", "b"}[i%2], 0))
	}
	saved, err := w.latency.AppendBinary(nil)
	require.NoError(t, err)
	l, err := RestoreLatency(synchronous(), saved)
	require.NoError(t, err)
	again, _ := l.AppendBinary(nil)
	require.Equal(t, saved, again)
	candidates := []endpick.Candidate{w.candidate("a", 7), w.candidate("b", 7), w.candidate("c", 7)}
	same := append([]endpick.Candidate(nil), candidates...)
	req := w.request().At(w.now, 0, 1)
	w.latency.Predict(&req, candidates)
	l.Predict(&req, same)
	require.Equal(t, predictions(candidates), predictions(same))
	require.NotZero(t, same[0].Prediction.Has)
	require.Zero(t, same[2].Prediction.Has)

	for i := 0; i < len(saved); i += 1 + len(saved)/300 {
		_, err := RestoreLatency(synchronous(), saved[:i])
		require.ErrorIs(t, err, ErrFormat)
		if i >= envelopeSize {
			_, err = RestoreLatency(synchronous(), reseal(saved[:i]))
			require.ErrorIs(t, err, ErrFormat)
		}
	}
	saved[4]++
	_, err = RestoreLatency(synchronous(), saved)
	require.ErrorIs(t, err, ErrVersion)
}

// FuzzRestore decodes garbage behind a valid checksum: it is refused, or makes a predictor that works.
func FuzzRestore(f *testing.F) {
	w := newWorld(f, LatencyConfig{Trees: 1, Trainer: TrainerConfig{Synchronous: true}})
	for range 30 {
		w.finish(w.request(), w.candidate("a", 0))
	}
	saved, _ := w.latency.AppendBinary(nil)
	f.Add(saved)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := RestoreLatency(synchronous(), reseal(b))
		if err != nil {
			return
		}
		req := endpick.Request{Model: "m", InputTokens: 10, Stream: true}.At(time.Unix(1, 0), 0, 1)
		one := []endpick.Candidate{{Endpoint: &endpick.Endpoint{Variant: "a"}, KVUsage: math.NaN()}}
		l.Predict(&req, one)
		p := one[0].Prediction
		require.True(t, p.Has&endpick.TTFT == 0 || p.TTFTUpper >= p.TTFT, "%+v", p)
	})
}
