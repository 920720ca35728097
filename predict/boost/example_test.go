package boost_test

import (
	"fmt"

	"github.com/endpick/endpick/predict/boost"
)

// A model by itself: any features, any positive target.
func ExampleFit() {
	var data boost.Data
	for i := range 400 {
		tokens, queue := float64(100+i%40*50), float64(i%4)
		data.X = append(data.X, tokens, queue)
		data.Y = append(data.Y, 20+0.1*tokens+30*queue) // milliseconds
	}
	model, err := boost.Fit(boost.Config{Features: 2, Prior: []int{0, 1}}, data)
	if err != nil {
		panic(err)
	}
	latencies := make([]float64, 2)
	if err := model.Predict(latencies, []float64{1000, 0, 1000, 3}); err != nil {
		panic(err)
	}
	fmt.Printf("%.0f ms idle, %.0f ms behind three others\n", latencies[0], latencies[1])
	// Output: 120 ms idle, 210 ms behind three others
}
