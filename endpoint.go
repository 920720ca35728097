package endpick

import (
	"math"
	"strconv"
	"time"
)

// Endpoint describes one inference server, or one data-parallel rank of one.
// The router keeps a copy; change it with [Router.Update].
type Endpoint struct {
	// ID names the endpoint, uniquely in a router. Empty: Address, and
	// "#rank" after it where there is a rank.
	ID string
	// Address is where the server listens: "host:port" or a URL. The router
	// does not read it; package transport does.
	Address string
	// Ranked says that Rank counts: the endpoint is one data-parallel rank
	// of the server at Address.
	Ranked bool
	Rank   int

	// Models and Adapters are what it serves, by the names that requests
	// use. If both are empty, it serves every model.
	Models   []string
	Adapters []string
	// Role says which phases of a request it takes.
	Role Role
	// Labels are the host application's own: zone, pool, price.
	Labels map[string]string
	// Variant names its accelerator class and runtime, such as "h100-tp2".
	// Endpoints of one variant behave alike; the predictor tells variants
	// apart. Empty is a variant like any other.
	Variant string

	// MaxSequences is how many requests it runs at once. Zero: unknown.
	MaxSequences int
	// KVTokens is how many tokens its KV cache holds. Zero: unknown.
	KVTokens int
}

// Role says which phases of a request an endpoint takes.
type Role uint8

// The roles. The zero value takes both phases.
const (
	Both Role = iota
	PrefillOnly
	DecodeOnly
)

// String returns "both", "prefill" or "decode".
func (r Role) String() string {
	switch r {
	case Both:
		return "both"
	case PrefillOnly:
		return "prefill"
	case DecodeOnly:
		return "decode"
	}
	return "role(" + strconv.Itoa(int(r)) + ")"
}

func (e *Endpoint) id() string {
	if e.ID != "" {
		return e.ID
	}
	if e.Ranked {
		return e.Address + "#" + strconv.Itoa(e.Rank)
	}
	return e.Address
}

func (e *Endpoint) validate() error {
	switch {
	case e.ID == "" && e.Address == "":
		return &EndpointError{ID: "", Reason: "has neither ID nor address", err: ErrBadEndpoint}
	case e.Rank < 0:
		return &EndpointError{ID: e.id(), Reason: "rank is negative", err: ErrBadEndpoint}
	case e.MaxSequences < 0:
		return &EndpointError{ID: e.id(), Reason: "MaxSequences is negative", err: ErrBadEndpoint}
	case e.KVTokens < 0:
		return &EndpointError{ID: e.id(), Reason: "KVTokens is negative", err: ErrBadEndpoint}
	case e.Role > DecodeOnly:
		return &EndpointError{ID: e.id(), Reason: "role is unknown", err: ErrBadEndpoint}
	}
	return nil
}

// serves reports whether the endpoint takes requests for the model or adapter.
func (e *Endpoint) serves(name string) bool {
	if len(e.Models) == 0 && len(e.Adapters) == 0 {
		return true
	}
	for _, m := range e.Models {
		if m == name {
			return true
		}
	}
	for _, a := range e.Adapters {
		if a == name {
			return true
		}
	}
	return false
}

// Ref is the dense handle of an endpoint in its router: stateful policies keep
// what they know in a slice indexed by Slot and drop it when Generation has
// changed, because slots are used again. Generations start at 1, so that the
// zero Ref is nobody's.
type Ref struct {
	Slot       uint32
	Generation uint32
}

// Signals is a set of the signals in an engine's report.
type Signals uint8

// The signals of a [Load].
const (
	WaitingSignal Signals = 1 << iota
	RunningSignal
	KVUsageSignal

	allSignals = WaitingSignal | RunningSignal | KVUsageSignal
)

// Load is what an engine says of itself.
type Load struct {
	Waiting float64 // requests in its queue
	Running float64 // requests in its batch
	KVUsage float64 // share of its KV cache in use, in [0, 1]

	// Absent lists the signals that the engine does not report; their fields
	// are not read.
	Absent Signals
	// Adapters are the adapters that are loaded now. Nil: not reported.
	Adapters []string
	// Mark is what [Router.Mark] returned when the engine was asked. The zero
	// Mark: the report is as fresh as the call of Report.
	Mark Mark
}

// clean returns the load without its broken signals, and an error that names
// the first of them.
func (l Load) clean(id string) (Load, error) {
	var err error
	check := func(s Signals, name string, v, most float64) {
		if l.Absent&s != 0 || (v >= 0 && v <= most) {
			return
		}
		l.Absent |= s
		if err == nil {
			err = &LoadError{ID: id, Signal: name, Value: v}
		}
	}
	check(WaitingSignal, "waiting", l.Waiting, math.MaxInt32)
	check(RunningSignal, "running", l.Running, math.MaxInt32)
	check(KVUsageSignal, "KV usage", l.KVUsage, 1)
	return l, err
}

// Mark remembers what the router had in flight on an endpoint at one moment,
// so that a report which was asked for at that moment can be corrected by what
// has been routed since. The zero Mark stands for no moment.
type Mark struct {
	ref        Ref
	at         time.Time
	requests   int64
	prefilling int64
}

// InFlight is what the router itself has on an endpoint: requests that were
// routed there and are not done. It is exact, and right when Route returns.
type InFlight struct {
	// Requests are the open leases.
	Requests int
	// Prefilling are those of them that still wait for their first token.
	Prefilling int
	// PrefillTokens, Q, are the prompt tokens of those, less what the prefix
	// index expected to be cached.
	PrefillTokens int
	// ContextTokens are the prompt tokens of all open leases: not yet
	// prefilled, or prefilled and still resident.
	ContextTokens int
	// OutputTokens are the tokens generated so far for the open leases.
	OutputTokens int
}
