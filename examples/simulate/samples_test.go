package main

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const header = "t_s,kv_usage_pct,input_tokens,queue_depth,running_requests,prefix_match_pct,inflight_prefill_tokens,ttft_ms,tpot_ms"

func TestParseErrorsNameLineAndColumn(t *testing.T) {
	for _, c := range []struct{ name, csv, want string }{
		{"empty", "", "line 1: no header"},
		{"column missing", "t_s,kv_usage_pct\n1,2\n", `line 1: no column "input_tokens"`},
		{"not a number", header + "\n0,1,2,3,4,5,6,7,8\n0,1,2,3,4,5,6,x7,8\n", `line 3: column "ttft_ms": "x7" is not a number`},
		{"no time", header + "\n,1,2,3,4,5,6,7,8\n", `line 2: column "t_s": "" is not a time in seconds`},
		{"too few fields", header + "\n1,2\n", "record on line 2: wrong number of fields"},
	} {
		_, err := parseSamples(strings.NewReader(c.csv))
		require.EqualError(t, err, c.want, c.name)
	}
}

func TestColumnsAreFoundByName(t *testing.T) {
	s, err := parseSamples(strings.NewReader("tpot_ms,regime,ttft_ms,inflight_prefill_tokens,prefix_match_pct,running_requests,queue_depth,input_tokens,kv_usage_pct,t_s,other\n" +
		"8,night,7,600,25,4,3,200,50,1.5,z\n,night,7,600,25,4,3,200,50,1.5,z\n"))
	require.NoError(t, err)
	require.Len(t, s, 2)
	require.Equal(t, "night", s[0].regime)
	require.Equal(t, 7.0, s[0].TTFT)
	require.Equal(t, 8.0, s[0].TPOT)
	require.True(t, math.IsNaN(s[1].TPOT), "an empty cell is absent, not zero")
	require.Equal(t, 50, s[0].Candidate.PrefixTokens, "25 % of 200 tokens")
	require.Equal(t, 600, s[0].Candidate.InFlight.PrefillTokens)
	require.EqualValues(t, 1.5e9, s[0].At.UnixNano())
}
