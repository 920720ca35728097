package endpick

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Resident is one of the models that a server has on disk, and loads into memory when it is asked
// for, where it may displace another one.
type Resident struct {
	// Model is its full name, as the server says it.
	Model string
	// Aliases are other names that the server takes for it, in a slice that nobody changes.
	Aliases []string
	State   Residency
	// Bytes is how much memory it takes, or would take. Zero: unknown.
	Bytes int64
	// Context is the length of context, in tokens, with which it is loaded. Zero: unknown.
	Context int
	// Until is when the server unloads it, if nobody asks for it. Zero: unknown, or never.
	Until time.Time
}

// Residency says where a model is.
type Residency uint8

// The states of a model, at a server that has it.
const (
	OnDisk   Residency = iota // to be loaded when a request for it comes
	Loading                   // requests for it wait
	InMemory                  // it answers at once
)

// String returns the state in words.
func (r Residency) String() string { return wordFor(r, "on disk", "loading", "in memory") }

// Resident returns what is known about a model there; nil if nothing is, as at servers that always
// hold what they serve. "a" is also "a:latest", as Ollama has it.
func (e *Endpoint) Resident(model string) *Resident {
	for i := range e.Residents {
		if r := &e.Residents[i]; r.is(model) {
			return r
		}
	}
	return nil
}

// is reports whether a request for the model means this one.
func (r *Resident) is(model string) bool {
	return r.Model == model || strings.TrimSuffix(r.Model, ":latest") == model || slices.Contains(r.Aliases, model)
}

func (r *Resident) validate() string {
	switch {
	case r.Model == "" || !printable(r.Model):
		return "has a resident without a name, or one that is not printable UTF-8"
	case r.State > InMemory:
		return "has resident " + strconv.Quote(r.Model) + " in an unknown state"
	case r.Bytes < 0 || r.Context < 0:
		return "has resident " + strconv.Quote(r.Model) + " with negative Bytes or Context"
	}
	return ""
}
