package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/traffic"
)

// A short comparison has a row for each contender, no request fails, and in step endpick
// finds as much in the caches within Bifrost as without it. Which one is faster takes a
// quieter machine to say. Bifrost asks for 16 tokens at least.
func TestCompare(t *testing.T) {
	w := traffic.Workload{
		Duration: 500 * time.Millisecond, Rate: 30, Groups: 4, SystemTokens: 1000, QuestionTokens: 40, OutputTokens: 40, Turns: 2,
		Think: 20 * time.Millisecond, Seed: 1,
	}
	var out bytes.Buffer
	err := compare(t.Context(), &w, "marginal-delay", 1, &out, io.Discard)
	if err != nil {
		assert.NotContains(t, err.Error(), "failed")
	}
	for _, name := range []string{own, with, direct} {
		assert.Regexp(t, `(?m)^ *`+name+` +\d+ +0 `, out.String())
	}
	assert.Regexp(t, ` 0 failed, no lease left; in step, hits .* 1 pairs\)\n$`, out.String())
}

func TestJudge(t *testing.T) {
	result := func(name string, p50 float64) traffic.Result {
		return traffic.Result{Policy: name, TTFT: &traffic.Percentiles{P50: p50}}
	}
	busy := []traffic.Result{result(own, 100), result(with, 25), result(direct, 20)}
	hits := &traffic.Paired{A: []float64{0.9, 0.89}, B: []float64{0.905, 0.895}}
	require.NoError(t, judge(busy, hits, io.Discard))
	require.ErrorContains(t, judge([]traffic.Result{busy[0], result(with, 26), busy[2]}, hits, io.Discard), "0.26 of random's")
	require.ErrorContains(t, judge(busy, &traffic.Paired{A: []float64{0.9, 0.9}, B: []float64{0.92, 0.93}}, io.Discard), "-2.5 points")
	failed := result(own, 100)
	failed.Failed, failed.FirstErr = 2, io.EOF
	require.ErrorContains(t, judge([]traffic.Result{failed, busy[1], busy[2]}, hits, io.Discard), own+": 2 requests failed, the first: EOF")
	require.ErrorContains(t, judge([]traffic.Result{{Policy: own}, busy[1], busy[2]}, hits, io.Discard), "nothing was measured")
}
