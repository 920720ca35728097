//go:build !(goexperiment.simd && amd64)

package boost

// predictWide is Predict for as many of the rows as are worth it, and returns how many these are.
func (m *Model) predictWide([]float64, []float64) int { return 0 }
