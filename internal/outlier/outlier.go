// Package outlier limits what the report of one endpoint does to decisions about the others.
package outlier

// Most is what the largest of several counts counts as, beside the next one: 64 at most, or four times that.
func Most(largest, next float64) float64 { return min(largest, 4*max(next, 16)) }
