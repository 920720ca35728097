package delay

import "github.com/endpick/endpick"

// ExpectedOutput is how long the response to a request is expected to be.
func ExpectedOutput(m *Marginal, req *endpick.Request) float64 { return m.lengths.of(req) }

// Kinds is how many kinds of server are known.
func Kinds(m *Marginal) int { return len(m.kinds) }

// WorthOf is what the place of a prompt token in a cache is, in times of what it takes
// to compute one.
func WorthOf(m *Marginal) float64 { return m.worth() / m.common.each[tokens] }
