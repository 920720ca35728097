package endpick

import (
	"iter"
	"sync/atomic"
	"time"
)

// RoutedObserver is notified of each lease before Route returns it.
//
// A stage that wants to know how requests went implements one or more of the observers. The calls
// for one lease come one after another, Routed first and Done last, each at most once; calls for
// different leases are concurrent. An observer must not call the router or methods of the lease.
//
// Metrics, and a stage inside another one, hear of requests if a stage has a method Observer() any
// that returns them, several as a []any; each hears once, however many stages return it. A type
// that embeds an observer is one itself: it needs no such method, with which all would count twice.
type RoutedObserver interface {
	Routed(e *Event)
}

// FirstTokenObserver is notified of the first token of each response that has one.
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
// on it may end later, with an EndpointRef of the removed generation. It must not call
// the router.
type EndpointObserver interface {
	EndpointRemoved(ref EndpointRef)
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
	// Now is the time of the call.
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

	timed bool // a mirrored request whose router has said how long it took
}

// TTFT is the measured time to first token; false if there was none, or if nobody has measured
// it, because the request is adopted.
func (e *Event) TTFT() (time.Duration, bool) {
	if e.FirstTokenAt.IsZero() || !e.measured() {
		return 0, false
	}
	return e.FirstTokenAt.Sub(e.RoutedAt), true
}

// TPOT is the measured mean time per output token after the first; false if there
// were fewer than two tokens, no first token, several parallel responses, or if nobody has
// measured it.
func (e *Event) TPOT() (time.Duration, bool) {
	a := e.adopted()
	unknown := !e.timed && a != nil && a.Mirrored
	if e.FirstTokenAt.IsZero() || unknown || e.OutputTokens < 2 || e.Request != nil && e.Request.Responses > 1 {
		return 0, false
	}
	return e.LastTokenAt.Sub(e.FirstTokenAt) / time.Duration(e.OutputTokens-1), true
}

// E2E is the measured time of the whole request, in Done; false if nobody has measured it.
func (e *Event) E2E() (time.Duration, bool) { return e.Now.Sub(e.RoutedAt), e.measured() }

// measured reports whether it is known when the request was sent.
func (e *Event) measured() bool { return e.timed || e.adopted() == nil }

func (e *Event) adopted() *Adopted {
	if e.Request == nil {
		return nil
	}
	return e.Request.Adopted
}

// LeaseRef is the dense handle of a lease, as EndpointRef is that of an endpoint.
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
	// LoadTime is how long the engine says that it has loaded the model into memory for this
	// request. Zero: not given, or the model was there.
	LoadTime time.Duration
	// Blocks are the chained hashes of prompt and response, from the beginning.
	// They continue Request.Blocks, with blocks of the same length: what the
	// client will send back in its next turn, as far as the engine has computed
	// exactly that: the last token of a response has been sent, but no step has read it,
	// so that it does not count. They stop before anything that the chat template drops from a
	// response, such as reasoning. Nil: not known. The caller owns the slice and
	// may reuse it as soon as Done has returned; no observer keeps it.
	Blocks []uint64
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
	return wordFor(s, "completed", "failed", "canceled", "lost", "refused")
}

