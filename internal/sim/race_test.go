//go:build race

package sim

// raced: the race detector is on.
const raced = true
