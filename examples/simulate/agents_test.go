package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Coding agents come with the best possible cache hits, for rates and for loads by name,
// and what is published about them stands beside what is realised.
func TestAgents(t *testing.T) {
	agents := []string{"-workload", "agents", "-endpoints", "4", "-policies", "round-robin,lmetric", "-requests", "200"}
	for _, pace := range [][]string{{"-rate", "0.2"}, {"-load", "low"}} {
		text := simulate(t, with(agents, pace...)...)
		for _, want := range []string{"in one cache", "cold yet warm"} {
			assert.Equal(t, 1, strings.Count(text, want), want)
		}
	}
	text := simulate(t, "agents", "-seed", "2")
	for _, want := range []string{"(seed 2)", "difference", "Claude Code: cached prefix of a step", "human pause"} {
		assert.Equal(t, 1, strings.Count(text, want), want)
	}
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(simulate(t, with(agents, "-rate", "0.2", "-format", "json")...)), &rows))
	require.Len(t, rows, 2)
	for _, r := range rows {
		require.NotNil(t, r.PooledHitRatio)
		assert.Greater(t, *r.PooledHitRatio, r.PrefixHitRatio)
	}
	assert.Nil(t, rows[0].ColdYetWarm)
	assert.NotNil(t, rows[1].ColdYetWarm)
	assert.NotContains(t, simulate(t, small...), "in one cache")
}

// The index knows nearly all that the chosen server has; an index fed with prompts
// alone takes many of the same requests for cold.
func TestResponsesAreKnown(t *testing.T) {
	unseen := func(flags ...string) (shares []float64) {
		var rows []row
		require.NoError(t, json.Unmarshal([]byte(simulate(t, with([]string{
			"-workload", "A", "-load", "middle", "-requests", "2000", "-policies", "predicted-latency,lmetric", "-format", "json",
		}, flags...)...)), &rows))
		for _, r := range rows {
			shares = append(shares, *r.ColdYetWarm)
		}
		return shares
	}
	for _, share := range unseen() {
		assert.Less(t, share, 0.02)
	}
	for _, share := range unseen("-prompts-only") {
		assert.Greater(t, share, 0.05)
	}
}

func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		x    float64
		unit string
		want string
	}{
		{0.3, "s", "0.30 s"}, {38, "s", "38.0 s"}, {84, "s", "84.0 s"}, {384, "s", "6.40 min"}, {50_040, "s", "13.9 h"},
		{857, "tokens", "857 tokens"}, {126_000, "tokens", "126.0 k tokens"}, {58.5, "%", "58.5 %"}, {9.2, "", "9.20"},
	} {
		assert.Equal(t, c.want, amount(c.x, c.unit))
	}
}
