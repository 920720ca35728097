package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every contest can be held: its fleet and its work exist, at any rate. They are those of earlier
// figures: testdata has sums of them.
func TestContests(t *testing.T) {
	names := map[string]bool{}
	held := 0
	text := ""
	t.Chdir("../..")
	for _, c := range contests() {
		require.False(t, names[c.name], "%s is given twice", c.name)
		names[c.name] = true
		if c.set != "tuned" {
			held++
		}
		fleet, err := c.fleet()
		require.NoError(t, err, c.name)
		assert.GreaterOrEqual(t, len(fleet), 4, c.name)
		assert.True(t, (c.guess > 0) != (c.saturation > 0), c.name)
		work, err := c.work(2, 200)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a trace that is not next to the repository
		}
		require.NoError(t, err, c.name)
		o := &oracle{}
		require.NoError(t, o.take(work, 1), c.name)
		sum := fnv.New32a()
		for _, r := range o.requests[:100] {
			last := append([]uint64{0}, r.Blocks...)[len(r.Blocks)] // which depends on those before
			fmt.Fprintln(sum, r.Arrival, r.InputTokens, r.OutputTokens, len(r.Blocks), last, r.Tenant, r.Session, r.SLO.TTFT, r.SLO.TPOT)
		}
		servers := fnv.New32a()
		for _, s := range fleet {
			fmt.Fprintf(servers, "%t %s %s %v %v %+v\n", s.Undescribed, s.Endpoint.ID, s.Endpoint.Variant, s.Endpoint.KVTokens, s.Endpoint.MaxSequences, s.Engine)
		}
		if _, isTrace := work.(*sim.Trace); isTrace {
			continue
		}
		text += fmt.Sprintf("%s %s: rate %v or %v, %d servers %08x, work %08x\n", c.set, c.name, c.saturation, c.guess, len(fleet), servers.Sum32(), sum.Sum32())
	}
	assert.GreaterOrEqual(t, held, len(names)/3, "held back from tuning")
	t.Chdir("examples/simulate")
	golden(t, "contests.txt", text)
}

func TestTournament(t *testing.T) {
	args := []string{"tournament", "-contests", "C-qwe,flash", "-policies", "lmetric,round-robin,marginal-delay", "-load", "0.5,0.8", "-seed", "1,2", "-requests", "150", "-format", "cells"}
	text := simulate(t, args...)
	assert.Contains(t, text, "4 cells: 2 workloads at 50 %, 80 % of saturation, 150 requests, means over 2 seeds.")
	assert.Contains(t, text, "TTFT p95: the best, and the loss of each")

	var scores []score
	require.NoError(t, json.Unmarshal([]byte(simulate(t, append(args, "-format", "json")...)), &scores))
	assert.Len(t, scores, 4*3*2)
	for _, s := range scores {
		assert.Positive(t, s.E2EMean)
		assert.Greater(t, s.Rate, 0.0)
	}
}

// b is best in E2E, a in TTFT, and c in neither: c takes 2 and 4 times as long as b, and as a.
func TestFront(t *testing.T) {
	tour := tournament{contests: []contest{{name: "C"}, {name: "D"}}, loads: []float64{0.8}, policies: []string{"a", "b", "c"}, seeds: []uint64{1}, plot: t.TempDir() + "/front.svg"}
	all := []score{
		{Contest: "C", Load: 0.8, Policy: "a", E2EMean: 150, TTFT95: 10}, {Contest: "D", Load: 0.8, Policy: "a", E2EMean: 100, TTFT95: 10},
		{Contest: "C", Load: 0.8, Policy: "b", E2EMean: 100, TTFT95: 20}, {Contest: "D", Load: 0.8, Policy: "b", E2EMean: 100, TTFT95: 20},
		{Contest: "C", Load: 0.8, Policy: "c", E2EMean: 200, TTFT95: 40}, {Contest: "D", Load: 0.8, Policy: "c", E2EMean: 400, TTFT95: 90},
	}
	got := tour.losses(tour.rounds(all))
	assert.Equal(t, []bool{true, true, false}, []bool{got[0].front, got[1].front, got[2].front})
	assert.InDelta(t, math.Sqrt(1.5), got[0].e2e, 1e-9)
	assert.InDelta(t, 1, got[0].ttft, 1e-9)
	assert.Equal(t, 1.5, got[0].worst)
	assert.InDelta(t, math.Sqrt(8), got[2].e2e, 1e-9)
	assert.InDelta(t, 6, got[2].ttft, 1e-9)
	assert.Equal(t, []float64{4, 9}, []float64{got[2].worst, got[2].late})

	var text bytes.Buffer
	require.NoError(t, tour.write(&text, all))
	assert.Contains(t, text.String(), "b     1.000   1.00     2.000   2.00      *")
	svg := rig.Must(os.ReadFile(tour.plot))
	golden(t, "front.svg", string(svg))
}

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
