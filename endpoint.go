package endpick

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Endpoint describes one inference server, or one data-parallel rank of one.
// The router keeps a copy; change it with [Router.Update].
type Endpoint struct {
	// ID names the endpoint uniquely within a router. Empty: the Address,
	// followed by "#rank" if it is Ranked.
	ID string
	// Address is where the server listens: "host:port" or a URL. The router
	// does not read it; package transport does.
	Address string
	// Ranked says that the endpoint is one data-parallel rank of the server
	// at Address, with the number Rank, from 0.
	Ranked bool
	Rank   int

	// Models and Adapters are the names, as used in requests, of what it
	// serves. If there are none, it serves every model. No name is empty.
	Models   []string
	Adapters []string
	// Labels are for the host application: zone, pool, price.
	Labels map[string]string
	// Variant names its kind of accelerator and runtime, such as "h100-tp2".
	// Endpoints of one variant are equally fast; predictors learn each
	// variant separately. Empty is a variant like any other.
	Variant string

	// Engine is the software that runs there: "vllm", "sglang", "llama.cpp", "ollama". Package
	// transport resumes streams at engines that can continue a text. Empty: unknown.
	Engine string

	// Residents are the models that it has, of a server that keeps some in memory and loads
	// others when they are asked for, such as Ollama, or llama.cpp with several models.
	// Package transport/scrape asks for them. Nil: unknown, as for servers that always
	// hold what they serve.
	Residents []Resident
	// ResidentsAt is when the server was asked for them: what the router has seen itself since
	// then counts more. Zero: when the endpoint was updated.
	ResidentsAt time.Time

	// MaxResidents is how many of them it holds in memory at a time. Zero: unknown; slo/delay
	// learns it.
	MaxResidents int

	// MaxInFlight is how many leases it has at most: the router opens no other one there, but for
	// adopted requests. Where all are full, requests wait in package transport. Zero: any number.
	MaxInFlight int
	// MaxContext is the longest prompt that it takes, in tokens. A longer one goes where it fits;
	// see [ContextError]. Zero: unknown, and nothing is too long.
	MaxContext int
	// Tier: it is a candidate only while all that serve the model in lower tiers are excluded,
	// avoided, asleep, full or too small. The first tier is 1. Zero: 1.
	Tier int
	// Weight multiplies its scores, or divides those below zero, such as costs: with 2 it is
	// chosen until it costs twice as much as others. Zero: 1.
	Weight float64

	// WakeTime is how long it takes from transport.Config.Wake until it serves, when it sleeps. Zero:
	// it can't be woken.
	WakeTime time.Duration

	// MaxSequences is how many requests it runs at once. It is no limit: more are
	// routed there, unless a gateway queue (slo/queue) holds them. Zero: unknown.
	MaxSequences int
	// KVTokens is how many tokens its KV cache holds. Zero: unknown; see
	// [github.com/endpick/endpick/prefix.IndexConfig].
	KVTokens int
}

func (e *Endpoint) id() string {
	if e.ID != "" {
		return e.ID
	}
	if e.Ranked {
		return withoutCredentials(e.Address) + "#" + strconv.Itoa(e.Rank)
	}
	return withoutCredentials(e.Address)
}

// withoutCredentials strips the user and password from an address:
// http://user:secret@host becomes http://host.
func withoutCredentials(address string) string {
	scheme, rest := "", address
	if i := strings.Index(address, "://"); i >= 0 {
		scheme, rest = address[:i+3], address[i+3:]
	}
	host := strings.IndexAny(rest+"/", "/?#")
	return scheme + rest[strings.LastIndexByte(rest[:host], '@')+1:]
}

// prepared returns the router's own copy of a valid endpoint, with its ID set.
func (e *Endpoint) prepared() (*Endpoint, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	c := *e
	c.ID = e.id()
	c.Models = slices.Clone(e.Models)
	c.Adapters = slices.Clone(e.Adapters)
	c.Labels = maps.Clone(e.Labels)
	c.Residents = slices.Clone(e.Residents)
	return &c, nil
}

