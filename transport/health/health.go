package health

import (
	"net"
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/health"
	"github.com/endpick/endpick/internal/target"
)

// Config says how a [Monitor] is made. All fields but Router may be left out.
type Config struct {
	// Router has the endpoints. It must be set.
	Router *endpick.Router
	// Client asks. Nil: one with connections of its own, which follows no redirect.
	Client *http.Client
	// Interval is the time from one check of an endpoint to the next. Zero: two
	// seconds.
	Interval time.Duration
	// Timeout is how long an endpoint may take to answer. It is not asked again
	// before. Zero: two seconds.
	Timeout time.Duration
	// Failures is how many checks in a row an endpoint fails to be put out. Zero: 2.
	Failures int
	// URL is the address of an endpoint's page; empty: it is not checked. Nil:
	// "/health" at the endpoint's Address, which vLLM, SGLang, TensorRT-LLM, llama.cpp
	// and others have. It is called in each round.
	URL func(*endpick.Endpoint) string
	// OnChange is called when an endpoint's state changes, within Interval of it. It is
	// called from Run, one call after the other. Nil: nobody is told.
	OnChange func(Status)
	// Clock tells the time by which endpoints are judged. Nil: time.Now.
	Clock func() time.Time
}

func (c *Config) validate() error {
	bad := func(field, reason string) error {
		return &endpick.ConfigError{Field: "health.Config." + field, Reason: reason}
	}
	switch {
	case c.Router == nil:
		return bad("Router", "is nil")
	case c.Interval < 0:
		return bad("Interval", "is negative")
	case c.Timeout < 0:
		return bad("Timeout", "is negative")
	case c.Failures < 0:
		return bad("Failures", "is negative")
	}
	if c.Interval == 0 {
		c.Interval = 2 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Second
	}
	if c.Client == nil {
		c.Client = &http.Client{
			Transport: &http.Transport{
				// It goes on connecting when the request has been given up.
				DialContext: (&net.Dialer{Timeout: c.Timeout}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if c.Failures == 0 {
		c.Failures = 2
	}
	if c.URL == nil {
		c.URL = func(e *endpick.Endpoint) string { return target.Page(e.Address, "/health") }
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return nil
}

// Monitor tracks the health of a router's endpoints. Make one with [New], give it to
// every transport over the router, and run its Run. It is safe for concurrent use.
type Monitor struct {
	config Config
	core   *health.Health
	rounds rounds
}

// New returns a monitor, or an [endpick.ConfigError].
func New(config Config) (*Monitor, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	m := &Monitor{config: config, core: health.New(config.Router, config.Clock)}
	m.rounds.busy = map[string]bool{}
	return m, nil
}

// State is how an endpoint stands, Reason why it is out.
type (
	State  = health.State
	Reason = health.Reason
)

// The states of an endpoint.
const (
	Well      = health.Well      // it gets its share
	Out       = health.Out       // it is avoided
	Returning = health.Returning // it gets a growing share
)

// The reasons for which an endpoint is out.
const (
	Fine        = health.Fine        // it is not
	Unreachable = health.Unreachable // connections to it can't be made
	Failing     = health.Failing     // it fails requests that others serve
	Silent      = health.Silent      // it has sent nothing to anybody for long
	Unfit       = health.Unfit       // it fails its checks
)

// Status is how one endpoint stands.
type Status struct {
	Endpoint string // its ID
	Draining bool   // it gets no new requests whatever its health
	health.Status
}

// Endpoints returns the status of every endpoint that is not removed, in the order
// of [endpick.Router.Endpoints].
func (m *Monitor) Endpoints() []Status { return statuses(m.config.Router, m.core) }

func statuses(router *endpick.Router, core *health.Health) []Status {
	var all []Status
	for _, e := range router.Endpoints() {
		if !e.Removed {
			id := e.Candidate.Endpoint.ID
			all = append(all, Status{id, e.Draining, core.Status(id, e.Candidate.Ref)})
		}
	}
	return all
}

// Alive is how many endpoints may be able to serve a request, of all that are not
// drained; see [Status]. Readiness is that one is.
func (m *Monitor) Alive() (alive, of int) {
	for _, s := range m.Endpoints() {
		if s.Draining {
			continue
		}
		of++
		if s.Alive {
			alive++
		}
	}
	return alive, of
}

// Tell makes the monitor tell of requests that have failed at an endpoint, and of those
// that one has served which has failed of late: what other gateways before the same fleet
// may want to know. It is called from many goroutines and must not call the monitor. It
// takes the place of one that was set before; nil: nobody is told any more.
func (m *Monitor) Tell(tell func(endpoint string, failed bool)) { m.core.Tell(tell) }

// Elsewhere says how requests of another gateway have fared at an endpoint. Three failures
// put it out, as long as it sends nothing to anybody here, and the other gateway fails at
// no more than half of the endpoints.
func (m *Monitor) Elsewhere(endpoint string, failed, served int) {
	m.core.Elsewhere(endpoint, failed, served)
}

// Core is what the transports of this module tell of requests.
func (m *Monitor) Core() *health.Health { return m.core }

// Router is that of the Config.
func (m *Monitor) Router() *endpick.Router { return m.config.Router }
