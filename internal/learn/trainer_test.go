package learn

import (
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/codec"
	"github.com/endpick/endpick/predict/boost"
	"github.com/stretchr/testify/require"
)

func TestTheBackgroundLearnsWhileOthersPredict(t *testing.T) {
	c := newCourse(t, TTFT, TrainerConfig{Share: 1})
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
	c := newCourse(t, TTFT, TrainerConfig{})
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
	c := newCourse(t, TTFT, TrainerConfig{Pending: 10})
	require.NoError(t, c.learner.trainer.Close()) // nobody takes them any more
	c.run(quiet, 25)
	h := c.learner.Health()
	require.EqualValues(t, 15, h.Dropped)
	require.Zero(t, h.Labels)
}

func TestLabelAllocatesNothingOnTheRequestPath(t *testing.T) {
	c := newCourse(t, TTFT, TrainerConfig{Pending: 1000})
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
	a := newCourse(t, TTFT, TrainerConfig{Synchronous: true})
	b := newCourse(t, TTFT, TrainerConfig{Synchronous: true})
	require.Equal(t, a.run(quiet, 300), b.run(quiet, 300))
	x, _ := a.learner.AppendBinary(nil)
	y, _ := b.learner.AppendBinary(nil)
	require.Equal(t, x, y)
}

func TestALearnerSurvivesSaving(t *testing.T) {
	a := newCourse(t, TTFT, TrainerConfig{Synchronous: true})
	a.run(quiet, 200)
	a.run(overloaded, 200)
	saved, err := a.learner.AppendBinary(nil)
	require.NoError(t, err)
	b := newCourse(t, TTFT, TrainerConfig{Synchronous: true})
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
	again, _ = b.learner.AppendBinary(nil)
	saved, _ = a.learner.AppendBinary(nil)
	require.Equal(t, saved, again, "refits agree as well")

	empty := newCourse(t, TTFT, TrainerConfig{Synchronous: true})
	saved, _ = empty.learner.AppendBinary(nil)
	require.NoError(t, b.learner.Restore(saved))
	require.Nil(t, b.learner.Model())
}

func TestRestoringWhatDoesNotFitIsRefused(t *testing.T) {
	a := newCourse(t, TTFT, TrainerConfig{Synchronous: true})
	a.run(quiet, 120)
	saved, _ := a.learner.AppendBinary(nil)
	other, err := a.learner.trainer.Learner(Config{Boost: boost.Config{Features: 2}, Window: WindowConfig{Features: 2}})
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

// reseal gives changed content a header that is right, so that only the content can be at fault.
func reseal(b []byte) []byte {
	if len(b) < codec.HeaderSize {
		return b
	}
	return codec.Seal(nil, string(b[:4]), b[codec.HeaderSize:])
}
