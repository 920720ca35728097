package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConversations(t *testing.T) {
	w := workload{duration: 100 * time.Second, rate: 12, groups: 5, systemTokens: 100, questionTokens: 80, outputTokens: 48, turns: 3, think: 400 * time.Millisecond, seed: 1}
	all := w.conversations()
	require.Equal(t, all, w.conversations(), "the same seed gives the same conversations")
	// 400 are expected, with a standard deviation of 20.
	require.InDelta(t, 400, len(all), 80)
	systems := map[string]int{}
	last := time.Duration(0)
	var outputs, thinks float64
	for _, c := range all {
		require.GreaterOrEqual(t, c.start, last)
		require.Less(t, c.start, w.duration)
		last = c.start
		systems[c.system]++
		require.Len(t, c.system, 400)
		require.Len(t, c.turns, 3)
		require.Zero(t, c.turns[0].think)
		for _, turn := range c.turns {
			require.Len(t, turn.question, 4*w.questionTokens)
			require.GreaterOrEqual(t, turn.output, 24)
			require.LessOrEqual(t, turn.output, 72)
			outputs += float64(turn.output)
			thinks += turn.think.Seconds()
		}
	}
	require.Len(t, systems, 5)
	require.InDelta(t, 48, outputs/float64(3*len(all)), 2)
	require.InDelta(t, 0.4, thinks/float64(2*len(all)), 0.06)

	w.seed = 2
	require.NotEqual(t, all, w.conversations())
}

func TestLongestHolds(t *testing.T) {
	config, err := serverConfig(4096)
	require.NoError(t, err)
	config.Speed = 20
	w := workload{duration: time.Second, rate: 8, groups: 1, systemTokens: 500, questionTokens: 80, outputTokens: 48, turns: 4, seed: 1}
	f, err := startFleet(1, config)
	require.NoError(t, err)
	defer f.close()
	c := newClient("http://" + f.members[0].address)
	defer c.close()
	conversation := w.conversations()[0]
	for i := range conversation.turns {
		conversation.turns[i].output, conversation.turns[i].think = 72, 0
	}
	var last sample
	c.converse(t.Context(), time.Now().Add(-conversation.start), &conversation, func(s sample) {
		require.NoError(t, s.err)
		require.Greater(t, s.promptTokens, last.promptTokens, "history grows")
		if last.promptTokens > 0 {
			require.GreaterOrEqual(t, s.cachedTokens, (last.promptTokens+last.outputTokens-1)/16*16, "and is cached")
		}
		last = s
	})
	require.LessOrEqual(t, last.promptTokens+last.outputTokens, w.longest())
}
