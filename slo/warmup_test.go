package slo_test

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
)

// considered is the share of requests for which the candidate stays.
func considered(f endpick.Filter, now time.Time, cs []endpick.Candidate, id string) float64 {
	const n = 4000
	stayed := 0
	for i := range n {
		for _, name := range ids(filter(f, ask(0, 0).At(now, 5, uint64(i)), cs)) {
			if name == id {
				stayed++
			}
		}
	}
	return float64(stayed) / n
}

func TestWarmupRamps(t *testing.T) {
	f := rig.Must(slo.NewWarmup(slo.WarmupConfig{}))
	cs := fleet(make([]endpick.Prediction, 5)...)
	old := cs[:4]
	assert.Len(t, filter(f, ask(0, 0).At(epoch, 5, 1), old), 4, "a fleet that starts as a whole is not held back")

	young := rig.Must(slo.NewWarmup(slo.WarmupConfig{}))
	filter(young, ask(0, 0), old)
	filter(young, ask(0, 0).At(at(10_000), 5, 1), cs)
	assert.InDelta(t, 0.6, considered(young, at(20_000), cs, "server-4"), 0.03, "half as old as the oldest")

	joined := epoch.Add(time.Hour)
	assert.InDelta(t, 0.2, considered(f, joined, cs, "server-4"), 0.02, "the fair share of five")
	assert.InDelta(t, 0.6, considered(f, joined.Add(30*time.Second), cs, "server-4"), 0.03, "1/5 + 4/5 · 1/2")
	assert.Equal(t, 1.0, considered(f, joined.Add(time.Minute), cs, "server-4"))
	assert.Equal(t, 1.0, considered(f, joined, cs, "server-0"))

	cs[4].PrefixTokens = 16
	assert.Equal(t, 1.0, considered(f, joined, cs, "server-4"), "a request of which it holds the head")
	cs[4].PrefixTokens = 0

	cs[1].Ref.Generation++
	later := joined.Add(time.Hour)
	assert.InDelta(t, 0.2, considered(f, later, cs, "server-1"), 0.02, "another endpoint in the place of an old one")
	cs[1].Ref.Generation--
	assert.InDelta(t, 0.2, considered(f, later, cs, "server-1"), 0.02, "one that was removed meanwhile")
}
