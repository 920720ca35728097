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

// watcher is a filter that sees every server's batch at every decision, and sends those of one
// tenant to the first server.
type watcher struct {
	start   time.Time
	samples []seen
}

type seen struct {
	at      time.Duration
	batches []float64
}

const pushed = "pushed"

func (w *watcher) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	if w.start.IsZero() {
		w.start = req.Now()
	}
	s := seen{req.Now().Sub(w.start), make([]float64, len(candidates))}
	first := 0
	for i := range candidates {
		s.batches[candidates[i].Ref.Slot] = candidates[i].BatchSize()
		if candidates[i].Ref.Slot == 0 {
			first = i
		}
	}
	w.samples = append(w.samples, s)
	if req.Tenant == pushed {
		candidates[0], candidates[first] = candidates[first], candidates[0]
		return candidates[:1]
	}
	return candidates
}

// means are each server's mean batch between two times, and the mean of them.
func (w *watcher) means(from, to time.Duration) (each []float64, all float64) {
	n := 0.0
	for _, s := range w.samples {
		if s.at < from || s.at >= to {
			continue
		}
		if each == nil {
			each = make([]float64, len(s.batches))
		}
		n++
		for i, b := range s.batches {
			each[i] += b
		}
	}
	for i := range each {
		each[i] /= n
		all += each[i] / float64(len(each))
	}
	return each, all
}

func watched(t *testing.T, name string, load float64, requests int, more ...sim.Workload) (*watcher, *sim.Report) {
	for _, c := range contests() {
		if c.name != name {
			continue
		}
		fleet := rig.Must(c.fleet())
		work := rig.Must(c.work(load*c.saturation, requests))
		w := &watcher{}
		report, err := sim.Run(sim.Config{Fleet: fleet, Workload: append(sim.Merge{work}, more...), Seed: 1, Router: func() (endpick.Config, error) {
			config, err := newPolicy("marginal-delay")
			config.Policy.Filters = append([]endpick.Filter{w}, config.Policy.Filters...)
			return config, err
		}})
		require.NoError(t, err)
		return w, report
	}
	t.Fatal(name)
	return nil, nil
}

// Conversations leave a server before it has three times the mean batch for longer than a
// response takes, even near saturation.
func TestNoServerRunsAway(t *testing.T) {
	w, report := watched(t, "documents", 0.95, 1500)
	response := time.Duration(report.E2E.Mean * float64(time.Millisecond))
	end := w.samples[len(w.samples)-1].at
	for from := time.Duration(0); from+response < end; from += response / 2 {
		each, mean := w.means(from, from+response)
		for i, batch := range each {
			assert.LessOrEqual(t, batch, 3*mean+2, "server %d from %v", i, from)
		}
	}
}

// A server that others have loaded with a hundred requests gets no more until it is like the rest:
// two responses later it is.
func TestAnImbalanceEnds(t *testing.T) {
	for name, load := range map[string]float64{"voice": 0.5, "sub-agents": 0.8, "memory": 0.8} {
		push := sim.Conversations{
			Groups: 1, UsersPerGroup: 200, Tenant: pushed, Requests: 100, Question: sim.Length{Mean: 200}, Output: sim.Length{Mean: 300},
			Arrivals: sim.Arrivals{Stages: []sim.Stage{{Duration: 5 * time.Second, Rate: 1e-9}, {Rate: 100}}},
		}
		w, report := watched(t, name, load, 3500, push)
		each, mean := w.means(6*time.Second, 9*time.Second)
		require.Greater(t, each[0], 2*mean, "%s: it is loaded", name)
		response := time.Duration(report.E2E.Mean * float64(time.Millisecond))
		ends := 9 * time.Second
		for at := ends; ; at += time.Second {
			if each, mean = w.means(at, at+3*time.Second); each == nil || each[0] < 1.5*mean+2 {
				ends = at
				break
			}
		}
		t.Logf("%s: balanced after %v, a response takes %v", name, ends, response)
		after := ends + 2*response
		each, mean = w.means(after, after+response)
		require.NotNil(t, each, name)
		for i, batch := range each {
			assert.LessOrEqual(t, batch, 1.5*mean+2, "%s: server %d", name, i)
		}
	}
}

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

// twoKinds runs predicted-latency, or another policy, on three servers of each kind.
func twoKinds(policy string, s *sorter, args ...string) *sim.Report {
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

// An H100's step takes two thirds of an A100's: one model for both would be off by at least a sixth.
func TestHeterogeneousPoolIsLearned(t *testing.T) {
	rig.SkipUnderRace(t, "there is one goroutine and nothing to race")
	s := newSorter(1200)
	twoKinds("predicted-latency", s, "-rate", "20", "-requests", "2000")
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

// Requests with a target that only the fast servers keep go there; the others fill the slow ones.
func TestBestFitInAHeterogeneousPool(t *testing.T) {
	rig.SkipUnderRace(t, "there is one goroutine and nothing to race")
	const tight, loose = 11 * time.Millisecond, 60 * time.Millisecond // an A100 alone takes 13 ms
	classes := []string{"-rate", "10", "-requests", "1200", "-slo", "tight:0.3:0:11,loose:0.7:0:60"}
	s := newSorter(300)
	attained := func(r *sim.Report) float64 {
		require.Equal(t, "tight", r.Classes[1].Name)
		return r.Classes[1].Attainment
	}
	predicted := attained(twoKinds("predicted-latency", s, classes...))
	assert.Greater(t, s.went[tight][fast], 30*s.went[tight][slow], "%v", s.went)
	assert.Greater(t, s.went[loose][slow], 5*s.went[loose][fast], "%v", s.went)
	unaware := attained(twoKinds("lmetric", newSorter(0), classes...))
	assert.Greater(t, predicted, unaware+0.2)
	t.Logf("%v; tight attained: %.3f, by lmetric %.3f", s.went, predicted, unaware)
}
