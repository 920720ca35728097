package health

import (
	"cmp"
	"net/http"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// Config configures a Monitor. All fields except Router are optional.
type Config struct {
	// Router is the router whose endpoints are monitored. It must be set.
	Router *endpick.Router
	// Client sends the checks. Nil: one with connections of its own, which follows
	// no redirects.
	Client *http.Client
	// Interval is the time from one check of an endpoint to the next; where others live, and
	// more than 20 can't be connected to, these are checked less often. Zero: two seconds.
	Interval time.Duration
	// Timeout is how long an endpoint may take to answer; it is not checked
	// again before that. Zero: two seconds.
	Timeout time.Duration
	// Failures is how many failed checks in a row take an endpoint out. Zero: 2.
	Failures int
	// URL returns the address of an endpoint's health page, or an empty string if it
	// is not to be checked. It is called in each round. Nil: "/health" at the
	// endpoint's Address, which vLLM, SGLang, TensorRT-LLM, llama.cpp and others have.
	URL func(*endpick.Endpoint) string
	// OnChange is called within Interval of a change of an endpoint's state. It is
	// called from Run, one call at a time. Nil: changes are not reported.
	OnChange func(Status)
}

func (c *Config) validate() error {
	if c.Router == nil {
		return check.Bad("health.Config.Router", "is nil")
	}
	err := cmp.Or(
		check.Default("health.Config.Interval", &c.Interval, 2*time.Second),
		check.Default("health.Config.Timeout", &c.Timeout, 2*time.Second),
		check.Default("health.Config.Failures", &c.Failures, 2),
	)
	if c.Client == nil {
		c.Client = host.Client(c.Timeout, 1)
	}
	if c.URL == nil {
		c.URL = func(e *endpick.Endpoint) string { return host.Page(e.Address, "/health") }
	}
	return err
}

// Monitor tracks the health of a router's endpoints. Make one with [New], give it to
// every transport over the router, and run its Run. It is safe for concurrent use.
type Monitor struct {
	config Config
	core   *health.Health

	mu    sync.Mutex
	asked map[string]*server // by URL
}

// New returns a monitor, or an [endpick.ConfigError].
func New(config Config) (*Monitor, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Monitor{config: config, core: health.New(config.Router, config.Failures), asked: map[string]*server{}}, nil
}

// State is the state of an endpoint's health: Well, Returning, Failing, Silent, Unreachable or Unfit.
type State = health.State

// The states of an endpoint. From Failing on it is out: it is avoided.
const (
	Well        = health.Well        // it gets its share
	Returning   = health.Returning   // it gets a growing share
	Failing     = health.Failing     // it fails requests that other endpoints serve
	Silent      = health.Silent      // it has sent nothing to anybody for a long time, and may be busy
	Unreachable = health.Unreachable // connections to it can't be made
	Unfit       = health.Unfit       // it fails its checks
)

// Status is the health of one endpoint. From the embedded struct it has: its State, and
// the time Since then; the Share of its usual traffic that it gets (1: all);
// Err of the last failed request; NextTrial (zero: it is not out); Alive, if it may be
// able to serve a request; Full, if it has said so; and of active checks, when it
// was last Checked, CheckErr, and how many Failed in a row.
type Status struct {
	Endpoint string // its ID
	Draining bool   // it gets no new requests whatever its health
	health.Status
}

// Endpoints returns the status of every endpoint that is not removed, in the order
// of [endpick.Router.Endpoints].
func (m *Monitor) Endpoints() (all []Status) {
	m.each(func(_ endpick.EndpointRef, s Status) { all = append(all, s) })
	return all
}

func (m *Monitor) each(f func(ref endpick.EndpointRef, s Status)) {
	for _, e := range m.config.Router.Endpoints() {
		if c := &e.Candidate; !e.Removed {
			f(c.Ref, Status{c.Endpoint.ID, e.Draining, m.core.Status(c.Ref)})
		}
	}
}

// Alive returns how many endpoints may be able to serve a request, and how many
// there are, without drained ones; see [Status]. A gateway is ready if at least
// one is alive.
func (m *Monitor) Alive() (alive, of int) {
	for _, s := range m.Endpoints() {
		if !s.Draining {
			of++
			if s.Alive {
				alive++
			}
		}
	}
	return alive, of
}

// Core is what the packages beside this one need, which report the outcome of requests.
func (m *Monitor) Core() *health.Health { return m.core }
