package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestCheapConforms(t *testing.T) {
	scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return Cheap{} })
}

func TestSend(t *testing.T) {
	config := preset.LMetric()
	config.Endpoints = []endpick.Endpoint{{ID: "a", Models: []string{"llama"}}}
	router, err := endpick.New(config)
	require.NoError(t, err)
	w := &worker{router: router, seed: prefix.Scope{Model: "llama"}.Seed()}
	prompt := make([]uint32, 100)
	require.NoError(t, w.send(prompt, func(e *endpick.Endpoint, token func()) error {
		assert.Equal(t, "a", e.ID)
		token()
		return nil
	}))
	broken := errors.New("broken")
	assert.ErrorIs(t, w.send(prompt, func(*endpick.Endpoint, func()) error { return broken }), broken)
	assert.Zero(t, router.Stats().OpenLeases)
}
