package learn_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick/predict/boost"
	"github.com/endpick/endpick/predict/internal/learn"
)

// A window keeps rare samples.
func ExampleWindow() {
	window, err := learn.NewWindow(learn.WindowConfig{
		Features: 1,
		Samples:  100,
		Strata:   []learn.Stratum{{Feature: 0, Edges: []float64{0.9}}}, // below and above 90 % usage
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
	var data boost.Data
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
