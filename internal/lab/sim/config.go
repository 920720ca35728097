package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

// Config describes one run. Router, Fleet and Workload are required; the zero
// value of everything else is its default.
type Config struct {
	// Router returns the Config of a router, above all its policy, with state that
	// belongs to this run only. The simulator sets Clock, Seed and Endpoints.
	Router func() (endpick.Config, error)
	// Fleet is the list of model servers.
	Fleet []Server
	// Workload is the work.
	Workload Workload
	// Seed determines all random numbers, of the workload and of the routers.
	Seed uint64

	// Routers is the number of routers in front of the fleet; requests go to them
	// in turn. 0 is 1.
	Routers int
	// Sharing is what routers tell each other. Nil: nothing.
	Sharing *Sharing
	// ReportInterval is the time between two reports of every engine's load to every
	// router. 0 is fresh: each decision sees the current loads.
	ReportInterval time.Duration
	// MeterInterval is how often routers learn of tokens streamed between a
	// request's first and last one. 0 is two seconds.
	MeterInterval time.Duration

	// PromptsOnly hides from the routers what responses append to prompts, which engines
	// cache anyway.
	PromptsOnly bool
	// NoUsage hides from the routers what engines report at the end: the length of the
	// prompt, and how much of it was cached.
	NoUsage bool
	// Events lets engines tell routers what enters and leaves their caches, if a
	// router's matcher is a precise.Index. Nil: no events.
	Events *Events
}

// Server is one model server of the fleet.
type Server struct {
	// Endpoint is the router's description of it. An empty ID becomes "server-" and
	// its index from 000; the block size, MaxSequences and KVTokens are taken from
	// Engine if they are 0, and Variant, if it is empty, is the profile's name.
	Endpoint endpick.Endpoint
	// Engine is the server itself. Its BlockTokens must be the package's.
	Engine engine.Config
	// Undescribed servers have nothing filled in: routers only know what Endpoint says.
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

// ConfigError says which part of a Config or of a generated workload is invalid.
type ConfigError struct {
	Field, Reason string
}

func (e *ConfigError) Error() string { return "sim: " + e.Field + " " + e.Reason }

// setDefaults sets what is zero.
func (c *Config) setDefaults() {
	c.Fleet = slices.Clone(c.Fleet)
	for i := range c.Fleet {
		e := &c.Fleet[i].Endpoint
		e.ID = cmp.Or(e.ID, e.Address, fmt.Sprintf("server-%03d", i))
	}
	c.Routers = cmp.Or(c.Routers, 1)
	c.MeterInterval = cmp.Or(c.MeterInterval, 2*time.Second)
}
