package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegretByHand(t *testing.T) {
	// Two equal servers and requests of 3 ms that never meet: the runner-up is as good.
	// With a server of half the speed, round-robin regrets every second choice.
	slow := plain
	slow.Profile.StepMicros = 2000
	var work hand
	for i := range 8 {
		work = append(work, at(100*i, 10, 3))
	}
	cfg := Config{Router: named("round-robin"), Fleet: []Server{{Engine: plain}, {Engine: plain}}, Workload: work}
	regret, err := MeasureRegret(cfg, 4)
	require.NoError(t, err)
	require.Len(t, regret.Decisions, 4)
	require.Zero(t, regret.Own)
	require.Zero(t, regret.Better)

	cfg.Fleet[0].Engine = slow
	regret, err = MeasureRegret(cfg, 8)
	require.NoError(t, err)
	require.Len(t, regret.Decisions, 8)
	for i, d := range regret.Decisions {
		require.Equal(t, i, d.Request)
		require.Zero(t, d.ScoreRegret)
		if d.Chosen == "server-000" {
			require.Equal(t, []float64{6, 3}, []float64{d.ChosenE2E, d.RunnerUpE2E})
		} else {
			require.Equal(t, []float64{3, 6}, []float64{d.ChosenE2E, d.RunnerUpE2E})
		}
	}
	require.Equal(t, 1.5, regret.Own) // 3 ms, every second time

	// No random choice is drawn again: the other requests stay where they are.
	cfg.Router = named("random")
	regret, err = MeasureRegret(cfg, 8)
	require.NoError(t, err)
	worse := 0
	for _, d := range regret.Decisions {
		require.Zero(t, d.OthersE2E)
		if d.Chosen == "server-000" {
			worse++
		}
	}
	require.Positive(t, worse)
	require.InDelta(t, float64(worse)/8, regret.Better, 1e-12)
	require.InDelta(t, 3*float64(worse)/8, regret.Total, 1e-12)

	_, err = MeasureRegret(cfg, 0)
	require.EqualError(t, err, "sim: samples 0 is below 1")
}
