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

func TestLongestHolds(t *testing.T) {
	config, err := ServerConfig(4096)
	require.NoError(t, err)
	config.Speed = 20
	w := Workload{Duration: time.Second, Rate: 8, Groups: 1, SystemTokens: 500, QuestionTokens: 80, OutputTokens: 48, Turns: 4, Seed: 1}
	f, err := StartFleet(1, config)
	require.NoError(t, err)
	defer f.Close()
	c := NewClient("http://" + f.Members[0].Address)
	defer c.Close()
	conversation := w.Conversations()[0]
	for i := range conversation.Turns {
		conversation.Turns[i].output, conversation.Turns[i].think = 72, 0
	}
	var last Sample
	c.Converse(t.Context(), time.Now().Add(-conversation.start), &conversation, func(s Sample) {
		require.NoError(t, s.Err)
		require.Greater(t, s.PromptTokens, last.PromptTokens, "history grows")
		if last.PromptTokens > 0 {
			require.GreaterOrEqual(t, s.CachedTokens, (last.PromptTokens+last.OutputTokens-1)/16*16, "and is cached")
		}
		last = s
	})
	require.LessOrEqual(t, last.PromptTokens+last.OutputTokens, w.Longest())
}
