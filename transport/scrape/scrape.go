// Package scrape asks engines for their load: it polls the /metrics page of each
// endpoint of a router and reports what it finds. It knows the metrics of vLLM,
// SGLang, TensorRT-LLM and llama.cpp (which has the page with --metrics), and those
// that the host names ([Names]).
//
// An [Inspector] asks engines what they hold and serve: the size of the KV cache, how many
// requests run at once, models and adapters, and where they publish KV-cache events.
package scrape

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport/internal/host"
)

// Error says which endpoint could not be scraped, and why. It matches the
// cause: ErrFormat, ErrNoSignal, ErrTooLong, a StatusError, endpick's LoadError
// or what the client returned.
type Error struct {
	Endpoint string // its ID
	URL      string // empty: it has none
	Err      error
}

func (e *Error) Error() string {
	return fmt.Sprintf("scrape: endpoint %q at %s: %v", e.Endpoint, e.URL, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// StatusError is an HTTP status other than 200.
type StatusError int

func (e StatusError) Error() string { return fmt.Sprintf("scrape: HTTP status %d", int(e)) }

// Config configures a [Poller]. All fields except Router are optional.
type Config struct {
	// Router is the router whose endpoints are polled and which gets the
	// reports. It must be set.
	Router *endpick.Router
	// Client sends the requests. Nil: a client with connections of its own,
	// which follows no redirects, so that a server can't send it elsewhere.
	Client *http.Client
	// Interval is the time between two polls of a server. Zero: one second. One that fails, or
	// whose page has more than 400 KB, is asked less often.
	Interval time.Duration
	// Timeout is how long an engine may take to answer; it is not polled again
	// before that. Zero: five seconds, because engines answer late when they
	// are busy, which is when it matters.
	Timeout time.Duration
	// MaxBytes limits the length of a page. Zero: 8 MiB.
	MaxBytes int64
	// URL returns the address of an endpoint's page, or an empty string if it
	// is not to be polled. It is called in each round. Nil: "/metrics" at the
	// endpoint's Address, or at /prometheus/metrics, as trtllm-serve has it.
	URL func(*endpick.Endpoint) string
	// Names are the metrics of engines that this package does not know. Zero:
	// none.
	Names Names
	// OnError is called with each error, an [Error], from many goroutines.
	// Nil: errors are ignored. If it panics, that is only counted; see
	// [Poller.Panics].
	OnError func(error)
}

func (c *Config) validate() error {
	if c.Router == nil {
		return check.Bad("scrape.Config.Router", "is nil")
	}
	err := cmp.Or(
		check.Default("scrape.Config.Interval", &c.Interval, time.Second),
		check.Default("scrape.Config.Timeout", &c.Timeout, 5*time.Second),
		check.Default("scrape.Config.MaxBytes", &c.MaxBytes, 8<<20),
	)
	if c.Client == nil {
		c.Client = host.Client(c.Timeout, 1)
	}
	if c.URL == nil {
		c.URL = func(e *endpick.Endpoint) string { return host.Page(e.Address, "/metrics") }
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	return err
}
