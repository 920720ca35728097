package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/race"
)

// The workload whose decisions are closest of all, with reports that are always fresh:
// the choice is that among all in 99.5 % of decisions, and nearly as good in the rest.
func TestTheShortlistChoosesTheSame(t *testing.T) {
	if race.Enabled {
		t.Skip("there is one goroutine and nothing to race")
	}
	a, err := cell{scenario: "B", servers: 100, load: "high", requests: 6500, seed: 1}.audit()
	require.NoError(t, err)
	require.Greater(t, a.Narrowed, 1000)
	assert.Greater(t, float64(a.Same)/float64(a.Narrowed), 0.995)
	assert.Less(t, a.Regret/float64(a.Narrowed), 0.0005)
	assert.Less(t, float64(a.Listed)/float64(a.Narrowed), 60.0)
}

func TestRows(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run([]string{"-workload", "C", "-load", "low", "-servers", "3", "-requests", "20"}, &out))
	assert.Len(t, strings.Split(strings.TrimSpace(out.String()), "\n"), 2)
	for _, args := range [][]string{{"-servers", "x"}, {"-load", "x"}, {"-workload", "x"}, {"x"}, {"-requests", "0"}} {
		assert.Error(t, run(args, io.Discard), args)
	}
}
