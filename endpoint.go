package endpick

import (
	"maps"
	"slices"
	"strconv"
	"strings"
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

	// MaxSequences is how many requests it runs at once. It is no limit: more are
	// routed there, unless a gateway queue (slo/queue) holds them. Zero: unknown.
	MaxSequences int
	// KVTokens is how many tokens its KV cache holds. Zero: unknown; see
	// [github.com/endpick/endpick/prefix.IndexConfig].
	KVTokens int
}

// clone returns a deep copy with its ID set.
func (e *Endpoint) clone() Endpoint {
	c := *e
	c.ID = e.id()
	c.Models = slices.Clone(e.Models)
	c.Adapters = slices.Clone(e.Adapters)
	c.Labels = maps.Clone(e.Labels)
	return c
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
	host := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		host = i
	}
	return scheme + rest[strings.LastIndexByte(rest[:host], '@')+1:]
}

// prepared returns the router's own copy of a valid endpoint.
func (e *Endpoint) prepared() (*Endpoint, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	c := e.clone()
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
	case e.Rank < 0:
		return bad("Rank is negative")
	case e.Rank != 0 && !e.Ranked:
		return bad("has Rank " + strconv.Itoa(e.Rank) + ", but is not Ranked")
	case e.MaxSequences < 0:
		return bad("MaxSequences is negative")
	case e.KVTokens < 0:
		return bad("KVTokens is negative")
	}
	// An empty name would never be asked for, and keep the endpoint from serving every model.
	if i := slices.Index(e.Models, ""); i >= 0 {
		return bad("has an empty name at Models[" + strconv.Itoa(i) + "]")
	}
	if i := slices.Index(e.Adapters, ""); i >= 0 {
		return bad("has an empty name at Adapters[" + strconv.Itoa(i) + "]")
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

// Ref is the dense handle of an endpoint in its router; [PerEndpoint] keeps
// state by it. Slots are reused, with another generation. Generations start at
// 1, so the zero Ref belongs to no endpoint.
type Ref struct {
	Slot       uint32
	Generation uint32
}
