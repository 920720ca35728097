package boost_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict/boost"
	"github.com/endpick/endpick/predict/internal/learn"
)

// latencyData resembles what Latency learns from.
func latencyData(rows int) boost.Data {
	rng := rand.New(rand.NewPCG(1, 2))
	d := boost.Data{X: make([]float64, rows*learn.FeatureCount), Y: make([]float64, rows), W: make([]float64, rows)}
	for i := range rows {
		f := learn.Features{
			KVUsage: rng.Float64(), InputTokens: math.Floor(math.Exp(4 + 6*rng.Float64())),
			Waiting: float64(rng.IntN(12)), Running: float64(rng.IntN(200)), PrefixShare: rng.Float64(),
			PrefillTokens: math.Floor(math.Exp(9 * rng.Float64())), ResidentTokens: 1e5 * rng.Float64(),
			PrefillRate: 1e4 * rng.Float64(), ExpectedOutputTokens: math.Floor(math.Exp(7 * rng.Float64())),
		}
		row := d.X[i*learn.FeatureCount : (i+1)*learn.FeatureCount]
		f.Row(row)
		full := 1 / (1.2 - f.KVUsage)
		d.Y[i] = (15 + 0.2*f.Running + 0.08*row[learn.FeatureCount-2]*full + 20*f.Waiting) * math.Exp(0.05*rng.NormFloat64())
		d.W[i] = 1
	}
	return d
}

// BenchmarkPredictTrees walks rows × trees with nothing else running.
func BenchmarkPredictTrees(b *testing.B) {
	d := latencyData(10_000)
	config := learn.Latency(learn.TTFT).Boost
	config.Trees = 100
	m := rig.Must(boost.Fit(config, d))
	for _, rows := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("trees=100/rows=%d", rows), func(b *testing.B) {
			y, x := make([]float64, rows), d.X[:rows*learn.FeatureCount]
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Predict(y, x); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
		})
	}
}

// BenchmarkSum64 is a yardstick for the machine.
func BenchmarkSum64(b *testing.B) {
	buf := make([]byte, 65536)
	b.Run("bytes=65536", func(b *testing.B) {
		for b.Loop() {
			xxhash.Sum64(buf)
		}
	})
}

func BenchmarkFit(b *testing.B) {
	eachSize(b, func(b *testing.B, d boost.Data) {
		for b.Loop() {
			rig.Must(boost.Fit(learn.Latency(learn.TTFT).Boost, d))
		}
	})
}

func BenchmarkRefit(b *testing.B) {
	eachSize(b, func(b *testing.B, d boost.Data) {
		m := rig.Must(boost.Fit(learn.Latency(learn.TTFT).Boost, d))
		for b.Loop() {
			rig.Must(m.Refit(d))
		}
	})
}

func eachSize(b *testing.B, run func(*testing.B, boost.Data)) {
	for _, rows := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) { run(b, latencyData(rows)) })
	}
}
