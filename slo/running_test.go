package slo_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// perRequest predicts a TPOT of 10 ms, plus 2 ms for each request in flight.
type perRequest struct{}

func (perRequest) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].Prediction = both(100, 10+2*float64(candidates[i].InFlight.Requests))
	}
}

func sloRouter(config slo.HeadroomConfig, endpoints int) *endpick.Router {
	h := rig.Must(slo.NewHeadroom(config))
	c := endpick.Config{Seed: 1, Policy: endpick.Policy{
		Predictor: perRequest{},
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(h)},
		Filters:   []endpick.Filter{rig.Must(slo.NewTier(slo.TierConfig{Headroom: h, DisableExploration: true}))},
		Scorers:   []endpick.Weighted{{Scorer: rig.Must(slo.NewBestFit(slo.BestFitConfig{Headroom: h})), Weight: 1}},
	}}
	for i := range endpoints {
		c.Endpoints = append(c.Endpoints, endpick.Endpoint{ID: fmt.Sprintf("server-%d", i)})
	}
	return rig.Must(endpick.New(c))
}

func streamed(tpot time.Duration) endpick.Request {
	return endpick.Request{InputTokens: 1000, ExpectedOutputTokens: 100, Stream: true, SLO: endpick.SLO{TPOT: tpot}}
}

// The target of a running request keeps others away, unless that is disabled.
func TestRunningTargetsCanBeLeftOut(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		r := sloRouter(slo.HeadroomConfig{DisableRunning: disabled}, 2)
		strict := rig.Must(r.Route(streamed(11 * ms))) // 10 ms alone, 12 ms beside another
		beside := 0
		for range 5 {
			l := rig.Must(r.Route(streamed(0)))
			if l.Endpoint().ID == strict.Endpoint().ID {
				beside++
			}
		}
		assert.Equal(t, disabled, beside > 0)
	}
}

// Sheddable requests that can be served in time are not rejected because
// another request has an impossible target.
func TestImpossibleTargetsRejectNobody(t *testing.T) {
	r := sloRouter(slo.HeadroomConfig{}, 4)
	for range 4 {
		require.NoError(t, rig.Err(r.Route(streamed(1))))
	}
	require.NoError(t, reportBusy(r))
	req := streamed(50 * ms)
	req.Priority = -1
	require.NoError(t, rig.Err(r.Route(req)))

	// Targets that are met protect their requests.
	r = sloRouter(slo.HeadroomConfig{}, 4)
	for range 4 {
		require.NoError(t, rig.Err(r.Route(streamed(11*ms))))
	}
	require.NoError(t, reportBusy(r))
	require.ErrorAs(t, rig.Err(r.Route(req)), new(*slo.UnattainableError))
	req.SLO.TPOT = 0
	require.NoError(t, rig.Err(r.Route(req)), "it asks for nothing")
	require.NoError(t, rig.Err(r.Route(streamed(50*ms))), "whoever was refused holds up nobody")
}

// reportBusy reports all endpoints busy and warm.
func reportBusy(r *endpick.Router) error {
	for _, e := range r.Endpoints() {
		err := r.Report(e.Candidate.Endpoint.ID, endpick.Load{Running: 1, KVUsage: 0.5})
		if err != nil {
			return err
		}
	}
	return nil
}

// The request was routed without a prediction: its target binds nobody, even
// once predictions exist.
func TestUnpredictedTargetBindsNobody(t *testing.T) {
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
	cs := fleet(endpick.Prediction{}, both(1, 20), both(1, -1), whole(1))
	for i := range cs {
		cs[i].Ref.Generation = 2
	}
	req := ask(0, 20)
	for i := range cs {
		slo.Routed(h, event(uint32(i), &req, &cs[i]))
	}
	assert.Equal(t, 1, slo.RunningTargets(h))
	gone := cs[1]
	gone.Ref.Generation--
	late := event(9, &req, &gone)
	slo.Routed(h, late)
	assert.Equal(t, 1, slo.RunningTargets(h), "its place has been taken")
	slo.Done(h, late, &endpick.Outcome{})
	assert.Equal(t, 1, slo.RunningTargets(h))

	upper := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{UpperBound: true}))
	tight := ask(0, 25) // 20 ms expected, 30 ms upper bound
	slo.Routed(upper, event(0, &tight, &cs[1]))
	assert.Equal(t, 1, slo.RunningTargets(upper), "it is expected to be met")
	for i := range cs {
		slo.Done(h, event(uint32(i), &req, &cs[i]), &endpick.Outcome{})
	}
	assert.Zero(t, slo.RunningTargets(h))
}
