package delay

import (
	"github.com/stretchr/testify/require"
)

// newMarginal is what New returns.
func newMarginal(t require.TestingT, config Config) *marginal {
	m, err := New(config)
	require.NoError(t, err)
	return m.(*marginal)
}

// Kinds is the number of known kinds of server.
func Kinds(m Marginal) int { return len(m.(*marginal).learned.kinds.known) }

// Recomputing is the mean time of a prompt token in milliseconds.
func Recomputing(m Marginal) float64 { return m.(*marginal).learned.recomputing() }
