package main

import (
	"context"
	"errors"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSend(t *testing.T) {
	config := all.LMetric()
	config.Endpoints = []endpick.Endpoint{{ID: "a", Models: []string{"llama"}}, {ID: "b", Models: []string{"llama"}}}
	router, err := endpick.New(config)
	require.NoError(t, err)
	monitor, err := health.New(health.Config{Router: router})
	require.NoError(t, err)
	w := &worker{router: router, health: monitor, seed: prefix.Scope{Model: "llama"}.Seed()}
	prompt := make([]uint32, 100)
	broken := errors.New("broken")
	var asked []string
	send := func(ctx context.Context, tokens int, failures ...error) error {
		asked = nil
		return w.send(ctx, prompt, func(e *endpick.Endpoint, token func()) (endpick.Outcome, error) {
			asked = append(asked, e.ID)
			for range tokens {
				token()
			}
			return endpick.Outcome{InputTokens: len(prompt), OutputTokens: tokens}, failures[len(asked)-1]
		})
	}
	require.NoError(t, send(t.Context(), 1, nil))
	require.NoError(t, send(t.Context(), 0, broken, nil))
	assert.ElementsMatch(t, []string{"a", "b"}, asked, "another is asked")
	assert.ErrorIs(t, send(t.Context(), 0, errors.New("other"), broken), broken, "what the last has failed of")
	assert.ErrorIs(t, send(t.Context(), 1, broken), broken, "too late to ask another")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, send(gone, 0, broken), broken, "nobody waits")
	for range 10 {
		assert.ErrorIs(t, send(t.Context(), 0, errRefused), errRefused)
		assert.Len(t, asked, 1, "nobody else is asked")
	}
	assert.Zero(t, router.Stats().OpenLeases)
}
