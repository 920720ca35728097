package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/engine"
)

// One of two servers is half as fast, and requests of 3 ms come one after another: an
// oracle over random choices sends all to the fast one.
func TestOracleByHand(t *testing.T) {
	slow := plain
	slow.Profile.StepMicros = 2000
	var work hand
	for i := range 6 {
		work = append(work, at(100*i, 10, 3))
	}
	cfg := Config{Router: named("random"), Fleet: []Server{{Engine: slow}, {Engine: plain}}, Workload: work}
	calls := 0
	before, best, err := Oracle(cfg, func() { calls++ })
	require.NoError(t, err)
	require.Equal(t, 6, calls)
	require.Greater(t, before.E2E.Mean, 3.0)
	require.Equal(t, 3.0, best.E2E.Mean)
	require.Equal(t, []int{0, 6}, []int{best.Endpoints[0].Completed, best.Endpoints[1].Completed})

	// Two at once on equal servers: the oracle, too, sends one to each.
	cfg = Config{Router: named("least-loaded"), Fleet: Fleet(2, plain), Workload: hand{at(0, 10, 3), at(0, 10, 3)}}
	before, best, err = Oracle(cfg, nil)
	require.NoError(t, err)
	require.Equal(t, before, best)

	_, _, err = Oracle(Config{}, nil)
	require.Error(t, err)
}

// A fixed workload is the same under every policy, and unchanged under the one
// it was fixed with.
func TestFix(t *testing.T) {
	c := Conversations{Groups: 3, UsersPerGroup: 100, SystemTokens: 100, Question: Length{Mean: 100}, Output: Length{Mean: 50}, Arrivals: ConstantRate(20), Requests: 60}
	profile, err := engine.ProfileByName("llama-3.1-8b-h100")
	require.NoError(t, err)
	cfg := Config{Router: named("lmetric"), Fleet: Fleet(2, engine.Config{Profile: profile}), Workload: c, Seed: 1}
	direct := mustRun(t, cfg)
	work, err := Fix(cfg)
	require.NoError(t, err)
	require.Len(t, work, 60)
	cfg.Workload = work
	require.Equal(t, direct, mustRun(t, cfg))
	// Two users, who wait for their answers: their questions are ordered.
	c.Groups, c.UsersPerGroup = 1, 2
	cfg.Workload = c
	work, err = Fix(cfg)
	require.NoError(t, err)
	last := time.Duration(0)
	for _, r := range work.(fixed) {
		require.GreaterOrEqual(t, r.Arrival, last)
		last = r.Arrival
	}
	_, err = Fix(Config{})
	require.Error(t, err)
}
