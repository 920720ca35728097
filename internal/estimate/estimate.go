// Package estimate is the interface by which package predict offers cheap estimates of
// its predictions, the linear part of its models, to package shortlist.
package estimate

import "github.com/endpick/endpick"

// Linear is a latency of one request in milliseconds, as a linear function of the
// candidate. Its coefficients are not negative.
type Linear struct {
	Constant float64
	KVUsage  float64
	Waiting  float64
	Running  float64
	Prefill  float64 // per token of InFlight.PrefillTokens
	Fresh    float64 // per prompt token that the candidate does not hold
	Resident float64 // per token of InFlight.ContextTokens
}

// Of returns the latency on a candidate that lacks so many tokens of the prompt.
func (l *Linear) Of(c *endpick.Candidate, fresh float64) float64 {
	load := float64(l.Waiting*c.Waiting) + float64(l.Running*c.Running) + float64(l.KVUsage*c.KVUsage)
	work := float64(l.Prefill*float64(c.InFlight.PrefillTokens)) + float64(l.Resident*float64(c.InFlight.ContextTokens))
	return l.Constant + load + work + float64(l.Fresh*fresh)
}

// Source is embedded by a predictor with estimates. It has no methods, so that
// none is promoted.
type Source struct{ model Model }

// Model gives a predictor's estimates.
type Model interface {
	// Estimate returns the time to first token, and the time for each token after it;
	// for a response that does not stream, twice the whole time. model is a number for
	// the served model. ok is false if there is no linear part.
	Estimate(req *endpick.Request) (first, rest Linear, model uint32, ok bool)
	// Predicts reports whether endpoints of this variant are predicted.
	Predicts(req *endpick.Request, variant string) bool
	// Silent counts the candidates with these indices whose endpoints have stopped
	// answering.
	Silent(req *endpick.Request, candidates []endpick.Candidate, indices []int32) int
}

// NewSource returns a Source of m's estimates.
func NewSource(m Model) Source { return Source{m} }

// ModelOf returns the model of a Source; nil for the zero Source.
func ModelOf(s Source) Model { return s.model }
