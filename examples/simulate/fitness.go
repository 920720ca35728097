package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// readFitness parses weights of metrics: metric:weight, separated by commas.
func readFitness(s string) (map[string]float64, error) {
	weights := map[string]float64{}
	for text := range strings.SplitSeq(s, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(text), ":")
		w, err := strconv.ParseFloat(number, 64)
		switch {
		case err != nil || math.IsNaN(w) || math.IsInf(w, 0):
			return nil, fmt.Errorf("%q is not metric:weight", text)
		case weights[name] != 0:
			return nil, fmt.Errorf("%s is given twice", name)
		}
		weights[name] = w
	}
	return weights, nil
}
