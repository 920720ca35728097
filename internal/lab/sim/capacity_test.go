package sim

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/engine"
)

// The table of the appendix: 10 servers of 32,000 blocks.
func TestCapacityTable(t *testing.T) {
	for _, c := range []struct {
		name               string
		system, user       int64
		systemPct, userPct float64
	}{
		{"A", 6_000, 24_720_000, 100, 20.69},
		{"B", 6_000, 96_000_000, 100, 5.33},
		{"C", 900_000, 6_600_000, 100, 63.94},
		{"D", 150_000, 21_600_000, 100, 23.01},
	} {
		row := Capacity(conversations(t, c.name), 10, engine.DefaultBlocks, AppendixRounds)
		require.Equal(t, int64(5_120_000), row.CapacityTokens)
		require.Equal(t, c.system, row.SystemTokens, c.name)
		require.Equal(t, c.user, row.UserTokens, c.name)
		require.Equal(t, c.systemPct, row.SystemFits*100, c.name)
		require.Equal(t, c.userPct, math.Round(row.UserFits*1e4)/100, c.name)
	}
	small := Capacity(conversations(t, "C"), 1, engine.DefaultBlocks, AppendixRounds)
	require.InDelta(t, 512_000.0/900_000, small.SystemFits, 1e-12)
	require.Zero(t, small.UserFits)
}

// The shape of the appendix's figures: when evictions begin, and what is
// evicted. The paper's charts show onsets of 7, 0.6, 0.4 and 0.4 requests per
// second.
func TestCachePressure(t *testing.T) {
	rates := []float64{0.2, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 14}
	onset := map[string]float64{}
	at := map[string]Pressure{} // at twice the onset
	for _, name := range []string{"A", "B", "C", "D"} {
		curve, err := CachePressure(conversations(t, name), rates, 100*time.Second, engine.DefaultBlocks, 1)
		require.NoError(t, err)
		for _, p := range curve {
			if onset[name] == 0 && p.Evictions != (Evictions{}) {
				onset[name] = p.QPS
			}
			if at[name].QPS == 0 && onset[name] > 0 && p.QPS >= 2*onset[name] {
				at[name] = p
			}
			require.Zero(t, p.Evictions.Other)
		}
		t.Logf("%s: onset %v, at twice that %+v", name, onset[name], at[name])
	}
	require.GreaterOrEqual(t, onset["A"], 7*onset["C"])
	require.GreaterOrEqual(t, onset["A"], 7*onset["D"])
	require.Greater(t, onset["A"], 3*onset["B"])

	// A and B lose only user history, C mostly system prompts, D mostly user history.
	require.Zero(t, at["A"].Evictions.System)
	require.Zero(t, at["B"].Evictions.System)
	require.Greater(t, at["C"].Evictions.System, at["C"].Evictions.User)
	require.Positive(t, at["D"].Evictions.System)
	require.Greater(t, at["D"].Evictions.User, 3*at["D"].Evictions.System)
	// Reuse falls from A to D.
	require.Greater(t, at["A"].HitRatio, at["B"].HitRatio)
	require.Greater(t, at["B"].HitRatio, at["D"].HitRatio)
}
