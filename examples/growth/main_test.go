package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func growth(t *testing.T, args ...string) string {
	var out strings.Builder
	require.NoError(t, run(append([]string{"-rounds", "1"}, args...), &out, io.Discard))
	return out.String()
}

// Each group is measured and drawn; the results are ratios and megabytes.
func TestCurves(t *testing.T) {
	dir := t.TempDir()
	for _, group := range []string{"tokens", "index", "adapters"} {
		var curves []curve
		require.NoError(t, json.Unmarshal([]byte(growth(t, "-only", group, "-most", "8", "-format", "json", "-out", dir)), &curves))
		require.Len(t, curves, 2, "times and memory")
		for _, c := range curves {
			require.NotEmpty(t, c.Series)
			for _, s := range c.Series {
				require.NotEmpty(t, s.Points)
			}
			drawn, err := os.ReadFile(filepath.Join(dir, c.Name+".svg"))
			require.NoError(t, err)
			require.Contains(t, string(drawn), "<svg")
		}
		for _, p := range curves[0].Series[0].Points {
			require.Positive(t, p.Y)
		}
	}
}

// The fleets have the sizes in the curves' names.
func TestFleets(t *testing.T) {
	for _, s := range []setting{
		{policy: "lmetric", endpoints: 10, tokens: 2048, held: 0.1, blocks: 500},
		{policy: "lmetric", endpoints: 10, tokens: 2048, held: 1, blocks: 500, adapters: 3},
		{policy: "marginal-delay", endpoints: 10, tokens: 2048, blocks: 500},
	} {
		f, err := newFleet(s)
		require.NoError(t, err)
		f.op()
		stats := f.index.Stats()
		require.Len(t, stats.Endpoints, 10)
		for _, e := range stats.Endpoints {
			assert.Equal(t, 500, e.Held)
		}
		f.hash()
		holders := 0
		var receipt endpick.Receipt
		l, err := f.router.Route(endpick.Request{Model: model, Adapter: f.adapter, InputTokens: s.tokens, Blocks: f.hashes, Receipt: &receipt})
		require.NoError(t, err)
		l.Done(endpick.Outcome{})
		for _, v := range receipt.Verdicts {
			if v.Candidate.PrefixTokens > 0 {
				assert.Equal(t, s.tokens/4, v.Candidate.PrefixTokens)
				holders++
			}
		}
		assert.Equal(t, int(s.held*10), holders)
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-only", "x"}, {"-rounds", "0"}, {"-format", "x"}, {"x"}} {
		assert.Error(t, run(args, io.Discard, io.Discard), args)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{1: "1", 999: "999", 1000: "1,000", 1048576: "1,048,576"} {
		assert.Equal(t, want, thousands(n))
	}
}

func TestExponent(t *testing.T) {
	s := series{Points: []point{{1, 1}, {10, 10}, {100, 1000}}}
	assert.InDelta(t, 2, s.exponent(), 1e-12)
}
