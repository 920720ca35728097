package protocol

import (
	"time"

	"github.com/endpick/endpick"
)

// Effect is something that another replica has reported, to be applied in order.
type Effect struct {
	Kind EffectKind
	// Lease is the request, except for Holds and Outcomes.
	Lease *Lease
	// Request is what to mirror, for Opened and Holds. Its blocks must not be changed.
	Request endpick.Request
	// Outcome is how it has ended, for Ended.
	Outcome Outcome
	// Endpoint, Failed and Served are for Outcomes.
	Endpoint       string
	Failed, Served int
}

// EffectKind says what an Effect is.
type EffectKind uint8

// The kinds of effects.
const (
	Opened   EffectKind = iota // a request has been routed
	Answered                   // its first token has arrived
	Ended                      // it has ended
	Holds                      // an endpoint holds the blocks of a past request
	Outcomes                   // how many requests an endpoint has failed and served
)

// Lease is a request of another replica that is in flight.
type Lease struct {
	// Mirror is set by the caller, who applies the effects, and Adopted, to set its times.
	Mirror  endpick.Lease
	Adopted *endpick.Adopted

	facts
	number   uint64
	answered bool
	late     bool   // reported after it was routed: its times say nothing of predictions made then
	leaf     uint64 // its last block, if its blocks are known
	depth    int
}

// Outcome is how a request has ended, and how long it took, as its own replica has measured it.
type Outcome struct {
	endpick.Outcome
	Took, TTFT time.Duration // to the end and to the first token; zero: not known
}
