package seam

import (
	"context"
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/internal/choose"
	"github.com/endpick/endpick/transport/internal/dialect"
	judge "github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/hostclock"
)

// Config configures a [Seam]. All fields except Router are optional.
type Config struct {
	// Router picks the endpoints. It must be set.
	Router *endpick.Router
	// Fallbacks is how many endpoints besides the chosen one
	// [Attempt.Fallbacks] returns at most. Zero: none.
	Fallbacks int

	// Health judges the endpoints by their requests, and may also check them. It must
	// have the same Router. Nil: the seam has one of its own, without active checks.
	Health *health.Monitor

	// MaxAttempts is how many endpoints one request is sent to at most.
	// Zero: 3.
	MaxAttempts int
	// RetryShare bounds the retries of requests that an endpoint may have
	// worked on, as a share of all requests. Zero: 0.2.
	RetryShare float64
	// RetryBurst is how many such retries may happen at once. A tenth of it is
	// refilled each second. Zero: 100.
	RetryBurst int

	// MaxBodyBytes is the length of the longest request body, both compressed
	// and uncompressed. Zero: 32 MiB.
	MaxBodyBytes int64
	// MaxItems is how many messages, parts, tools, tool calls and prompts a
	// request may have, all counted together. Zero: 65,536.
	MaxItems int
	// SharedCache says that the engines share their prefix caches between
	// tenants. By default the blocks of two tenants are never the same.
	SharedCache bool
	// HashKey is the secret key that prompts are hashed with. Zero: a random
	// one for this process.
	HashKey prefix.Key
	// Tokens returns the token ids of a request's prompt, as in [transport.Config]. Nil:
	// prompts are cut into blocks by their text.
	Tokens func(ctx context.Context, req *endpick.Request, path string, body []byte) (ids []uint32, rest int)
	// DisableUsage stops the seam from asking for usage in streams whose
	// clients did not. Lengths are then estimated from the content.
	DisableUsage bool
	// AllowAdministration passes on requests that administer an engine,
	// instead of refusing them with [transport.ErrForbidden].
	AllowAdministration bool
	// DenyUnknown refuses paths of unknown APIs, with
	// [transport.ErrUnknownPath].
	DenyUnknown bool

	// Clock returns the time for health and the retry budget. Nil, or if it panics: time.Now.
	Clock func() time.Time
}

func (c *Config) validate() error {
	bad := func(field, reason string) error {
		return &endpick.ConfigError{Field: "seam.Config." + field, Reason: reason}
	}
	switch {
	case c.Router == nil:
		return bad("Router", "is nil")
	case c.Health != nil && c.Health.Router() != c.Router:
		return bad("Health", "is over another router")
	case c.Fallbacks < 0:
		return bad("Fallbacks", "is negative")
	case c.MaxAttempts < 0:
		return bad("MaxAttempts", "is negative")
	case !(c.RetryShare >= 0 && c.RetryShare <= 1):
		return bad("RetryShare", "is not within 0 and 1")
	case c.RetryBurst < 0:
		return bad("RetryBurst", "is negative")
	case c.MaxBodyBytes < 0:
		return bad("MaxBodyBytes", "is negative")
	case c.MaxItems < 0:
		return bad("MaxItems", "is negative")
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 3
	}
	if c.RetryShare == 0 {
		c.RetryShare = 0.2
	}
	if c.RetryBurst == 0 {
		c.RetryBurst = 100
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 32 << 20
	}
	c.Clock = hostclock.Guard(c.Clock, nil)
	return nil
}

// Seam reads requests, chooses where to send them, and learns from the outcome.
// Make one with [New]. It is safe for concurrent use and starts no goroutine of its
// own; a timer for each request notices endpoints that say nothing.
type Seam struct {
	desk         choose.Desk
	fallbacks    int
	maxBodyBytes int64
}

// New returns a seam, or an [endpick.ConfigError].
func New(config Config) (*Seam, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	reader, err := dialect.NewReader(dialect.Config{
		MaxItems: config.MaxItems, SharedCache: config.SharedCache, HashKey: config.HashKey, Tokens: config.Tokens, DisableUsage: config.DisableUsage,
		AllowAdministration: config.AllowAdministration, DenyUnknown: config.DenyUnknown,
	})
	if err != nil {
		return nil, err
	}
	s := &Seam{fallbacks: config.Fallbacks, maxBodyBytes: config.MaxBodyBytes}
	s.desk.Router, s.desk.Reader, s.desk.Clock = config.Router, reader, config.Clock
	if config.Health != nil {
		s.desk.Health = config.Health.Core()
	} else {
		s.desk.Health = judge.New(config.Router, config.Clock)
	}
	s.desk.Budget = choose.NewBudget(config.RetryShare, config.RetryBurst)
	s.desk.MaxAttempts = config.MaxAttempts
	return s, nil
}

// SetHashKey changes the key that prompts are hashed with, for requests that are
// read from now on. An index then starts from scratch.
func (s *Seam) SetHashKey(key prefix.Key) { s.desk.Reader.SetHashKey(key) }

// MaxBodyBytes returns the length of the longest body that Read accepts, for
// programs that read one.
func (s *Seam) MaxBodyBytes() int64 { return s.maxBodyBytes }

// Unhealthy returns the number of endpoints that currently get less than their share of the
// traffic, because they have recently failed.
func (s *Seam) Unhealthy() int { return s.desk.Health.Unhealthy() }

// ErrorResponse returns what to answer to a client after an error of [Seam.Read] or
// [Call.Route], or after a failed attempt whose response is not passed on; see
// [transport.ErrorResponse].
func ErrorResponse(path string, err error) (status int, header http.Header, body []byte) {
	return transport.ErrorResponse(path, err)
}
