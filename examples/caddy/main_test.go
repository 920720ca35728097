package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/traffic"
)

// A short comparison has a row for each contender, and no request fails. Which one
// is faster takes a quieter machine to say.
func TestCompare(t *testing.T) {
	w := traffic.Workload{
		Duration: 400 * time.Millisecond, Rate: 30, Groups: 4, SystemTokens: 1000, QuestionTokens: 40, OutputTokens: 8, Turns: 2,
		Think: 20 * time.Millisecond, Seed: 1,
	}
	var out bytes.Buffer
	err := compare(t.Context(), &w, "marginal-delay", 1, &out, io.Discard)
	if err != nil {
		assert.NotContains(t, err.Error(), "failed")
	}
	for _, name := range []string{"random", "round_robin", "least_conn", "endpick", direct} {
		assert.Regexp(t, `(?m)^ *`+name+` +\d+ +0 `, out.String())
	}
	assert.Regexp(t, `in step, hits in Caddy and without it: .* of 1 pairs`, out.String())
}

func TestJudge(t *testing.T) {
	result := func(name string, p50, hits float64) traffic.Result {
		return traffic.Result{Policy: name, TTFT: &traffic.Percentiles{P50: p50}, PrefixHitRatio: &hits}
	}
	same := &traffic.Paired{A: []float64{0.88, 0.90}, B: []float64{0.885, 0.90}}
	good := []traffic.Result{result("random", 100, 0.3), result("least_conn", 80, 0.3), result("endpick", 20, 0.85), result(direct, 20, 0.88)}
	require.NoError(t, judge(good, same, io.Discard))
	require.ErrorContains(t, judge(append(good[:2:2], result("endpick", 21, 0.87), good[3]), same, io.Discard), "0.26 of another's")
	for _, hits := range []traffic.Paired{{A: []float64{0.87, 0.88}, B: []float64{0.89, 0.882}}, {A: []float64{0.9}, B: []float64{0.88}}} {
		require.ErrorContains(t, judge(good, &hits, io.Discard), "points apart")
	}
	failed := result("random", 100, 0.3)
	failed.Failed, failed.FirstErr = 2, io.EOF
	require.ErrorContains(t, judge(append([]traffic.Result{failed}, good...), same, io.Discard), "random: 2 requests failed, the first: EOF")
	require.ErrorContains(t, judge(append([]traffic.Result{{Policy: "random"}}, good...), same, io.Discard), "nothing was measured")
}

// The Caddyfile is valid.
func TestCaddyfile(t *testing.T) {
	text, err := os.ReadFile("Caddyfile")
	require.NoError(t, err)
	_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": "Caddyfile"})
	require.NoError(t, err)
	require.Empty(t, warnings, "it is formatted")
}
