package all_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
)

func predicted(endpoints []endpick.Endpoint) (*endpick.Router, error) {
	config, err := all.PredictedLatency(all.PredictedLatencyConfig{})
	if err != nil {
		return nil, err
	}
	config.Endpoints = endpoints
	return endpick.New(config)
}

// A request with latency targets. Before anything is learned there is no prediction,
// and load decides.
func ExamplePredictedLatency() {
	router, err := predicted([]endpick.Endpoint{{ID: "busy"}, {ID: "idle"}})
	if err != nil {
		panic(err)
	}
	for id, running := range map[string]float64{"busy": 20, "idle": 1} {
		if err := router.Report(id, endpick.Load{Running: running, Waiting: running, KVUsage: running / 40}); err != nil {
			panic(err)
		}
	}
	lease, err := router.Route(endpick.Request{
		InputTokens: 500, Stream: true, SLO: endpick.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond},
	})
	if err != nil {
		panic(err)
	}
	defer lease.Done(endpick.Outcome{})
	fmt.Println(lease.Endpoint().ID)
	// Output: idle
}
