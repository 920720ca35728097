package delay

import "github.com/endpick/endpick/internal/lab/rig"

// newMarginal is what New returns.
func newMarginal(config Config) *marginal { return rig.Must(New(config)).(*marginal) }

// Kinds is the number of known kinds of server.
func Kinds(m Marginal) int { return len(m.(*marginal).learned.kinds.known) }
