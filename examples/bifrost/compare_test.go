package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/traffic"
)

// A short comparison has a row for each contender, no request fails, and without load
// endpick finds as much in Bifrost as without it. Whether one is faster than another
// takes a quieter machine. Bifrost asks for 16 tokens at least.
func TestCompare(t *testing.T) {
	w := traffic.Workload{
		Duration: 500 * time.Millisecond, Rate: 30, Groups: 4, SystemTokens: 1000, QuestionTokens: 40, OutputTokens: 40, Turns: 2,
		Think: 20 * time.Millisecond, Seed: 1,
	}
	var out bytes.Buffer
	err := compare(t.Context(), &w, "lmetric", &out, io.Discard)
	if err != nil {
		assert.NotContains(t, err.Error(), "failed")
		assert.NotContains(t, err.Error(), "one request at a time")
	}
	for _, name := range []string{own, with, direct} {
		assert.Regexp(t, `(?m)^ *`+name+` +\d+ +0 `, out.String())
	}
	assert.Regexp(t, `, 0\.0 points from those without Bifrost, and [\d.]+ under load; 0 failed, no lease left\n$`, out.String())
}

func TestJudge(t *testing.T) {
	result := func(name string, p50, hits float64) traffic.Result {
		return traffic.Result{Policy: name, TTFT: &traffic.Percentiles{P50: p50}, PrefixHitRatio: &hits}
	}
	busy := []traffic.Result{result(own, 100, 0.3), result(with, 25, 0.875), result(direct, 20, 0.9)}
	alone := []traffic.Result{result(with, 1, 0.9), result(direct, 1, 0.905)}
	require.NoError(t, judge(busy, alone, io.Discard))
	require.ErrorContains(t, judge([]traffic.Result{busy[0], result(with, 26, 0.9), busy[2]}, alone, io.Discard), "0.26 of random's")
	require.ErrorContains(t, judge([]traffic.Result{busy[0], result(with, 20, 0.86), busy[2]}, alone, io.Discard), "4.0 points")
	require.ErrorContains(t, judge(busy, []traffic.Result{alone[0], result(direct, 1, 0.92)}, io.Discard), "2.0 points")
	failed := result(own, 100, 0.3)
	failed.Failed, failed.FirstErr = 2, io.EOF
	require.ErrorContains(t, judge([]traffic.Result{failed, busy[1], busy[2]}, alone, io.Discard), own+": 2 requests failed, the first: EOF")
	require.ErrorContains(t, judge([]traffic.Result{{Policy: own}, busy[1], busy[2]}, alone, io.Discard), "nothing was measured")
}
