package main

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sorter is a filter that keeps every candidate and records what was predicted and
// measured by variant, and where the requests of each TPOT target went. It skips the
// first requests, which are routed before there are predictions.
type sorter struct {
	predictionMeter
	skip  int
	meter map[string]*predictionMeter
	went  map[time.Duration]map[string]int
}

func (s *sorter) Done(e *endpick.Event, o *endpick.Outcome) {
	if s.skip--; s.skip >= 0 {
		return
	}
	variant := e.Candidate.Endpoint.Variant
	if s.meter[variant] == nil {
		s.meter[variant] = &predictionMeter{}
	}
	s.meter[variant].Done(e, o)
	target := e.Request.SLO.TPOT
	if s.went[target] == nil {
		s.went[target] = map[string]int{}
	}
	s.went[target][variant]++
}

const fast, slow = "llama-3.1-8b-h100", "llama-3.1-8b-a100"

// slowUnderRace skips a single-goroutine run that takes half a minute under the
// race detector.
func slowUnderRace(t *testing.T) {
	if rig.Race {
		t.Skip("there is one goroutine and nothing to race")
	}
}

// twoKinds runs predicted-latency, or another policy, on three servers of each kind.
func twoKinds(t *testing.T, policy string, s *sorter, args ...string) *sim.Report {
	o := rig.Must(readOptions(append([]string{"-workload", "sharegpt", "-profile", fast + ":3," + slow + ":3"}, args...), nil))
	cfg := rig.Must(o.config(o.cells()[0]))
	cfg.Router = func() (endpick.Config, error) {
		config, err := newPolicy(policy)
		config.Policy.Filters = append(config.Policy.Filters, s)
		return config, err
	}
	return rig.Must(sim.Run(cfg))
}

func newSorter(skip int) *sorter {
	return &sorter{skip: skip, meter: map[string]*predictionMeter{}, went: map[time.Duration]map[string]int{}}
}

// An H100's step takes two thirds of an A100's: one model for both would be off by
// at least a sixth.
func TestHeterogeneousPoolIsLearned(t *testing.T) {
	slowUnderRace(t)
	s := newSorter(1200)
	twoKinds(t, "predicted-latency", s, "-rate", "20", "-requests", "2000")
	for _, variant := range []string{fast, slow} {
		require.Contains(t, s.meter, variant)
		p := s.meter[variant].report()
		t.Logf("%s: %d requests, TTFT %+v, TPOT %+v", variant, p.Requests, *p.TTFT, *p.TPOT)
		assert.Greater(t, p.Requests, 100, variant)
		assert.Less(t, p.TTFT.MAPE, 0.25, variant)
		assert.Less(t, p.TPOT.MAPE, 0.12, variant)
		assert.Less(t, p.TPOT.Aggregate, 0.08, variant)
	}
}

// Requests with a target that only the fast servers keep go there; the others fill
// the slow ones.
func TestBestFitInAHeterogeneousPool(t *testing.T) {
	slowUnderRace(t)
	const tight, loose = 11 * time.Millisecond, 60 * time.Millisecond // an A100 alone takes 13 ms
	classes := []string{"-rate", "10", "-requests", "1200", "-slo", "tight:0.3:0:11,loose:0.7:0:60"}
	s := newSorter(300)
	attained := func(r *sim.Report) float64 {
		require.Equal(t, "tight", r.Classes[1].Name)
		return r.Classes[1].Attainment
	}
	predicted := attained(twoKinds(t, "predicted-latency", s, classes...))
	assert.Greater(t, s.went[tight][fast], 30*s.went[tight][slow], "%v", s.went)
	assert.Greater(t, s.went[loose][slow], 5*s.went[loose][fast], "%v", s.went)
	unaware := attained(twoKinds(t, "lmetric", newSorter(0), classes...))
	assert.Greater(t, predicted, unaware+0.2)
	t.Logf("%v; tight attained: %.3f, by lmetric %.3f", s.went, predicted, unaware)
}
