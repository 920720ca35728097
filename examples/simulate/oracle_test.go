package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The search's evaluator gives the simulator's latencies, and what it replays after a move is
// what a play from the beginning gives.
func TestOracleReplaysExactly(t *testing.T) {
	work := rig.Must(rig.Must(sim.Scenario("C")).Workload.At(sim.Pace{Rate: 6, Requests: 200}))
	o := &oracle{}
	require.NoError(t, o.take(work, 1))
	require.Len(t, o.requests, 200)
	fleet := sim.Fleet(4, engine.Config{Blocks: 4000})
	r := &routes{}
	report := rig.Must(sim.Run(sim.Config{Fleet: fleet, Workload: sim.Given(o.requests), Seed: 1, Router: func() (endpick.Config, error) {
		c, err := newPolicy("lmetric")
		c.Policy.Filters = append(c.Policy.Filters, r)
		return c, err
	}}))
	require.NoError(t, o.start(fleet, r.servers))
	before := o.outcome()
	assert.InEpsilon(t, report.E2E.Mean, before.e2e, 1e-6)
	assert.InEpsilon(t, report.TTFT.Mean, before.ttft, 1e-6)

	random := rand.New(rand.NewPCG(1, 1))
	moved := 0
	for range 300 {
		ok := rig.Must(o.move(random, 1000))
		if ok {
			moved++
		}
	}
	require.Greater(t, moved, 20)
	assigned := make([]int, len(o.requests))
	for i := range o.lines {
		for _, id := range o.lines[i].queue {
			assigned[id] = i
		}
	}
	again := &oracle{requests: o.requests}
	require.NoError(t, again.start(fleet, assigned))
	assert.InDeltaSlice(t, again.e2e, o.e2e, 1e-6)
	assert.InDeltaSlice(t, again.ttft, o.ttft, 1e-6)
	for _, g := range o.gains {
		assert.Positive(t, g.ms)
	}
}

// The search finds what is there to find: two servers, of which the policy's takes everything.
func TestOracleFindsTheBest(t *testing.T) {
	o := &oracle{}
	for i := range 40 {
		o.requests = append(o.requests, sim.Request{Arrival: time.Duration(i) * 10 * time.Millisecond, InputTokens: 2000, OutputTokens: 100})
		o.session = append(o.session, uint64(i))
	}
	require.NoError(t, o.start(sim.Fleet(2, engine.Config{}), make([]int, 40)))
	one := o.outcome()
	flattened := rig.Must(o.search(1, time.Hour, 600))
	two := o.outcome()
	assert.Contains(t, flattened, "after 600 moves")
	assert.Less(t, two.e2e, 0.75*one.e2e)
	assert.Less(t, two.variance, one.variance/10)
}

func TestOracleCommand(t *testing.T) {
	text := simulate(t, "oracle", "-workload", "C", "-rate", "5", "-endpoints", "3", "-requests", "60", "-moves", "40", "-policies", "round-robin,marginal-delay")
	for _, want := range []string{"assignment", "round-robin", "marginal-delay", "best found", "after 40 moves", "The moves that gained most:\n  "} {
		assert.Contains(t, text, want)
	}
}
