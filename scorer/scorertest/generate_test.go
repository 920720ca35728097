package scorertest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// In rapid tests of other packages, generators shrink to what a property needs to fail.
func TestGeneratorsShrink(t *testing.T) {
	settled(t)
	for name, tc := range map[string]struct {
		property func(rt *rapid.T)
		smallest string
	}{
		"one candidate": {func(rt *rapid.T) {
			c := draw(rt, 16)
			for i := range c.candidates {
				if c.candidates[i].Running >= 3 {
					c.failf("found")
				}
			}
		}, `found
The smallest case:
  request: 0 tokens
  server-0: W 0, R 3, K 0, no report`},
		"two candidates": {func(rt *rapid.T) {
			c := draw(rt, 16)
			reports := 0
			for i := range c.candidates {
				if c.candidates[i].Report != nil {
					reports++
				}
			}
			if reports >= 2 {
				c.failf("found")
			}
		}, `found
The smallest case:
  request: 0 tokens
  server-0: W 0, R 0, K 0
  server-1: W 0, R 0, K 0`},
		"a request": {func(rt *rapid.T) {
			if c := draw(rt, 16); c.req.Stream && c.req.InputTokens > 5 {
				c.failf("found")
			}
		}, `found
The smallest case:
  request: 6 tokens, streams
  server-0: W 0, R 0, K 0, no report`},
		"scores": {func(rt *rapid.T) {
			for _, v := range drawnScores(8).Draw(rt, "scores") {
				if v < 0 {
					rt.Fatalf("found %v", v < 0)
				}
			}
		}, "found true"},
	} {
		r := &recorder{name: name}
		r.run(func() { rapid.Check(r, tc.property) })
		// Words are shrunk last, or not at all.
		assert.Equal(t, tc.smallest, regexp.MustCompile(`, (tenant|session|adapter) "[^"]*"`).ReplaceAllString(r.said, ""), name)
	}
}

// Whose own property fails can read what it was given: no pointers.
func TestDrawsCanBeRead(t *testing.T) {
	settled(t)
	h := &recorder{name: "draws"}
	h.run(func() {
		rapid.Check(h, func(rt *rapid.T) {
			req := Requests().Draw(rt, "request")
			var candidates []endpick.Candidate = Candidates(req, 4).Draw(rt, "candidates")
			if len(candidates) > 1 && candidates[1].Report != nil && candidates[0].Waiting > 2 {
				rt.Fatalf("found")
			}
		})
	})
	assert.True(t, h.failed)
	all := strings.Join(h.draws, "\n")
	assert.Contains(t, all, "\n  server-0: W 3, R 0, K 0, no report\n  server-1: W 0, R 0, K 0")
	assert.NotRegexp(t, `\(0x[0-9a-f]+\)`, all)
}

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
