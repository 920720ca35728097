package endpick

import (
	"errors"
	"fmt"
)

// The kinds of error, for errors.Is.
var (
	// ErrUnknownEndpoint: no endpoint has this ID.
	ErrUnknownEndpoint = errors.New("endpick: unknown endpoint")
	// ErrDuplicateEndpoint: there is already an endpoint with this ID.
	ErrDuplicateEndpoint = errors.New("endpick: duplicate endpoint")
	// ErrBadEndpoint: the description of an endpoint is not valid.
	ErrBadEndpoint = errors.New("endpick: bad endpoint")
	// ErrNoFirstTokens: streams complete, and the host has never said that
	// a token arrived. It is passed to Config.Warn, once; see Request.Stream.
	ErrNoFirstTokens = errors.New("endpick: streams complete without Lease.Tokens or Lease.FirstToken; call one of them, or leave Request.Stream unset")
)

// NoEndpointError says for which model there was no endpoint.
type NoEndpointError struct {
	Model     string // the model or adapter asked for
	Endpoints int    // all of the router's
	Serving   int    // those that serve the model
	Excluded  int    // of those, how many the request excludes
	Draining  int    // of those, how many are being drained
	Full      int    // of those, how many have as many leases as they may; see Endpoint.MaxInFlight
	// Others are models and adapters that endpoints serve instead, if none serves
	// Model: the first of them, in order.
	Others []string
}

func (e *NoEndpointError) Error() string {
	text := fmt.Sprintf("endpick: no endpoint for model %q: %d of %d serve it, %d excluded, %d draining", e.Model, e.Serving, e.Endpoints, e.Excluded, e.Draining)
	if e.Full > 0 {
		text += fmt.Sprintf(", %d full", e.Full)
	}
	if rest := e.Serving - e.Excluded - e.Draining - e.Full; rest > 0 {
		text += fmt.Sprintf(", %d avoided, asleep or of too short a context", rest)
	}
	if len(e.Others) > 0 {
		text += fmt.Sprintf("; there are %q", e.Others)
	}
	return text
}

// RejectedError carries the reason of the Admitter, and matches it.
type RejectedError struct{ Reason error }

func (e *RejectedError) Error() string { return "endpick: request rejected: " + e.Reason.Error() }

// Unwrap returns the reason.
func (e *RejectedError) Unwrap() error { return e.Reason }

// EndpointError says which endpoint could not be added, changed or found, and
// why. It matches ErrUnknownEndpoint, ErrDuplicateEndpoint or ErrBadEndpoint.
type EndpointError struct {
	ID     string
	Reason string
	err    error
}

func (e *EndpointError) Error() string { return fmt.Sprintf("endpick: endpoint %q %s", e.ID, e.Reason) }

// Unwrap returns the kind of error.
func (e *EndpointError) Unwrap() error { return e.err }

// LoadError says which signal of a report was refused. The other signals of
// the report are used.
type LoadError struct {
	ID     string
	Signal string
	Value  float64
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("endpick: load of endpoint %q: %s is %v", e.ID, e.Signal, e.Value)
}

// RequestError says which field of a request was refused.
type RequestError struct {
	Field  string
	Reason string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("endpick: request: %s %s", e.Field, e.Reason)
}

// ConfigError says which field of a Config or Policy was refused, here or in
// another package.
type ConfigError struct {
	Field  string // of another package qualified: "prefix.IndexConfig.MaxBytes"
	Reason string // what follows the field: "is negative"
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("endpick: config: %s %s", e.Field, e.Reason)
}

// StageError says how a stage broke its contract. Its result was replaced, and the
// request went on. It is passed to Config.Warn.
type StageError struct {
	Stage  string // its name in receipts
	Reason string // what follows the name: "picked index 3 of 3 candidates"
}

func (e *StageError) Error() string { return fmt.Sprintf("endpick: stage %s %s", e.Stage, e.Reason) }

// PanicError says which stage, or function of a Config, panicked. The request went on
// without it. It is passed to Config.Warn.
type PanicError struct {
	Stage string // its name in receipts
	Value any    // what it panicked with
	Stack []byte // where, as by debug.Stack
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("endpick: stage %s panicked: %v", e.Stage, e.Value)
}
