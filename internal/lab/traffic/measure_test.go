package traffic

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func TestPercentiles(t *testing.T) {
	require.Nil(t, percentilesOf(nil))
	require.Equal(t, &Percentiles{P50: 7, P95: 7, P99: 7}, percentilesOf([]float64{7}))
	var values []float64
	for i := 200; i > 0; i-- {
		values = append(values, float64(i))
	}
	require.Equal(t, &Percentiles{P50: 100, P95: 190, P99: 198}, percentilesOf(values))
	require.Equal(t, &Percentiles{P50: 2, P95: 3, P99: 3}, percentilesOf([]float64{3, 1, 2}))
}

func TestSummarise(t *testing.T) {
	ms := time.Millisecond
	r := Summarise("p", []Sample{
		{TTFT: 10 * ms, E2E: 50 * ms, SinceFirst: 40 * ms, PromptTokens: 100, CachedTokens: 48, OutputTokens: 5},
		{TTFT: 20 * ms, E2E: 20 * ms, PromptTokens: 100, OutputTokens: 1, Turn: 1}, // no TPOT
		{Err: errors.New("first"), PromptTokens: 1000},
		{Err: errors.New("second")},
	}, endpick.SLO{TTFT: 15 * ms, TPOT: 10 * ms})
	require.Equal(t, 4, r.Requests)
	require.Equal(t, 2, r.Failed)
	require.EqualError(t, r.FirstErr, "first")
	require.Equal(t, &Percentiles{P50: 10, P95: 20, P99: 20}, r.TTFT)
	require.Equal(t, &Percentiles{P50: 10, P95: 10, P99: 10}, r.TPOT)
	require.Equal(t, &Percentiles{P50: 20, P95: 50, P99: 50}, r.E2E)
	require.Equal(t, 0.24, *r.PrefixHitRatio)
	require.Zero(t, *r.LaterHitRatio)
	require.Equal(t, 0.25, *r.SLOMet, "the first alone: two failed, one came late")
}

func TestMeets(t *testing.T) {
	const ms = time.Millisecond
	s := Sample{TTFT: 100 * ms, SinceFirst: 90 * ms, OutputTokens: 10}
	for slo, want := range map[endpick.SLO]bool{
		{}:                               true,
		{TTFT: 100 * ms}:                 true,
		{TTFT: 99 * ms}:                  false,
		{TPOT: 10 * ms}:                  true,
		{TPOT: 9 * ms, TTFT: time.Hour}:  false,
		{TPOT: 10 * ms, TTFT: 100 * ms}:  true,
		{TPOT: time.Hour, TTFT: 99 * ms}: false,
	} {
		require.Equal(t, want, s.meets(slo), "%v", slo)
	}
	require.True(t, (&Sample{OutputTokens: 1}).meets(endpick.SLO{TPOT: 1}))
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
