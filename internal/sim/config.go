package sim

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/engine"
)

// Config describes one run. Router, Fleet and Workload are needed; the zero value
// of everything else is its default.
type Config struct {
	// Router makes the Config of a router: its policy above all, with state that
	// belongs to this run alone. The simulator sets Clock, Seed and Endpoints.
	Router func() (endpick.Config, error)
	// Fleet is the model servers.
	Fleet []Server
	// Workload is the work.
	Workload Workload
	// Seed is what all chance depends on: the workload's, and the routers'.
	Seed uint64

	// Routers is the number of routers before the fleet; requests go to them in
	// turn. 0 is 1.
	Routers int
	// Sharing is what routers tell each other. Nil: nothing.
	Sharing *Sharing
	// ReportInterval is the time between two reports of every engine's load to every
	// router. 0 is fresh: each decision sees the loads of its moment.
	ReportInterval time.Duration
	// ReportDelay is how long a report takes from the engine to the router. It needs
	// a ReportInterval.
	ReportDelay time.Duration
	// MeterInterval is how often routers hear of tokens streamed between a request's
	// first and last one. 0 is two seconds.
	MeterInterval time.Duration

	// Queue is a gateway queue before each router. Nil: every request is routed when it
	// arrives.
	Queue *Queue

	// Changes happen to the fleet, in any order.
	Changes []Change
	// Attempts bounds the endpoints that a request is sent to when they fail before
	// its first token. 0 is 3.
	Attempts int
	// Horizon ends the run with requests still in flight. 0: all requests end.
	Horizon time.Duration
	// Window is the length of the windows over which imbalance is measured. 0 is
	// 10 s, as in LMetric (figure 10).
	Window time.Duration
	// Pooled measures what one cache as large as those of all servers would have found,
	// fed with the same requests at the same times: [Report.PooledHitRatio].
	Pooled bool
	// PromptsOnly keeps from the routers what responses append to their prompts, which the
	// engines cache all the same.
	PromptsOnly bool
	// NoUsage keeps from the routers what engines say of a prompt with the last token: how
	// long it was, and how much of it was cached.
	NoUsage bool
	// Events lets engines tell routers what enters and leaves their caches, as far as a
	// router's matcher is a precise.Index. Nil: they don't.
	Events *Events
	// Fitness weighs the metrics of the report's fitness. Nil: no fitness.
	Fitness map[string]float64
}

// Server is one model server of the fleet.
type Server struct {
	// Endpoint is how routers know it. An empty ID is "server-" and its index from
	// 000; the block size, MaxSequences and KVTokens are filled in from Engine where
	// they are 0, and Variant, where it is empty, is the profile's name.
	Endpoint endpick.Endpoint
	// Engine is the server itself. Its BlockTokens are those of the package.
	Engine engine.Config
	// Absent servers are not there until a Join.
	Absent bool
	// Undescribed servers have nothing filled in: routers know of them what Endpoint says.
	Undescribed bool
}

// Fleet returns n equal servers.
func Fleet(n int, cfg engine.Config) []Server {
	fleet := make([]Server, n)
	for i := range fleet {
		fleet[i].Engine = cfg
	}
	return fleet
}

// Change is something that happens to a server.
type Change struct {
	At       time.Duration
	Endpoint string // its ID
	Kind     ChangeKind
	// Unnoticed is how long routers go on sending requests to a server after its
	// Crash; these fail at once.
	Unnoticed time.Duration
	// Factor is how many times as long as usual everything takes from a Slow on.
	Factor float64
}

// ChangeKind is what happens to a server.
type ChangeKind uint8

// The kinds of change.
const (
	Crash  ChangeKind = iota // loses all requests and its cache, refuses new ones
	Join                     // starts, or starts again, with an empty cache
	Drain                    // gets no new requests
	Resume                   // after Drain
	Slow                     // takes Factor times as long, for everything
)

// ConfigError says which part of a Config or of a generated workload is wrong.
type ConfigError struct {
	Field, Reason string
}

func (e *ConfigError) Error() string { return "sim: " + e.Field + " " + e.Reason }

func (c *Config) validate() error {
	bad := func(field, format string, args ...any) error {
		return &ConfigError{field, fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Router == nil:
		return bad("Router", "is nil")
	case c.Workload == nil:
		return bad("Workload", "is nil")
	case len(c.Fleet) == 0:
		return bad("Fleet", "is empty")
	case c.Routers < 0:
		return bad("Routers", "%d is negative", c.Routers)
	case c.Attempts < 0:
		return bad("Attempts", "%d is negative", c.Attempts)
	case c.ReportDelay > 0 && c.ReportInterval == 0:
		return bad("ReportDelay", "needs a ReportInterval")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"ReportInterval", c.ReportInterval}, {"ReportDelay", c.ReportDelay}, {"MeterInterval", c.MeterInterval},
		{"Horizon", c.Horizon}, {"Window", c.Window},
	} {
		if d.value < 0 || d.value > engine.MaxTime {
			return bad(d.name, "%v is not within [0, %v]", d.value, engine.MaxTime)
		}
	}
	ids := map[string]bool{}
	fleet := make([]Server, len(c.Fleet))
	for i, s := range c.Fleet {
		switch {
		case s.Endpoint.ID == "" && s.Endpoint.Address != "":
			s.Endpoint.ID = s.Endpoint.Address
		case s.Endpoint.ID == "":
			s.Endpoint.ID = fmt.Sprintf("server-%03d", i)
		}
		if ids[s.Endpoint.ID] {
			return bad(fmt.Sprintf("Fleet[%d].Endpoint.ID", i), "%q is there already", s.Endpoint.ID)
		}
		if s.Engine.BlockTokens != 0 && s.Engine.BlockTokens != BlockTokens {
			return bad(fmt.Sprintf("Fleet[%d].Engine.BlockTokens", i), "is %d, workloads have %d", s.Engine.BlockTokens, BlockTokens)
		}
		ids[s.Endpoint.ID] = true
		fleet[i] = s
	}
	if e := c.Events; e != nil && (e.Delay < 0 || !(e.Loss >= 0 && e.Loss < 1)) {
		return bad("Events", "has a negative Delay, or a Loss that is not within [0, 1)")
	}
	if s := c.Sharing; s != nil && (s.Delay < 0 || s.Delay > engine.MaxTime) {
		return bad("Sharing", "has a Delay that is not within [0, %v]", engine.MaxTime)
	}
	for i, ch := range c.Changes {
		field := fmt.Sprintf("Changes[%d]", i)
		switch {
		case !ids[ch.Endpoint]:
			return bad(field+".Endpoint", "%q is not in the fleet", ch.Endpoint)
		case ch.At < 0 || ch.Unnoticed < 0:
			return bad(field, "has a negative time")
		case ch.Kind == Slow && !(ch.Factor >= 0.01 && ch.Factor <= 100):
			return bad(field+".Factor", "%v is not within [0.01, 100]", ch.Factor)
		case ch.Kind > Slow:
			return bad(field+".Kind", "%d is unknown", ch.Kind)
		}
	}
	for name := range c.Fitness {
		if _, ok := fitnessReferences[name]; !ok {
			return bad("Fitness", "%q is no metric (known: %s)", name, fitnessNames())
		}
	}
	c.Fleet = fleet
	setDefault(&c.Routers, 1)
	setDefault(&c.Attempts, 3)
	setDefault(&c.MeterInterval, 2*time.Second)
	setDefault(&c.Window, 10*time.Second)
	return nil
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}
