package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The gateway beside a round-robin, with a server killed and started again.
func TestAgainst(t *testing.T) {
	t.Parallel()
	plot := filepath.Join(t.TempDir(), "against.svg")
	args := []string{"against", "-routers", "endpick,round-robin", "-workload", "chat", "-seed", "1", "-duration", "2s", "-kill"}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(append(args, "-format", "json", "-plot", plot), &stdout, &stderr), stderr.String())
	var rows []*againstRow
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &rows))
	require.Len(t, rows, 2)
	for i, name := range []string{"endpick", "round-robin"} {
		assert.Equal(t, name, rows[i].Router)
		require.Len(t, rows[i].Seeds, 1)
		assert.Greater(t, rows[i].Seeds[0].Requests, 5)
	}
	ours, theirs := rows[0].Seeds[0], rows[1].Seeds[0]
	assert.Greater(t, *ours.PrefixHitRatio, *theirs.PrefixHitRatio+0.1)
	assert.LessOrEqual(t, ours.Failed, 2)
	drawn, err := os.ReadFile(plot)
	require.NoError(t, err)
	assert.Contains(t, string(drawn), ">round-robin</text>")

	var table strings.Builder
	require.NoError(t, writeAgainst(&table, rows))
	assert.Regexp(t, `(?m)^ +endpick +\d+ +\d+ +0.\d\d +\d$`, table.String())
}
