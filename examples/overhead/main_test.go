package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The proxies are this program itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-proxy" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// Each part runs, and its table has the right rows. The figures are not checked:
// a machine may be busy.
func TestOverhead(t *testing.T) {
	var out, failures bytes.Buffer
	args := strings.Fields("-rounds 1 -work 1 -search 20 -worst 2 -most 16 -streams 10 -rate 20 -duration 200ms -record")
	require.Zero(t, run(t.Context(), args, &out, &failures), failures.String())
	for _, row := range []string{"| 1 |", "| 100 |", "| 4 KiB of text |", "| 16 KiB |", "| straight |", "| plain |", "| endpick |", "| ratio |"} {
		assert.Contains(t, out.String(), "\n"+row)
	}
}

// Concurrent requests are measured as well.
func TestBeside(t *testing.T) {
	var out, failures bytes.Buffer
	args := strings.Fields("-only streams -beside -rounds 2 -streams 10 -rate 20 -duration 200ms")
	require.Zero(t, run(t.Context(), args, &out, &failures), failures.String())
	assert.Contains(t, out.String(), "| ratio of what is added |")
}

func TestArguments(t *testing.T) {
	for _, args := range []string{"-only nothing", "-rounds 0", "-work 0", "-streams 0", "-search -1", "more", "-duration 0s", "-proxy none -backend http://a:1"} {
		var out, failures bytes.Buffer
		assert.NotZero(t, run(t.Context(), strings.Fields(args), &out, &failures), args)
		assert.Contains(t, failures.String(), "overhead: ", args)
	}
	require.Zero(t, run(t.Context(), []string{"-help"}, &bytes.Buffer{}, &bytes.Buffer{}))
}
