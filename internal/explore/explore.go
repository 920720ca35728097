// Package explore decides when stages try what they would not choose, so that
// there is something to learn from.
package explore

import (
	"fmt"

	"github.com/endpick/endpick"
)

// Probability is the probability that a request explores. Zero: never.
type Probability float64

// Default is one request in a hundred (Predicted Latency, "Affinity gate").
const Default = 0.01

// New makes a Probability of a config's two fields for it: p in (0, 1), zero
// for the Default, and disabled. field is the qualified field name for errors.
func New(field string, p float64, disabled bool) (Probability, error) {
	switch {
	case disabled && p != 0:
		return 0, &endpick.ConfigError{Field: field, Reason: "is set and disabled"}
	case disabled:
		return 0, nil
	case p == 0:
		return Default, nil
	case !(p > 0 && p < 1):
		return 0, &endpick.ConfigError{Field: field, Reason: fmt.Sprintf("is %v, outside (0, 1)", p)}
	}
	return Probability(p), nil
}

// Hits reports whether the request explores in the stage with this salt.
func (p Probability) Hits(req *endpick.Request, salt uint64) bool {
	return req.Chance(salt) < float64(p)
}
