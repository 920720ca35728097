// Package outlier limits what the report of one endpoint does to decisions about the others.
package outlier

// Most is what the largest of n counts counts as, beside the next one: at most four times that, or 64 shared by the others.
func Most(n int, largest, next float64) float64 {
	if n < 2 {
		return largest
	}
	return min(largest, max(4*next, 64/float64(n-1)))
}
