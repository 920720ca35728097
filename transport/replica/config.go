package replica

import (
	"cmp"
	"time"

	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/health"
)

// Config configures a [Replica]. All fields except Key are optional.
type Config struct {
	// Key is the secret shared by all replicas: the key that prompts are hashed with.
	// It is required.
	Key prefix.Key
	// Name is how the others show this replica, at most 255 bytes. Empty: a number.
	Name string
	// DisableIndex shares only load: the replica neither reports which blocks it has
	// sent where, nor uses such reports.
	DisableIndex bool
	// Health receives failures that others have seen, and its own failures are
	// shared while Run runs; it is over the same router, and of one replica. Nil:
	// failures are not shared.
	Health *health.Monitor
	// Forget is how long another replica may be silent before its requests are
	// considered over, at least one second. Idle replicas send a message four times a
	// second. Zero: two seconds.
	Forget time.Duration
	// MaxBlocks is how many blocks are known by their hash, so that they need not be sent
	// again, at some 45 bytes each. Zero: 262,144.
	MaxBlocks int
}

// leastForget is four heartbeats.
const leastForget = time.Second

func (c *Config) validate() error {
	switch {
	case c.Key == prefix.Key{}:
		return check.Bad("replica.Config.Key", "is not set: replicas share the key that prompts are hashed with")
	case len(c.Name) > 255:
		return check.Bad("replica.Config.Name", "is longer than 255 bytes")
	case c.Forget != 0 && c.Forget < leastForget:
		return check.Bad("replica.Config.Forget", "is %v, less than %v", c.Forget, leastForget)
	}
	c.Forget = cmp.Or(c.Forget, 2*time.Second)
	return check.Default("replica.Config.MaxBlocks", &c.MaxBlocks, 1<<18)
}
