package delay

import (
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// newMarginal is what New returns.
func newMarginal(t require.TestingT, config Config) *marginal {
	m, err := New(config)
	require.NoError(t, err)
	return m.(*marginal)
}

// ExpectedOutput is the expected length of the response to a request, in tokens.
func ExpectedOutput(m Marginal, req *endpick.Request) float64 {
	return m.(*marginal).learned.lengths.of(req)
}

// Kinds is the number of known kinds of server.
func Kinds(m Marginal) int { return len(m.(*marginal).learned.kinds.known) }

// WeightOf is the weight of a millisecond of waiting for a request.
func WeightOf(m Marginal, req *endpick.Request) float64 { return m.(*marginal).weight(req) }

// Recomputing is the mean time of a prompt token in milliseconds.
func Recomputing(m Marginal) float64 { return m.(*marginal).learned.recomputing() }
