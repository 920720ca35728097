package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Best fit fills an endpoint until a target is only just kept. With the expected
// latency, the target is missed every other time; the upper bound leaves a margin.
func TestWhatTheSpreadBuys(t *testing.T) {
	slowUnderRace(t)
	text := simulate(t, "-workload", "B", "-endpoints", "5", "-rate", "3.5", "-requests", "1500", "-seed", "1,2", "-format", "json",
		"-slo", "tight:0.2:500:24,loose:0.6:3000:100", "-policies", "predicted-latency,predicted-latency:paper")
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(text), &rows))
	with := (*rows[0].SLOAttainment + *rows[1].SLOAttainment) / 2
	without := (*rows[2].SLOAttainment + *rows[3].SLOAttainment) / 2
	t.Logf("attained: %.3f, %.3f without the spread", with, without)
	assert.Greater(t, with, 0.92)
	assert.Less(t, without, with-0.03)
}
