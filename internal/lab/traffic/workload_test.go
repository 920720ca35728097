package traffic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConversations(t *testing.T) {
	w := Workload{Duration: 100 * time.Second, Rate: 12, Groups: 5, SystemTokens: 100, QuestionTokens: 80, OutputTokens: 48, Turns: 3, Think: 400 * time.Millisecond, Seed: 1}
	all := w.Conversations()
	require.Equal(t, all, w.Conversations(), "the same seed gives the same conversations")
	// 400 are expected, with a standard deviation of 20.
	require.InDelta(t, 400, len(all), 80)
	systems := map[string]int{}
	last := time.Duration(0)
	var outputs, thinks float64
	for _, c := range all {
		require.GreaterOrEqual(t, c.start, last)
		require.Less(t, c.start, w.Duration)
		last = c.start
		systems[c.System]++
		require.Len(t, c.System, 400)
		require.Len(t, c.Turns, 3)
		require.Zero(t, c.Turns[0].think)
		for _, turn := range c.Turns {
			require.Len(t, turn.Question, 4*w.QuestionTokens)
			require.GreaterOrEqual(t, turn.output, 24)
			require.LessOrEqual(t, turn.output, 72)
			outputs += float64(turn.output)
			thinks += turn.think.Seconds()
		}
	}
	require.Len(t, systems, 5)
	require.InDelta(t, 48, outputs/float64(3*len(all)), 2)
	require.InDelta(t, 0.4, thinks/float64(2*len(all)), 0.06)

	w.Seed = 2
	require.NotEqual(t, all, w.Conversations())
}