func wordFor[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// Exclusive is embedded by a stage that keeps state for endpoints or leases.
// The handles of one router mean nothing in another, so New and SetPolicy
// refuse a stage that another router uses already. The policies of one router
// may share it.
type Exclusive struct{ owner atomic.Pointer[owner] }

// owner stands for a router.
type owner struct{ _ byte }

func (o *Exclusive) exclusive() *Exclusive { return o }

// own makes a stage that belongs to a single router the property of r. first reports
// whether it was nobody's; ok, whether it is no other router's.
func own(stage any, r *owner) (first, ok bool) {
	b, single := stage.(interface{ exclusive() *Exclusive })
	if !single {
		return false, true
	}
	o := b.exclusive()
	first = o.owner.CompareAndSwap(nil, r)
	return first, o.owner.Load() == r
}

// disown undoes own, for a router or policy that could not be made.
func disown(stage any, r *owner) {
	if b, single := stage.(interface{ exclusive() *Exclusive }); single {
		b.exclusive().owner.CompareAndSwap(r, nil)
	}
}

// PerEndpoint is the state that a stage keeps for each endpoint, under its
// own lock. A stage that has one embeds [Exclusive], and calls Drop in
// EndpointRemoved if the state should go with the endpoint. The zero value is ready to
// use; it is not safe for concurrent use.
//
// It is an array by the handle's slot instead of a map. A handle whose slot has been
// reused finds nothing; its value is forgotten when the new handle is first used. Slots
// are reused, so it is about as long as the largest number of endpoints that ever existed
// at one time.
type PerEndpoint[T any] struct{ table[EndpointRef, T] }

// PerLease is the state that a stage keeps for each lease: created in Routed,
// dropped in Done. Otherwise it is like [PerEndpoint].
type PerLease[T any] struct{ table[LeaseRef, T] }

// table keeps a T for each endpoint or lease.
type table[H EndpointRef | LeaseRef, T any] struct {
	// Forget, if not nil, is called with a value that is about to be forgotten, by
	// Drop or because another handle takes over the slot.
	Forget func(H, *T)

	// Separate from values, so that a lookup touches little memory.
	generations []generation
	values      []T
}

// generation says which handle a slot belongs to. The zero value: none.
type generation struct {
	number  uint32
	dropped bool // the value of this generation has been dropped
}

// At returns the value of the handle, which starts as a zero T. It returns nil
// for the zero handle, and for one that has been dropped or whose slot has been
// reused, as in a late call. The pointer is valid until the next call of At.
func (t *table[H, T]) At(h H) *T {
	ref := EndpointRef(h)
	if ref.Generation == 0 {
		return nil
	}
	for uint64(ref.Slot) >= uint64(len(t.values)) {
		var zero T
		t.values = append(t.values, zero)
		t.generations = append(t.generations, generation{})
	}
	g := &t.generations[ref.Slot]
	switch {
	case g.number == ref.Generation:
		if g.dropped {
			return nil
		}
	case g.number != 0 && int32(ref.Generation-g.number) < 0:
		return nil
	default:
		t.forget(ref.Slot)
		*g = generation{number: ref.Generation}
	}
	return &t.values[ref.Slot]
}

// Find returns the value of the handle, or nil if there is none. The pointer is
// valid until the next call of At.
func (t *table[H, T]) Find(h H) *T {
	ref := EndpointRef(h)
	if ref.Generation == 0 || uint64(ref.Slot) >= uint64(len(t.generations)) ||
		t.generations[ref.Slot] != (generation{number: ref.Generation}) {
		return nil
	}
	return &t.values[ref.Slot]
}

// Drop forgets the value of the handle and of all earlier generations of its
// slot; At and Find return nil for them from now on.
func (t *table[H, T]) Drop(h H) {
	if t.At(h) != nil {
		slot := EndpointRef(h).Slot
		t.forget(slot)
		t.generations[slot].dropped = true
	}
}

// forget empties a slot.
func (t *table[H, T]) forget(slot uint32) {
	g, v := t.generations[slot], &t.values[slot]
	if g.number == 0 || g.dropped {
		return
	}
	if t.Forget != nil {
		t.Forget(H(EndpointRef{Slot: slot, Generation: g.number}), v)
	}
	var zero T
	*v = zero
}

// All yields every value, in the order of slots. At must not be called
// meanwhile.
func (t *table[H, T]) All() iter.Seq2[H, *T] {
	return func(yield func(H, *T) bool) {
		for slot, g := range t.generations {
			if g.number != 0 && !g.dropped && !yield(H(EndpointRef{Slot: uint32(slot), Generation: g.number}), &t.values[slot]) {
				return
			}
		}
	}
}
