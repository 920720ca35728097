//go:build !race

package rig

// Race reports whether the race detector is on. It makes sync.Pool drop items, so that
// allocations can't be counted.
const Race = false
