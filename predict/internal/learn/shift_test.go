package learn

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// When all labels change by one factor, exactly the earlier ones are corrected.
func TestAShiftCorrectsWhatCameBeforeAndNothingElse(t *testing.T) {
	c := newCourse(t, TTFT, &Trainer{Synchronous: true, Manual: true})
	c.run(quiet, 500)
	c.run(code, 1000)
	require.NoError(t, c.learner.Refit())
	c.run(code, 1500) // with predictions, which make buckets known
	require.NoError(t, c.learner.Refit())
	c.run(code, 200)
	raw := append([]float64(nil), c.learner.window.y...)
	c.engine.scale = 1.5
	for c.learner.Health().Shifts == 0 {
		row, label, _ := c.engine.next(code)
		raw = append(raw, label)
		c.learner.Label(row, label, 0, 0, c.engine.at)
		require.Less(t, len(raw), 3600, "the shift is not seen")
	}
	factor := c.learner.window.y[0] / raw[0]
	require.InEpsilon(t, 1.5, factor, 0.03)
	for i, y := range c.learner.window.y {
		if i < 3200 {
			require.InEpsilon(t, factor, y/raw[i], 1e-12, "sample %d", i)
		} else {
			require.Equal(t, raw[i], y, "sample %d", i)
		}
	}
	require.Len(t, c.learner.window.y, len(raw))
	require.True(t, c.learner.hurry.Load(), "the next label brings a model of it")

	// The model in force does not know the shift yet; until another does, it is not corrected
	// twice.
	c.run(code, 2*shiftHistory)
	require.EqualValues(t, 1, c.learner.Health().Shifts)
	require.InEpsilon(t, factor, c.learner.window.y[0]/raw[0], 1e-12)
}

func TestRescaledLabelsStayWhatCanBeSaved(t *testing.T) {
	w := NewWindow(WindowConfig{Features: 1})
	for _, y := range []float64{1 / maxLabel, 1, maxLabel} {
		w.Add([]float64{0}, y, newEngine(1).at)
	}
	for _, factor := range []float64{math.Exp(maxResidual), math.Exp(-maxResidual)} {
		for range 40 {
			w.Rescale(factor, 4)
		}
		for _, y := range w.y {
			require.GreaterOrEqual(t, y, 1/maxLabel)
			require.LessOrEqual(t, y, maxLabel)
		}
	}
}
