package main

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// wall is what a run cost the machine.
type wall struct {
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"simulated_requests_per_second"`
	PeakBytes uint64  `json:"peak_bytes"` // memory of the process during the run
}

// stopwatch measures one run.
type stopwatch struct {
	start time.Time
	done  chan struct{}
	peak  chan uint64
}

// sampleInterval is short against a run, and long against the cost of a sample.
const sampleInterval = 2 * time.Millisecond

func startWatch() *stopwatch {
	debug.FreeOSMemory() // left by the previous run
	w := &stopwatch{done: make(chan struct{}), peak: make(chan uint64)}
	go func() {
		peak := memoryHeld()
		tick := time.NewTicker(sampleInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				peak = max(peak, memoryHeld())
			case <-w.done:
				w.peak <- max(peak, memoryHeld())
				return
			}
		}
	}()
	w.start = time.Now()
	return w
}

func (w *stopwatch) stop(requests int) *wall {
	seconds := time.Since(w.start).Seconds()
	close(w.done)
	return &wall{Seconds: seconds, PerSecond: float64(requests) / seconds, PeakBytes: <-w.peak}
}

// memoryHeld is the memory that the Go runtime has obtained from the operating
// system and not returned.
func memoryHeld() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
