//go:build !(goexperiment.simd && amd64)

package boost

// predictWide is Predict for as many of the rows as it is faster for, and returns their number.
func (m *Model) predictWide([]float64, []float64) int { return 0 }
