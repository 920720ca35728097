package sim_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/endpick/endpick/scorer/preset/all"
)

// Two policies on the same work: conversations with long system prompts, on two
// kinds of servers, with load reports up to a second old.
func Example() {
	fast, err := engine.ProfileByName("llama-3.1-8b-h100")
	if err != nil {
		panic(err)
	}
	slow, err := engine.ProfileByName("llama-3.1-8b-a100")
	if err != nil {
		panic(err)
	}
	var ttft, hits []float64
	for _, policy := range []string{"round-robin", "lmetric"} {
		report, err := sim.Run(sim.Config{
			Router: func() (endpick.Config, error) { return all.ByName(policy) },
			Fleet: []sim.Server{
				{Engine: engine.Config{Profile: fast}}, {Engine: engine.Config{Profile: fast}},
				{Engine: engine.Config{Profile: slow}},
			},
			Workload: sim.Conversations{
				Groups: 150, UsersPerGroup: 1, SystemTokens: 4000,
				Question: sim.Length{Mean: 100, Std: 50}, Output: sim.Length{Mean: 200, Std: 50},
				Arrivals: sim.ConstantRate(8), Requests: 500,
			},
			ReportInterval: time.Second,
			Seed:           1,
		})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: %d of %d completed\n", report.Policy, report.Completed, report.Requests)
		ttft = append(ttft, report.TTFT.Mean)
		hits = append(hits, report.PrefixHitRatio)
	}
	fmt.Println("TTFT at most half:", ttft[1] < ttft[0]/2)
	fmt.Println("more prompts from the cache:", hits[1] > hits[0])
	// Output:
	// round-robin: 500 of 500 completed
	// lmetric: 500 of 500 completed
	// TTFT at most half: true
	// more prompts from the cache: true
}
