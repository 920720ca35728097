package slo_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/queue"
)

// All stages share one Headroom in one policy, with concurrent requests, while
// endpoints come and go. At the end no target is held.
func TestStagesTogether(t *testing.T) {
	h := newHeadroom(t, slo.HeadroomConfig{UpperBound: true})
	config := endpick.Config{Policy: endpick.Policy{
		Predictor: queueing{},
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(h), queue.RejectSheddable(queue.Concurrency(0)), queue.TokenBucket(1e12, 1)},
		Filters:   []endpick.Filter{newWarmup(t, slo.WarmupConfig{}), newTier(t, slo.TierConfig{Headroom: h})},
		Scorers:   []endpick.Weighted{{Scorer: newBestFit(t, slo.BestFitConfig{Headroom: h}), Weight: 1}},
	}}
	for i := range 5 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i)})
	}
	r, err := endpick.New(config)
	require.NoError(t, err)

	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			var open []endpick.Lease
			for i := range 300 {
				req := ask(float64(i%7*40), float64(i%3*8))
				req.Priority = i%3 - 1
				l, err := r.Route(req)
				if err != nil {
					assert.ErrorAs(t, err, new(*slo.UnattainableError))
					continue
				}
				if open = append(open, l); len(open) > 5 {
					open[0].FirstToken()
					open[0].Done(endpick.Outcome{})
					open = open[1:]
				}
				if w == 0 && i%50 == 0 {
					assert.NoError(t, r.Remove("0"))
					assert.NoError(t, r.Add(endpick.Endpoint{ID: "0"}))
				}
			}
			for _, l := range open {
				l.Done(endpick.Outcome{})
			}
		})
	}
	wait.Wait()
	stats := r.Stats()
	assert.Zero(t, stats.OpenLeases)
	assert.Zero(t, stats.StageErrors)
	assert.Equal(t, uint64(4*300), stats.Routed+stats.Rejected)
	for _, e := range r.Endpoints() {
		c := e.Candidate
		c.Prediction = both(1, 1e6)
		req := ask(1000, 0)
		f := slo.FitOf(h, &req, &c)
		assert.True(t, f.Meets(), "endpoint %s", c.Endpoint.ID)
	}
	assert.Zero(t, slo.RunningTargets(h))
}

// A Headroom belongs to one router, whichever of its stages is added first.
func TestStagesBelongToOneRouter(t *testing.T) {
	h := newHeadroom(t, slo.HeadroomConfig{})
	fit := endpick.Policy{Scorers: []endpick.Weighted{{Scorer: newBestFit(t, slo.BestFitConfig{Headroom: h}), Weight: 1}}}
	_, err := endpick.New(endpick.Config{Policy: fit})
	require.NoError(t, err)
	warm := endpick.Policy{Filters: []endpick.Filter{newWarmup(t, slo.WarmupConfig{})}}
	_, err = endpick.New(endpick.Config{Policy: warm})
	require.NoError(t, err)
	for name, p := range map[string]endpick.Policy{
		"the same scorer": fit,
		"a tier":          {Filters: []endpick.Filter{newTier(t, slo.TierConfig{Headroom: h})}},
		"an admitter":     {Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(h)}},
		"a warm-up":       warm,
	} {
		_, err := endpick.New(endpick.Config{Policy: p})
		assert.ErrorAs(t, err, new(*endpick.ConfigError), name)
	}
}

func TestStagesConform(t *testing.T) {
	for name, config := range map[string]slo.BestFitConfig{
		"least": {}, "most": {MostHeadroom: true}, "neighbours": {PrefillRate: 8600},
	} {
		t.Run("best fit "+name, func(t *testing.T) {
			scorertest.RunWeighted(t, func(t *testing.T) endpick.Scorer {
				return rig.Must(slo.NewBestFit(config))
			})
		})
	}
	for name, newFilter := range map[string]func() (endpick.Filter, error){
		"tier":   func() (endpick.Filter, error) { return slo.NewTier(slo.TierConfig{}) },
		"warmup": func() (endpick.Filter, error) { return slo.NewWarmup(slo.WarmupConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(t *testing.T) endpick.Filter {
				return rig.Must(newFilter())
			})
		})
	}
	t.Run("latency admitter", func(t *testing.T) {
		scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return slo.NewLatencyAdmitter(nil) })
	})
	t.Run("headroom", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any {
			return slo.NewLatencyAdmitter(newHeadroom(t, slo.HeadroomConfig{})).(interface{ Observer() any }).Observer()
		})
	})
}
