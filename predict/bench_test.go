package predict

import (
	"fmt"
	"testing"
	"time"

	"github.com/endpick/endpick"
)

// BenchmarkLatency measures the whole Predictor stage: both targets of every candidate.
func BenchmarkLatency(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			w := newWorld(b, LatencyConfig{Synchronous: true})
			for range 2000 {
				w.finish(w.request(), w.candidate("", uint32(w.rng.IntN(4))))
			}
			req := w.request().At(time.Unix(1e6, 0), 0, 1)
			candidates := make([]endpick.Candidate, endpoints)
			for i := range candidates {
				candidates[i] = w.candidate("", uint32(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				w.latency.Predict(&req, candidates)
			}
			if candidates[endpoints-1].Prediction.Has != endpick.TTFT|endpick.TPOT {
				b.Fatal("not predicted")
			}
		})
	}
}
