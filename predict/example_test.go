package predict_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
)

// A router whose candidates carry predictions.
func ExampleLatency() {
	now := time.Unix(0, 0)
	latency, err := predict.NewLatency(predict.LatencyConfig{Synchronous: true})
	if err != nil {
		panic(err)
	}
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Predictor: latency},
		Endpoints: []endpick.Endpoint{{Address: "10.0.0.1:8000"}},
		Clock:     func() time.Time { return now },
	})
	if err != nil {
		panic(err)
	}
	var last endpick.Candidate
	for i := range 60 {
		tokens := 500 + 100*(i%10)
		lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: tokens, Stream: true})
		if err != nil {
			panic(err)
		}
		last, _ = lease.Candidate()
		now = now.Add(time.Duration(tokens) * 100 * time.Microsecond) // 0.1 ms a token
		lease.FirstToken()
		now = now.Add(200 * time.Millisecond)
		lease.Tokens(10)
		lease.Done(endpick.Outcome{})
	}
	fmt.Println(last.Prediction.Has&endpick.TTFT != 0, last.Prediction.TTFT.Round(time.Millisecond), "for 1,400 tokens")
	fmt.Println(latency.Health()[0].TTFT.Phase, latency.Health()[0].TTFT.Labels)
	// Output:
	// true 140ms for 1,400 tokens
	// prior 60
}
