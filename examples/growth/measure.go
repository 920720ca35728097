package main

import (
	"math"
	"time"

	"github.com/cespare/xxhash/v2"
)

// job is an operation to measure. Its time is the minimum over groups of calls,
// divided by their number: on a shared machine, the minimum comes nearest to the work
// itself.
type job struct {
	op   func()
	best float64 // nanoseconds
}

// group is the least time that a group of calls takes.
const group = 500 * time.Microsecond

// yardstick is xxhash.Sum64 over 64 KiB: S, the unit of all times.
func yardstick() *job {
	data := make([]byte, 65536)
	sum := uint64(0)
	return &job{op: func() { sum += xxhash.Sum64(data) }, best: math.Inf(1)}
}

// measure runs all jobs and the yardstick in turn, rounds times.
func measure(jobs []*job, unit *job, rounds int) {
	for _, j := range jobs {
		j.best = math.Inf(1)
		j.run() // warm up
	}
	for range rounds {
		unit.run()
		for _, j := range jobs {
			j.run()
		}
	}
}

func (j *job) run() {
	began := time.Now()
	n := 0
	for time.Since(began) < group || n < 3 {
		j.op()
		n++
	}
	j.best = min(j.best, float64(time.Since(began))/float64(n))
}
