package traffic

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
)

func TestSummarise(t *testing.T) {
	ms := time.Millisecond
	r := Summarise("p", []Sample{
		{TTFT: 10 * ms, E2E: 50 * ms, SinceFirst: 40 * ms, PromptTokens: 100, CachedTokens: 48, OutputTokens: 5},
		{TTFT: 20 * ms, E2E: 20 * ms, PromptTokens: 100, OutputTokens: 1, Turn: 1},             // no TPOT
		{TTFT: 15 * ms, E2E: 66 * ms, SinceFirst: 51 * ms, PromptTokens: 200, OutputTokens: 6}, // a TPOT of 10.2 ms
		{Err: errors.New("first"), PromptTokens: 1000},
		{Err: errors.New("second")},
	}, endpick.SLO{TTFT: 15 * ms, TPOT: 10 * ms})
	require.Equal(t, 5, r.Requests)
	require.Equal(t, 2, r.Failed)
	require.EqualError(t, r.FirstErr, "first")
	require.Equal(t, &Percentiles{P50: 15, P95: 20, P99: 20}, r.TTFT)
	require.Equal(t, &Percentiles{P50: 10, P95: 10.2, P99: 10.2}, r.TPOT)
	require.Equal(t, &Percentiles{P50: 50, P95: 66, P99: 66}, r.E2E)
	require.Equal(t, 0.12, *r.PrefixHitRatio)
	require.Zero(t, *r.LaterHitRatio)
	require.Equal(t, 0.2, *r.SLOMet, "the first alone: two failed, one came late, one was slow")
}

func TestNothingMeasuredIsNotZero(t *testing.T) {
	results := []Result{Summarise("p", nil, endpick.SLO{})}
	var b bytes.Buffer
	require.NoError(t, WriteJSON(&b, results))
	require.JSONEq(t, `[{"policy":"p","requests":0,"failed":0,"ttft_ms":null,"tpot_ms":null,"e2e_ms":null,"prefix_hit_ratio":null,"prefix_hit_ratio_later":null}]`, b.String())
	b.Reset()
	require.NoError(t, WriteTable(&b, results))
	require.Regexp(t, `(?m)^ *p +0 +0( +-){8}$`, b.String())
}
