package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The longest of the runs, shortened: real HTTP, and NATS is killed meanwhile.
func TestRun(t *testing.T) {
	var errs strings.Builder
	o, err := parse([]string{"-duration", "6s", "-rate", "12", "-servers", "3"}, &errs)
	require.NoError(t, err, errs.String())
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

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-gateways", "1"}, {"-servers", "0"}, {"-duration", "1s"}, {"-delay", "-1s"}, {"-policy", "none"}, {"-rate", "0"}} {
		var errs strings.Builder
		assert.Equal(t, 2, command(context.Background(), args, &errs, &errs), args)
		assert.Contains(t, errs.String(), "replicas: ")
	}
}
