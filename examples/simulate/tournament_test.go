package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every contest can be held: its fleet and its work exist, at any rate.
func TestContests(t *testing.T) {
	names := map[string]bool{}
	held := 0
	t.Chdir("../..")
	for _, c := range contests() {
		require.False(t, names[c.name], "%s is given twice", c.name)
		names[c.name] = true
		if c.set != "tuned" {
			held++
		}
		fleet, err := c.fleet()
		require.NoError(t, err, c.name)
		assert.GreaterOrEqual(t, len(fleet), 4, c.name)
		assert.True(t, (c.guess > 0) != (c.saturation > 0), c.name)
		work, err := c.work(2, 100)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a trace that is not next to the repository
		}
		require.NoError(t, err, c.name)
		source, err := work.Start(1)
		require.NoError(t, err, c.name)
		n := 0
		for range 20 {
			if _, ok := source.Next(); ok {
				r := source.Take()
				source.Done(&r, r.Arrival)
				n++
			}
		}
		assert.Equal(t, 20, n, c.name)
	}
	assert.GreaterOrEqual(t, held, len(names)/3, "held back from tuning")
}

func TestTournament(t *testing.T) {
	args := []string{"tournament", "-contests", "C-qwe,flash", "-policies", "lmetric,round-robin,marginal-delay", "-load", "0.5,0.8", "-seed", "1,2", "-requests", "150", "-format", "cells"}
	text := simulate(t, args...)
	assert.Contains(t, text, "4 cells: 2 workloads at 50 %, 80 % of saturation, 150 requests, means over 2 seeds.")
	assert.Contains(t, text, "TTFT p95: the best, and the loss of each")

	var scores []score
	require.NoError(t, json.Unmarshal([]byte(simulate(t, append(args, "-format", "json")...)), &scores))
	assert.Len(t, scores, 4*3*2)
	for _, s := range scores {
		assert.Positive(t, s.E2EMean)
		assert.Greater(t, s.Rate, 0.0)
	}
}

// Losses, worked out by hand: a takes 100 and 300 ms in two seeds, b 100 and 100: b is
// the best, and a takes twice as long.
func TestLoss(t *testing.T) {
	r := round{scores: map[string][]score{"a": {{E2EMean: 100}, {E2EMean: 300}}, "b": {{E2EMean: 100}, {E2EMean: 100}}}}
	policies := []string{"a", "b"}
	assert.Equal(t, 2.0, r.loss(policies, "a", measures[0].value))
	assert.Equal(t, 1.0, r.loss(policies, "b", measures[0].value))
}

func TestTournamentMistakes(t *testing.T) {
	for command, want := range map[string]string{
		"-contests E":                     `"E" is not a contest (known: tuned, held, foreign, programs, sealed, A-qwe,`,
		"-policies best":                  "unknown policy",
		"-load 0":                         "is not a number above 0",
		"-requests 3":                     "-requests 3 is too small",
		"-format xml":                     `-format "xml" is unknown (known: table, cells, pairs, json)`,
		"-format pairs -policies lmetric": "-format pairs needs two policies",
		"more":                            `what is "more"?`,
		"-contests A-qwe,A":               `"A" is not a contest`,
	} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, run(append([]string{"tournament"}, strings.Fields(command)...), &bytes.Buffer{}, &stderr))
		assert.Contains(t, stderr.String(), want)
	}
}

// The mean of 1, 2 and 3 has an interval of 4.30·1/√3.
func TestInterval(t *testing.T) {
	assert.InDelta(t, 4.30/math.Sqrt(3), interval([]float64{1, 2, 3}), 1e-9)
	assert.Zero(t, interval([]float64{2, 2, 2}))
	assert.True(t, math.IsNaN(interval([]float64{1})))
}

// In seeds 1 and 2 b takes 10 and 30 % longer than a: 20 on average, with
// Student's distribution ± 12.71 standard errors of 10. Seed 3 has no pair.
func TestPairs(t *testing.T) {
	r := round{contest: "C", load: 0.8, scores: map[string][]score{
		"a": {{Seed: 1, E2EMean: 100, TTFT95: 10}, {Seed: 2, E2EMean: 200, TTFT95: 10}, {Seed: 3, E2EMean: 1, TTFT95: 1}},
		"b": {{Seed: 2, E2EMean: 260, TTFT95: 9}, {Seed: 1, E2EMean: 110, TTFT95: 9}},
	}}
	p := r.pairOf("b", "a", pairedMeasures[0].value)
	assert.InDelta(t, 20, p.longer, 1e-9)
	assert.InDelta(t, 127.1, p.half, 1e-9)

	tour := tournament{contests: []contest{{name: "C"}}, loads: []float64{0.8}, policies: []string{"a", "b"}, seeds: []uint64{1, 2, 3}}
	var all []score
	for policy, scores := range r.scores {
		for _, s := range scores {
			s.Contest, s.Load, s.Policy = "C", 0.8, policy
			all = append(all, s)
		}
	}
	var text bytes.Buffer
	require.NoError(t, tour.writePairs(&text, all))
	assert.Contains(t, text.String(), "+20.0 ± 127.1")
	assert.Contains(t, text.String(), "E2E mean: more than 1 % behind one of them in 1 of 1 cells, in 0 by more than the interval; ahead of all in 0 of 1 at 80 % and more.")
	assert.Contains(t, text.String(), "TTFT p95: more than 5 % behind one of them in 0 of 1 cells, in 0 by more than the interval; ahead of all in 1 of 1 at 80 % and more.")
}
