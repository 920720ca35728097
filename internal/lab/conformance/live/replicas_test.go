package main

import (
	"context"
	"flag"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The longest of the runs, shortened: real HTTP, and NATS is killed meanwhile.
func TestReplicas(t *testing.T) {
	flags := flag.NewFlagSet("", flag.PanicOnError)
	o := replicasFlags(flags).(*replicasOptions)
	require.NoError(t, flags.Parse([]string{"-duration", "6s", "-rate", "12"}))
	o.servers = 3
	r := run{name: "killed", gateways: 2, how: everything, kill: true}
	res, err := r.play(context.Background(), o, o.Conversations())
	require.NoError(t, err)
	assert.Positive(t, res.outage)
	assert.Len(t, res.status, 2)
	var out strings.Builder
	all := []result{res, res, res, res, res}
	require.NoError(t, table(&out, all))
	require.NoError(t, summary(&out, all))
	assert.Regexp(t, regexp.MustCompile(`(?m)^ok: \d+ requests, none lost; .*no lease left$`), out.String())
}
