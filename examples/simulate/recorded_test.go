package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// recorded is what a server with this profile does with some requests, in the
// format of LLMServingSim's recordings.
func recorded(t *testing.T, profile string) string {
	p, err := engine.ProfileByName(profile)
	require.NoError(t, err)
	var records []sim.Record
	for i := range 80 {
		records = append(records, sim.Record{
			ArrivalMillis: float64(i*150 + i*i%7*40), InputTokens: 100 + i*i%13*180, OutputTokens: 20 + i*i%11*12,
		})
	}
	done, err := sim.Replay(records, sim.Deployment{Engine: engine.Config{Profile: p}})
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("input_tokens,output_tokens,queued_s,scheduled_s,first_token_s,last_token_s\n")
	for _, r := range done {
		fmt.Fprintf(&b, "%d,%d,%g,%g,%g,%g\n", r.InputTokens, r.OutputTokens, r.ArrivalMillis/1000, r.ArrivalMillis/1000, r.FirstTokenMillis/1000, r.LastTokenMillis/1000)
	}
	return b.String()
}
