package main

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of docs/clients.md")

// page contains the tables, after this line.
const (
	page = "../../../../docs/clients.md"
	mark = " -run Ways ./live -update -->\n"
)

// All ways differ exactly as docs/clients.md says, and leave nothing behind.
func TestWays(t *testing.T) {
	r := rig.Must(suite.Compare(t.Context(), comparedWays(), suite.Scenarios(), io.Discard))
	require.NoError(t, r.Err())
	head, tables, ok := strings.Cut(string(rig.Must(os.ReadFile(page))), mark)
	require.True(t, ok, "%s has no place for the tables", page)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(head+mark+"\n"+r.Markdown()), 0o644))
		return
	}
	assert.Equal(t, "\n"+r.Markdown(), tables, "run with -update")
}

func TestWaysRuns(t *testing.T) {
	var out strings.Builder
	require.Zero(t, command(t.Context(), []string{"ways", "-run", "n = 2", "-v"}, &out, io.Discard))
	assert.Contains(t, out.String(), "ok: 2 scenarios, directly and on 2 ways")
	assert.Contains(t, out.String(), "chat, n = 2, Caddy: response header Via: \"1.1 Caddy\", but directly none\n")
	assert.Equal(t, 1, command(t.Context(), []string{"ways", "-run", "unheard of"}, &out, &out))
	assert.Contains(t, out.String(), "ways: no scenario")
}

func TestArguments(t *testing.T) {
	for _, args := range []string{
		"ways more", "ways -v=x",
		"soak more", "soak -duration 0s", "soak -pace 1h", "soak -servers 4", "soak -leases -1", "soak -clients 0", "soak -seed x",
	} {
		var out, failures strings.Builder
		assert.Equal(t, 2, command(t.Context(), strings.Fields(args), &out, &failures), args)
		assert.Contains(t, failures.String(), strings.Fields(args)[0]+": ", args)
	}
	for _, verb := range []string{"ways", "soak"} {
		assert.Zero(t, command(t.Context(), []string{verb, "-help"}, new(strings.Builder), new(strings.Builder)))
	}
	var failures strings.Builder
	assert.Equal(t, 2, command(t.Context(), nil, new(strings.Builder), &failures))
	assert.Contains(t, failures.String(), "want ways or soak")
}
