//go:build race

package sim

// raced: the race detector is on, which makes a simulation, all in one goroutine,
// ten times slower and finds nothing in it that shorter tests would not.
const raced = true
