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

// A model is saved to a file and loaded again.
func ExampleModel_UnmarshalBinary() {
	model, err := boost.Fit(boost.Config{Features: 1}, boost.Data{X: []float64{1}, Y: []float64{5}})
	if err != nil {
		fmt.Println(err)
		return
	}
	saved, err := model.MarshalBinary()
	if err != nil {
		fmt.Println(err)
		return
	}
	var restored boost.Model
	fmt.Println(restored.UnmarshalBinary(saved[:len(saved)-1]))
	fmt.Println(restored.UnmarshalBinary(saved))
	// Output:
	// endpick: malformed saved data: 121 of 122 bytes are there
	// <nil>
}

// An update adapts a model to a change between two fits.
func ExampleModel_Update() {
	var before, after boost.Data
	for i := range 400 {
		tokens := float64(100 + i%40*50)
		before.X = append(before.X, tokens)
		before.Y = append(before.Y, 20+0.1*tokens)
		after.X = append(after.X, tokens)
		after.Y = append(after.Y, 1.5*(20+0.1*tokens)) // everything is slower now
	}
	model, err := boost.Fit(boost.Config{Features: 1, Prior: []int{0}}, before)
	if err != nil {
		fmt.Println(err)
		return
	}
	updated, err := model.Update(after)
	if err != nil {
		fmt.Println(err)
		return
	}
	var y [1]float64
	for _, m := range []*boost.Model{model, updated} {
		if err := m.Predict(y[:], []float64{1000}); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%.0f ms\n", y[0])
	}
	// Output:
	// 120 ms
	// 182 ms
}
