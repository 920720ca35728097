package delay

import "github.com/endpick/endpick"

// ExpectedOutput is the expected length of the response to a request, in tokens.
func ExpectedOutput(m *Marginal, req *endpick.Request) float64 { return m.lengths.of(req) }

// Kinds is the number of known kinds of server.
func Kinds(m *Marginal) int { return len(m.kinds) }

// WorthOf is the value of one prompt token's place in a cache, as a multiple of the
// time to compute a token.
func WorthOf(m *Marginal) float64 { return m.worth() / m.recomputing() }

// WeightOf is the weight of a millisecond of waiting for a request.
func WeightOf(m *Marginal, req *endpick.Request) float64 { return m.weight(req) }

// Recomputing is the mean time of a prompt token in milliseconds.
func Recomputing(m *Marginal) float64 { return m.recomputing() }
