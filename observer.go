package endpick

import "time"

// A stage that wants to know how requests went also implements one or more of
// the observers. The calls for one lease come one after another, Routed first
// and Done last, each at most once; calls for different leases are
// concurrent. An observer must not call the router or methods of the lease.
//
// Stages that share an observer return it from a method Observer() any. It is
// notified of each lease once, however many of these stages the policy has. It may have such
// a method itself. A stage that wraps others returns those, several as a []any.

// RoutedObserver is notified of each lease before Route returns it.
type RoutedObserver interface {
	Routed(e *Event)
}

// FirstTokenObserver is notified of the first token of each response that has
// one.
type FirstTokenObserver interface {
	FirstToken(e *Event)
}

// DoneObserver is notified of how each request ended.
type DoneObserver interface {
	Done(e *Event, o *Outcome)
}

// EndpointObserver is implemented by a stage that keeps state for each
// endpoint. EndpointRemoved is called once, when an endpoint is removed; a
// request that was being routed there may still open a lease on it, and leases
// on it may end later, with a Ref of the removed generation. It must not call
// the router.
type EndpointObserver interface {
	EndpointRemoved(ref Ref)
}

// Event tells an observer about one lease. It is valid during the call.
type Event struct {
	// Lease is the dense handle of the lease. After Done has returned, its slot is
	// reused with another generation.
	Lease LeaseRef
	// Request is the routed request; its Blocks are set in Routed only.
	Request *Request
	// Candidate is the chosen candidate as it was when it was chosen.
	Candidate *Candidate
	// Candidates are all that the request could have gone to, including the
	// chosen one and those that filters removed, in no particular order. In
	// Routed only.
	Candidates []Candidate
	// Now is the time of the call: in Done, Now.Sub(RoutedAt) is the latency of the
	// whole request.
	Now time.Time
	// RoutedAt is when Route was called.
	RoutedAt time.Time
	// FirstTokenAt is zero before the first token, and for a response that
	// does not stream unless Lease.FirstToken was called.
	FirstTokenAt time.Time
	// LastTokenAt is the time of the latest call of Tokens or FirstToken.
	LastTokenAt time.Time
	// OutputTokens is the count so far; in Done, the engine's own figure if
	// it gave one.
	OutputTokens int

	untimed bool // a mirrored request whose times are unknown, perhaps not yet
}

// TTFT is the measured time to first token; false if there was none, if the
// request was under way when it was routed, or if the clock has been set back since.
func (e *Event) TTFT() (time.Duration, bool) {
	if e.FirstTokenAt.IsZero() || e.untimed || e.Request != nil && e.Request.UnderWay {
		return 0, false
	}
	ttft := e.FirstTokenAt.Sub(e.RoutedAt)
	return ttft, ttft >= 0
}

// TPOT is the measured mean time per output token after the first; false if there
// were fewer than two tokens, no first token, several parallel responses, or if the
// clock has been set back since.
func (e *Event) TPOT() (time.Duration, bool) {
	if e.FirstTokenAt.IsZero() || e.untimed || e.OutputTokens < 2 || e.Request != nil && e.Request.Responses > 1 {
		return 0, false
	}
	tpot := e.LastTokenAt.Sub(e.FirstTokenAt) / time.Duration(e.OutputTokens-1)
	return tpot, tpot >= 0
}

// LeaseRef is the dense handle of a lease, as Ref is that of an endpoint.
type LeaseRef struct {
	Slot       uint32
	Generation uint32
}

// Outcome says how a request ended. The zero value is a success about which the
// engine reported nothing.
type Outcome struct {
	Status Status
	// InputTokens and OutputTokens are the engine's usage figures. Zero: not
	// given; the lease's own count is used.
	InputTokens  int
	OutputTokens int
	// CachedTokens is usage.prompt_tokens_details.cached_tokens. It is only
	// read if HasCachedTokens is set: null means absent, not zero.
	CachedTokens    int
	HasCachedTokens bool
	// Blocks are the chained hashes of prompt and response, from the beginning.
	// They continue Request.Blocks, with blocks of the same length: what the
	// client will send back in its next turn, as far as the engine has computed
	// exactly that: the last token of a response has been sent, but no step has read it,
	// so that it does not count. They stop before anything that the chat template drops from a
	// response, such as reasoning. Nil: not known. The caller owns the slice and
	// may reuse it as soon as Done has returned; no observer keeps it.
	Blocks []uint64
	// Took is how long a mirrored request ([Request.MirrorOf]) took from Route to
	// Done, and TTFT how long it took to its first token, as measured by the router
	// that sent it; the Event then reports the same. Zero: not known. They are not
	// read for a router's own requests.
	Took, TTFT time.Duration
}

// Status says how a request ended.
type Status uint8

// The ways a request can end.
const (
	Completed Status = iota // the whole response was passed on
	Failed                  // the endpoint did not answer, failed (5xx), or broke off
	Canceled                // the client went away
	Lost                    // the lease was reaped: nobody closed it
	Refused                 // the endpoint refused the request (4xx)
)

// String returns the status in lower case.
func (s Status) String() string {
	switch s {
	case Completed:
		return "completed"
	case Failed:
		return "failed"
	case Canceled:
		return "canceled"
	case Lost:
		return "lost"
	case Refused:
		return "refused"
	}
	return "unknown"
}
