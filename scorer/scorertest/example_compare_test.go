package scorertest_test

import (
	"fmt"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/scorer/scorertest"
)

// A scorer of your own, compared with LMetric. With Workload.Recording, a
// recording of your gateway replaces the scenario.
func ExampleCompare() {
	coldest := all.LMetric()
	coldest.Policy.Name = "coldest"
	coldest.Policy.Scorers = []endpick.Weighted{{
		Scorer: scorer.Cost("coldest", func(_ *endpick.Request, c *endpick.Candidate) float64 { return c.KVUsage }),
		Weight: 1,
	}}
	reports, err := scorertest.Compare(
		scorertest.Workload{Scenario: "C", Rate: 8, Requests: 500},
		all.LMetric(), coldest,
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	lmetric, own := reports[0], reports[1]
	fmt.Println("all served:", own.Completed == own.Requests)
	fmt.Println("finds as much in caches:", own.PrefixHitRatio >= lmetric.PrefixHitRatio)
	fmt.Println("first token as soon:", own.TTFT.P50 <= lmetric.TTFT.P50)
	// Output:
	// all served: true
	// finds as much in caches: false
	// first token as soon: false
}
