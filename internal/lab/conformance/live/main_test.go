package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
