package slo_test

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
)

// bySize predicts from the size of an endpoint's accelerator.
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

// Best fit sends a request with loose targets to the slow server and keeps the
// fast one free for requests that need it.
func ExampleNewBestFit() {
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
		panic(err)
	}
	for _, target := range []time.Duration{time.Second, 200 * time.Millisecond, 0} {
		lease, err := router.Route(endpick.Request{InputTokens: 1000, Stream: true, SLO: endpick.SLO{TTFT: target}})
		if err != nil {
			panic(err)
		}
		fmt.Println(target, lease.Endpoint().ID)
		lease.Done(endpick.Outcome{})
	}
	// Output:
	// 1s l4
	// 200ms h200
	// 0s h200
}

// Targets come with the request. An unreadable one is ignored, and its error
// can be returned to the client.
func ExampleFromHeader() {
	h := http.Header{}
	h.Set(slo.TTFTHeader, "250")
	h.Set(slo.TPOTHeader, "0.04") // seconds, by mistake
	targets, err := slo.FromHeader(h)
	fmt.Println(targets.TTFT, targets.TPOT)
	fmt.Println(err)
	// Output:
	// 250ms 0s
	// slo: header X-Slo-Tpot-Ms: "0.04" is less than a millisecond
}

// fleetOfThree is one fast and two slow servers with two running requests each.
func fleetOfThree(policy endpick.Policy) (*endpick.Router, error) {
	policy.Predictor = bySize{}
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "h200", Variant: "large"}, {ID: "l4-0", Variant: "small"}, {ID: "l4-1", Variant: "small"}},
		Policy:    policy,
		Seed:      1,
	})
	if err != nil {
		return nil, err
	}
	for _, e := range router.Endpoints() {
		if err := router.Report(e.Candidate.Endpoint.ID, endpick.Load{Running: 2, KVUsage: 0.5}); err != nil {
			return nil, err
		}
	}
	return router, nil
}

// A batch job that no server can serve in time is rejected. A request that
// matters is served all the same.
func ExampleNewLatencyAdmitter() {
	router, err := fleetOfThree(endpick.Policy{Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(nil)}})
	if err != nil {
		panic(err)
	}
	req := endpick.Request{Stream: true, SLO: endpick.SLO{TTFT: 50 * time.Millisecond}}
	for _, req.Priority = range []int{-1, 0} {
		lease, err := router.Route(req)
		var out *slo.UnattainableError
		switch {
		case errors.As(err, &out):
			fmt.Println("rejected: at best", out.TTFT)
		case err == nil:
			fmt.Println("served")
			lease.Done(endpick.Outcome{})
		}
	}
	// Output:
	// rejected: at best 100ms
	// served
}

// The tier keeps the servers that meet the targets; any scorer chooses among
// them.
func ExampleNewTier() {
	tier, err := slo.NewTier(slo.TierConfig{DisableExploration: true})
	if err != nil {
		panic(err)
	}
	router, err := fleetOfThree(endpick.Policy{Filters: []endpick.Filter{tier}})
	if err != nil {
		panic(err)
	}
	for _, target := range []time.Duration{200 * time.Millisecond, time.Second} {
		chosen := map[string]bool{}
		for range 50 {
			lease, err := router.Route(endpick.Request{Stream: true, SLO: endpick.SLO{TTFT: target}})
			if err != nil {
				panic(err)
			}
			chosen[lease.Endpoint().ID] = true
			lease.Done(endpick.Outcome{})
		}
		fmt.Println(target, chosen)
	}
	// Output:
	// 200ms map[h200:true]
	// 1s map[h200:true l4-0:true l4-1:true]
}

// A server that joins gets a growing share of the requests whose prefix it does
// not hold, and at once all of those whose prefix it does.
func ExampleNewWarmup() {
	warmup, err := slo.NewWarmup(slo.WarmupConfig{Ramp: time.Minute})
	if err != nil {
		panic(err)
	}
	now := time.Unix(0, 0)
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "old"}},
		Policy:    endpick.Policy{Filters: []endpick.Filter{warmup}},
		Clock:     func() time.Time { return now },
		Seed:      1,
	})
	if err != nil {
		panic(err)
	}
	share := func() (n int) {
		for range 1000 {
			lease, err := router.Route(endpick.Request{})
			if err != nil {
				return -1
			}
			if lease.Endpoint().ID == "new" {
				n++
			}
			lease.Done(endpick.Outcome{})
		}
		return (n + 25) / 50 * 5 // per cent, more or less
	}
	share()
	now = now.Add(time.Hour)
	if err := router.Add(endpick.Endpoint{ID: "new"}); err != nil {
		panic(err)
	}
	// It is considered for half of the requests, and wins half of those.
	fmt.Println(share(), "%")
	now = now.Add(time.Minute)
	fmt.Println(share(), "%")
	// Output:
	// 25 %
	// 50 %
}
