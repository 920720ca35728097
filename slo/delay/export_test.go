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
func ExpectedOutput(m Marginal, req *endpick.Request) float64 { return m.(*marginal).lengths.of(req) }

// Kinds is the number of known kinds of server.
func Kinds(m Marginal) int { return len(m.(*marginal).kinds) }

// EvictionOf is what one prompt token's place in a cache costs others, as a multiple of the
// time to compute a token.
func EvictionOf(m Marginal) float64 { return m.(*marginal).eviction() / m.(*marginal).recomputing() }

// Terms are parts of the cost that a test leaves out.
type Terms = terms

const (
	Horizon = horizon
	Room    = room
	OwnPace = ownPace
)

// Without leaves terms out.
func Without(m Marginal, t Terms) Marginal {
	m.(*marginal).without = t
	return m
}

// WeightOf is the weight of a millisecond of waiting for a request.
func WeightOf(m Marginal, req *endpick.Request) float64 { return m.(*marginal).weight(req) }

// Recomputing is the mean time of a prompt token in milliseconds.
func Recomputing(m Marginal) float64 { return m.(*marginal).recomputing() }
