package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The samples that are shipped are predicted as docs/results.md says.
func TestEvaluate(t *testing.T) {
	for name, args := range map[string][]string{
		"table.txt":   nil,
		"report.json": {"-forget", "rag_high_kv", "-format", "json"},
		"delay.json":  {"-delay", "-format", "json"},
	} {
		golden(t, filepath.Join("evaluate", name), simulate(t, with([]string{"evaluate"}, args...)...))
	}
	page := string(rig.Must(os.ReadFile("../../docs/results.md")))
	assert.Contains(t, page, "$ go run ./examples/simulate evaluate\n"+string(rig.Must(os.ReadFile("testdata/evaluate/table.txt")))+"```\n")
	assert.Contains(t, simulate(t, "evaluate", "-forget", "rag_high_kv"), "\nforgetting: MAPE ")
}

// The accuracy that the predictor must reach on the shared samples. It holds for other engines too;
// these figures were measured to be attainable here.
func TestAccuracyOnTheSharedSamples(t *testing.T) {
	if testing.Short() || rig.Race {
		t.Skip("goes through 60,000 rows, in one goroutine")
	}
	const path = "../../../shared/bench/latency_samples.csv.gz"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s beside the repository", "../shared/bench/latency_samples.csv.gz")
	}
	var r accuracyReport
	require.NoError(t, json.Unmarshal([]byte(simulate(t, "evaluate", "-csv", path, "-forget", "saturation", "-format", "json")), &r))
	require.LessOrEqual(t, r.TTFT.MAPE, 4.8)
	require.LessOrEqual(t, r.TTFT.P90, 8.8)
	require.LessOrEqual(t, r.TPOT.MAPE, 3.2)
	require.LessOrEqual(t, r.TPOT.P90, 6.3)
	require.LessOrEqual(t, r.Forgetting.TTFT, 6.0)
	require.LessOrEqual(t, r.Forgetting.TPOT, 5.0)
	require.InDelta(t, 90, r.Coverage.TTFT, 2)
	require.InDelta(t, 90, r.Coverage.TPOT, 2)
	require.GreaterOrEqual(t, r.Coverage.WorstRegime, 80.0)
	require.GreaterOrEqual(t, r.Coverage.WorstBlock, 80.0)
}
