package scorertest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick/internal/lab/sim"
)

func TestReportIsThatOfTheSimulator(t *testing.T) {
	summary := func(base float64) sim.Summary {
		return sim.Summary{Mean: base + 1, P50: base + 2, P90: base + 3, P95: base + 4, P99: base + 5}
	}
	got := newReport(&sim.Report{
		Policy: "p", Requests: 10, Completed: 7, Rejected: 3, TTFT: summary(10), TPOT: summary(20), E2E: summary(30),
		ThroughputRPS: 1.5, OutputTPS: 2.5, PrefixHitRatio: 0.5, Preemptions: 4, Jain: 0.9, Imbalance: 0.1,
		Classes: []sim.Class{{Requests: 5, Met: 2}, {Requests: 3, Met: 1}},
	})
	assert.Equal(t, Report{
		Policy: "p", Requests: 10, Completed: 7, Rejected: 3,
		TTFT: Latency{11, 12, 13, 14, 15}, TPOT: Latency{21, 22, 23, 24, 25}, E2E: Latency{31, 32, 33, 34, 35},
		Throughput: 1.5, OutputTPS: 2.5, PrefixHitRatio: 0.5, Preemptions: 4, Jain: 0.9, Imbalance: 0.1,
		WithSLO: 8, MetSLO: 3,
	}, got)
}
