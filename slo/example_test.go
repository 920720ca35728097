package slo_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
)

// bySize predicts by the size of an endpoint's accelerator.
type bySize struct{}

func (bySize) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		c := &candidates[i]
		c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 400 * time.Millisecond, TPOT: 40 * time.Millisecond}
		if c.Endpoint.Variant == "large" {
			c.Prediction.TTFT, c.Prediction.TPOT = 100*time.Millisecond, 10*time.Millisecond
		}
	}
}

// Best fit sends a request with loose targets to the slow server, and keeps
// the fast one free for those that need it.
func ExampleBestFit() {
	headroom, _ := slo.NewHeadroom(slo.HeadroomConfig{})
	tier, _ := slo.NewTier(slo.TierConfig{Headroom: headroom, DisableExploration: true})
	fit, _ := slo.NewBestFit(slo.BestFitConfig{Headroom: headroom})
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "h200", Variant: "large"}, {ID: "l4", Variant: "small"}},
		Policy: endpick.Policy{
			Predictor: bySize{},
			Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(headroom)},
			Filters:   []endpick.Filter{tier},
			Scorers:   []endpick.Weighted{{Scorer: fit, Weight: 1}},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, target := range []time.Duration{time.Second, 200 * time.Millisecond, 0} {
		lease, err := router.Route(endpick.Request{InputTokens: 1000, Stream: true, SLO: endpick.SLO{TTFT: target}})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(target, lease.Endpoint().ID)
		lease.Done(endpick.Outcome{})
	}
	// Output:
	// 1s l4
	// 200ms h200
	// 0s h200
}
