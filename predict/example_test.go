package predict_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
)

// A model on its own: any features, any positive target.
func ExampleFit() {
	var data predict.Data
	for i := range 400 {
		tokens, queue := float64(100+i%40*50), float64(i%4)
		data.X = append(data.X, tokens, queue)
		data.Y = append(data.Y, 20+0.1*tokens+30*queue) // milliseconds
	}
	model, err := predict.Fit(predict.BoostConfig{Features: 2, Prior: []int{0, 1}}, data)
	if err != nil {
		fmt.Println(err)
		return
	}
	latencies := make([]float64, 2)
	if err := model.Predict(latencies, []float64{1000, 0, 1000, 3}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.0f ms idle, %.0f ms behind three others\n", latencies[0], latencies[1])
	// Output: 120 ms idle, 210 ms behind three others
}

// A model goes to a file and back.
func ExampleModel_UnmarshalBinary() {
	model, err := predict.Fit(predict.BoostConfig{Features: 1}, predict.Data{X: []float64{1}, Y: []float64{5}})
	if err != nil {
		fmt.Println(err)
		return
	}
	saved, err := model.MarshalBinary()
	if err != nil {
		fmt.Println(err)
		return
	}
	var restored predict.Model
	fmt.Println(restored.UnmarshalBinary(saved[:len(saved)-1]))
	fmt.Println(restored.UnmarshalBinary(saved))
	// Output:
	// predict: malformed data: 122 of 123 bytes are there
	// <nil>
}

// A window keeps what has become rare.
func ExampleWindow() {
	window, err := predict.NewWindow(predict.WindowConfig{
		Features: 1,
		Samples:  100,
		Strata:   []predict.Stratum{{Feature: 0, Edges: []float64{0.9}}}, // below and above 90 % usage
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	add := func(usage, label float64) {
		if err := window.Add([]float64{usage}, label, time.Time{}); err != nil {
			fmt.Println(err)
		}
	}
	for range 10 {
		add(0.95, 2000)
	}
	for range 5000 {
		add(0.3, 80)
	}
	var data predict.Data
	window.AppendTo(&data)
	full := 0
	for _, usage := range data.X {
		if usage >= 0.9 {
			full++
		}
	}
	fmt.Println(window.Len(), "samples,", full, "of them from the full cache")
	// Output: 100 samples, 10 of them from the full cache
}

// A router whose candidates carry predictions.
func ExampleLatency() {
	now := time.Unix(0, 0)
	latency, err := predict.NewLatency(predict.LatencyConfig{Trainer: predict.TrainerConfig{Synchronous: true}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer latency.Close()
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Predictor: latency},
		Endpoints: []endpick.Endpoint{{Address: "10.0.0.1:8000"}},
		Clock:     func() time.Time { return now },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var last endpick.Candidate
	for i := range 60 {
		tokens := 500 + 100*(i%10)
		lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: tokens, Stream: true})
		if err != nil {
			fmt.Println(err)
			return
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
