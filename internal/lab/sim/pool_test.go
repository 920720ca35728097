package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Two servers in turn, one prompt of ten blocks five times: each computes it once, one
// cache would have computed it once in all. The last token is always computed, and its
// block with it.
func TestPooledCache(t *testing.T) {
	blocks := extend(nil, 10, 1)
	var work hand
	for i := range 5 {
		r := at(100*i, 160, 1)
		r.Blocks = blocks
		work = append(work, r)
	}
	cfg := Config{Router: named("round-robin"), Fleet: Fleet(2, plain), Workload: work, Pooled: true}
	rep := mustRun(t, cfg)
	require.InDelta(t, 3.0/5*144/160, rep.PrefixHitRatio, 1e-12)
	require.InDelta(t, 4.0/5*144/160, *rep.PooledHitRatio, 1e-12)
	require.Nil(t, rep.ColdYetWarm, "no index, no opinion")

	// Together the servers hold both prompts, neither alone does: each gets the two in
	// turn and evicts one for the other.
	work = nil
	for i, prompt := range []uint64{1, 1, 2, 2, 1, 1, 2, 2} {
		r := at(100*i, 160, 1)
		r.Blocks = extend(nil, 10, prompt<<32)
		work = append(work, r)
	}
	small := plain
	small.Blocks = 10
	cfg.Workload, cfg.Fleet = work, Fleet(2, small)
	rep = mustRun(t, cfg)
	require.Zero(t, rep.PrefixHitRatio)
	require.InDelta(t, 6.0/8*144/160, *rep.PooledHitRatio, 1e-12)

	cfg.Pooled = false
	require.Nil(t, mustRun(t, cfg).PooledHitRatio)
}

// One user, questions of 160 and answers of 800 tokens: of the second to fifth prompt
// an index fed with prompts alone knows what was sent before, 160/1120, 1120/2080,
// 2080/3040 and 3040/4000; the engine, and an index fed with answers too, all but the
// question.
func TestColdYetWarm(t *testing.T) {
	cfg := Config{
		Router: named("lmetric"), Fleet: Fleet(1, engine.Config{}),
		Workload: Conversations{
			Groups: 1, UsersPerGroup: 1, Question: Length{Mean: 160}, Output: Length{Mean: 800},
			Think: time.Second, Requests: 5,
		},
	}
	require.Zero(t, *mustRun(t, cfg).ColdYetWarm)
	cfg.PromptsOnly = true
	require.Equal(t, 0.8, *mustRun(t, cfg).ColdYetWarm)
	require.False(t, coldYetWarm(100, 80, 100))
	require.False(t, coldYetWarm(100, 0, 79))
	require.True(t, coldYetWarm(100, 79, 80))
}

// Agents on a fleet: policies that keep sessions in place find nearly as much as one
// cache for all would; one that does not finds a fraction.
func TestAgentsOnAFleet(t *testing.T) {
	hits := func(policy string) (own, pooled float64) {
		rep := mustRun(t, Config{
			Router: named(policy), Fleet: Fleet(4, engine.Config{Blocks: 6000}), Pooled: true, Seed: 1,
			Workload: Agents{Rate: 2, Scale: 16, Requests: 1500},
		})
		t.Logf("%s: %.3f of %.3f", policy, rep.PrefixHitRatio, *rep.PooledHitRatio)
		require.Equal(t, 1500, rep.Completed)
		// That cache evicts the least recently used; several can do slightly better if they share the
		// work well.
		require.Less(t, rep.PrefixHitRatio, *rep.PooledHitRatio+0.005)
		return rep.PrefixHitRatio, *rep.PooledHitRatio
	}
	for _, policy := range []string{"lmetric", "preble", "sglang", "predicted-latency:synchronous"} {
		own, pooled := hits(policy)
		require.Greater(t, own, 0.98*pooled, policy)
	}
	own, pooled := hits("round-robin")
	require.Less(t, own, pooled-0.2)
}
