package protocol

import "github.com/endpick/endpick"

// Effect is something that another replica has told, to be done in the order of effects.
type Effect struct {
	Kind EffectKind
	// Lease is the request, but for Holds and Outcomes.
	Lease *Lease
	// Request is what to mirror: of Opened and Holds. Nobody changes its blocks.
	Request endpick.Request
	// Outcome is how it has ended: of Ended.
	Outcome endpick.Outcome
	// Endpoint, Failed and Served are those of Outcomes.
	Endpoint       string
	Failed, Served int
}

// EffectKind says what an Effect is.
type EffectKind uint8

// The kinds of effects.
const (
	Opened   EffectKind = iota // a request has been routed
	Answered                   // its first token has come
	Ended                      // it has ended
	Holds                      // an endpoint holds the blocks of a request of the past
	Outcomes                   // requests have fared so at an endpoint
)

// Lease is a request in flight of another replica.
type Lease struct {
	// Mirror is the caller's, who does what effects say.
	Mirror endpick.Lease

	facts
	number   uint64
	answered bool
	late     bool   // told of after it was routed: its times are not held against what was known then
	leaf     uint64 // of its blocks, if they are known
	depth    int
}