func (e *Endpoint) validate() error {
	bad := func(reason string) error { return &EndpointError{ID: e.id(), Reason: reason, err: ErrBadEndpoint} }
	switch {
	case e.ID == "" && e.Address == "":
		return bad("has neither ID nor address")
	case !printable(e.ID):
		return bad("has an ID that is not printable UTF-8")
	case !printable(e.Address) || strings.ContainsRune(e.Address, ' '):
		return bad("has an address with spaces or control characters, or not in UTF-8")
	case e.Rank > 0 && !e.Ranked:
		return bad("has Rank " + strconv.Itoa(e.Rank) + ", but is not Ranked")
	case e.WakeTime < 0:
		return bad("WakeTime is negative")
	case !(e.Weight >= 0) || math.IsInf(e.Weight, 1):
		return bad("Weight is negative or not finite")
	}
	names := [...]string{"Rank", "MaxResidents", "MaxInFlight", "MaxContext", "Tier", "MaxSequences", "KVTokens"}
	for i, v := range [...]int{e.Rank, e.MaxResidents, e.MaxInFlight, e.MaxContext, e.Tier, e.MaxSequences, e.KVTokens} {
		if v < 0 {
			return bad(names[i] + " is negative")
		}
	}
	// An empty name would never be asked for, and keep the endpoint from serving every model.
	if i := slices.Index(e.Models, ""); i >= 0 {
		return bad("has an empty name at Models[" + strconv.Itoa(i) + "]")
	}
	if i := slices.Index(e.Adapters, ""); i >= 0 {
		return bad("has an empty name at Adapters[" + strconv.Itoa(i) + "]")
	}
	for i := range e.Residents {
		if reason := e.Residents[i].validate(); reason != "" {
			return bad(reason)
		}
	}
	return nil
}

// printable reports whether a name can be shown in logs, headers and metrics.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// servesAll reports whether the endpoint takes requests for any model.
func (e *Endpoint) servesAll() bool { return len(e.Models) == 0 && len(e.Adapters) == 0 }

// names returns the models and adapters that the endpoint lists, without duplicates.
func (e *Endpoint) names() []string {
	names := slices.Concat(e.Models, e.Adapters)
	slices.Sort(names)
	return slices.Compact(names)
}

// EndpointRef is the dense handle of an endpoint in its router; [PerEndpoint] keeps
// state by it. Slots are reused, with another generation. Generations start at
// 1, so the zero EndpointRef belongs to no endpoint.
type EndpointRef struct {
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

// Load is what an engine reports about itself.
type Load struct {
	Waiting float64 // requests in its queue
	Running float64 // requests in its batch
	// KVUsage is the share of its KV cache that running requests hold, in [0, 1]. Blocks
	// that are only kept in case they are asked for again do not count.
	KVUsage float64

	// Asleep says that the engine serves nothing until somebody wakes it. It gets requests only while
	// nobody else who could take them is awake.
	Asleep bool
	// Absent lists the signals that the engine does not report; their fields
	// are not read.
	Absent Signals
	// Adapters are the adapters that are loaded now. Nil: not reported.
	Adapters []string
	// Snapshot is what [Router.Snapshot] returned when the engine was asked. The zero
	// Snapshot: the report is as fresh as the call of Report.
	Snapshot Snapshot
}

// clean returns the load without its broken signals, and an error that names
// the first of them. What is absent is 0 in it.
func (l Load) clean(id string) (Load, error) {
	l.Adapters = slices.Clone(l.Adapters)
	var err error
	check := func(s Signals, name string, v *float64, most float64) {
		if l.Absent&s == 0 && *v >= 0 && *v <= most {
			return
		}
		if l.Absent&s == 0 && err == nil {
			err = &LoadError{ID: id, Signal: name, Value: *v}
		}
		l.Absent |= s
		*v = 0
	}
	check(WaitingSignal, "waiting", &l.Waiting, math.MaxInt32)
	check(RunningSignal, "running", &l.Running, math.MaxInt32)
	check(KVUsageSignal, "KV usage", &l.KVUsage, 1)
	return l, err
}

// Snapshot remembers what the router had in flight on an endpoint at one moment, so
// that a report requested at that moment can be corrected for what has been
// routed since. The zero Snapshot belongs to no moment.
type Snapshot struct {
	ref        EndpointRef
	at         time.Time
	requests   int32
	prefilling int32
}

// InFlight counts what this router has in flight on an endpoint: requests
// that were routed there and are not done. It is exact, and up to date when
// Route returns.
type InFlight struct {
	// Requests is the number of open leases.
	Requests int
	// Prefilling counts the requests still waiting for their first token. A
	// response that does not stream has no first token: it counts until its
	// predicted TTFT has passed or, without a prediction, until it is done. A stream
	// stops counting, too, once nothing has come for three times as long as TTFTUpper and
	// one that came later has had its first token there: something holds it back.
	Prefilling int
	// PrefillTokens, Q, is the number of prompt tokens of these requests, minus
	// those that the prefix index expected to be cached.
	PrefillTokens int
	// ContextTokens is the number of prompt tokens of all open leases,
	// prefilled or not.
	ContextTokens int
	// OutputTokens is the number of tokens generated so far for the open
	// leases.
	OutputTokens int
}
