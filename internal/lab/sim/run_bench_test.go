package sim

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// BenchmarkScenarioA is scenario A at 1.2 requests a second and endpoint, about
// 1,000 output tokens each, with the router: a rate that the fleet can still bear
// when conversations have grown to five turns, so that requests of long runs are no
// more work than those of short ones. peak-MB is the heap at the end of a run,
// garbage included.
func BenchmarkScenarioA(b *testing.B) {
	for _, c := range []struct {
		policy              string
		endpoints, requests int
		interval            time.Duration
	}{
		{"lmetric", 10, 1_000, 0},
		{"lmetric", 10, 10_000, 0},
		{"lmetric", 10, 100_000, 0},
		{"round-robin", 10, 10_000, 0},
		{"load-prefix", 10, 10_000, 0},
		{"predicted-latency", 10, 10_000, 0},
		{"lmetric", 1000, 10_000, 0},
		{"lmetric", 10, 10_000, time.Second},
		{"lmetric", 100, 10_000, time.Second},
		{"lmetric", 1000, 10_000, time.Second},
	} {
		name := fmt.Sprintf("policy=%s/endpoints=%d/requests=%d/interval=%v", c.policy, c.endpoints, c.requests, c.interval)
		b.Run(name, func(b *testing.B) {
			a := scenario(b, "A")
			profile, err := engine.ProfileByName(a.Profile)
			if err != nil {
				b.Fatal(err)
			}
			done := 0
			var memory runtime.MemStats
			for b.Loop() {
				rep := mustRun(b, Config{
					Router: named(c.policy), Fleet: Fleet(c.endpoints, engine.Config{Profile: profile}),
					Workload: paced(b, a.Name, 1.2*float64(c.endpoints), c.requests), ReportInterval: c.interval,
				})
				done += rep.Completed
				runtime.ReadMemStats(&memory)
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(float64(memory.HeapSys)/(1<<20), "peak-MB")
		})
	}
}
