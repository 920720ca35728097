// Package scrape asks engines for their load: it polls the /metrics page of each
// endpoint of a router, in the names of vLLM, SGLang and TensorRT-LLM, and
// reports what it finds.
//
// It is a module of its own because it brings a parser of the Prometheus text
// format with it.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// ConfigError says which field of a Config was refused. It matches
// [endpick.ErrConfig].
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("scrape: config: %s %s", e.Field, e.Reason)
}

// Unwrap returns [endpick.ErrConfig].
func (e *ConfigError) Unwrap() error { return endpick.ErrConfig }

// Error says which endpoint could not be scraped, and why. It matches the
// cause: ErrFormat, ErrNoSignal, ErrTooLong, a StatusError, endpick's ErrBadLoad
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

// Config says how a [Poller] is made. All fields but Router may be left out.
type Config struct {
	// Router is whose endpoints are polled and who gets the reports. It must
	// be set.
	Router *endpick.Router
	// Client asks. Nil: a client with connections of its own.
	Client *http.Client
	// Interval is the time from one question to the next. Zero: one second.
	Interval time.Duration
	// Timeout is how long an engine may take to answer. It is not asked again
	// before. Zero: five seconds; engines answer late when they are busy, which
	// is when it matters.
	Timeout time.Duration
	// MaxBytes bounds a page. Zero: 8 MiB.
	MaxBytes int64
	// URL is the address of an endpoint's page; empty: it has none and is not
	// asked. Nil: "/metrics" at the endpoint's Address. (trtllm-serve has its
	// page at /prometheus/metrics.) It is called in each round.
	URL func(*endpick.Endpoint) string
	// OnError is told what went wrong, as an [Error]. It is called from many
	// goroutines. Nil: nobody is told.
	OnError func(error)
}

func (c *Config) validate() error {
	switch {
	case c.Router == nil:
		return &ConfigError{Field: "Router", Reason: "is nil"}
	case c.Interval < 0:
		return &ConfigError{Field: "Interval", Reason: "is negative"}
	case c.Timeout < 0:
		return &ConfigError{Field: "Timeout", Reason: "is negative"}
	case c.MaxBytes < 0:
		return &ConfigError{Field: "MaxBytes", Reason: "is negative"}
	}
	if c.Client == nil {
		c.Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}}
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 8 << 20
	}
	if c.URL == nil {
		c.URL = metricsURL
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	return nil
}

func metricsURL(e *endpick.Endpoint) string {
	to, err := transport.Target(e, &url.URL{Path: "/metrics"})
	if err != nil {
		return ""
	}
	if to.Scheme == "h2c" {
		to.Scheme = "http"
	}
	return to.String()
}

// maxAtOnce bounds the pages that are read at the same time.
const maxAtOnce = 64

// Poller polls engines. Make one with [New]. It is safe for concurrent use.
type Poller struct {
	config Config
	slots  chan struct{}

	mu   sync.Mutex
	busy map[string]bool // URLs that are being asked
}

// New returns a poller, or a [ConfigError].
func New(config Config) (*Poller, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Poller{config: config, slots: make(chan struct{}, maxAtOnce), busy: map[string]bool{}}, nil
}

// Run polls until ctx is done and has left no goroutine when it returns.
// Endpoints that come and go are noticed in the next round. Endpoints with one
// URL, such as the ranks of a server, are asked together.
func (p *Poller) Run(ctx context.Context) {
	var round sync.WaitGroup
	defer round.Wait()
	tick := time.NewTicker(p.config.Interval)
	defer tick.Stop()
	for {
		p.start(ctx, &round)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Poll asks every endpoint once and returns when all have answered.
func (p *Poller) Poll(ctx context.Context) {
	var round sync.WaitGroup
	p.start(ctx, &round)
	round.Wait()
}

// start asks every server that is not being asked already.
func (p *Poller) start(ctx context.Context, round *sync.WaitGroup) {
	servers := map[string][]*endpick.Endpoint{}
	for _, s := range p.config.Router.Endpoints() {
		if e := s.Candidate.Endpoint; !s.Removed {
			if u := p.config.URL(e); u != "" {
				servers[u] = append(servers[u], e)
			}
		}
	}
	for u, endpoints := range servers {
		p.mu.Lock()
		busy := p.busy[u]
		p.busy[u] = true
		p.mu.Unlock()
		if busy {
			continue
		}
		round.Go(func() {
			defer func() {
				p.mu.Lock()
				delete(p.busy, u)
				p.mu.Unlock()
			}()
			select {
			case p.slots <- struct{}{}:
				defer func() { <-p.slots }()
				p.scrape(ctx, u, endpoints)
			case <-ctx.Done():
			}
		})
	}
}

// scrape asks one server and reports for its endpoints. An answer that makes no
// sense voids what was known; no answer leaves it to grow old.
func (p *Poller) scrape(ctx context.Context, u string, endpoints []*endpick.Endpoint) {
	marks := make([]endpick.Mark, len(endpoints))
	for i, e := range endpoints {
		marks[i] = p.config.Router.Mark(e.ID)
	}
	page, answered, err := p.fetch(ctx, u)
	if ctx.Err() != nil {
		return
	}
	for i, e := range endpoints {
		load, bad := endpick.Load{}, err
		if bad == nil {
			load, bad = page.load(e)
		}
		if bad != nil {
			p.config.OnError(&Error{Endpoint: e.ID, URL: u, Err: bad})
			if !answered {
				continue
			}
			load = endpick.Load{Absent: endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal}
		}
		load.Mark = marks[i]
		bad = p.config.Router.Report(e.ID, load)
		if bad != nil && !errors.Is(bad, endpick.ErrUnknownEndpoint) { // removed meanwhile
			p.config.OnError(&Error{Endpoint: e.ID, URL: u, Err: bad})
		}
	}
}

// fetch gets a page; answered says whether the server did.
func (p *Poller) fetch(ctx context.Context, u string) (_ page, answered bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := p.config.Client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // to use the connection again
		return nil, true, StatusError(resp.StatusCode)
	}
	page, err := parse(resp.Body, p.config.MaxBytes)
	return page, ctx.Err() == nil, err
}
