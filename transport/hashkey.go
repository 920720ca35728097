package transport

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// SetHashKey changes the key that prompts are hashed with, as Config.HashKey
// sets it, for requests that come from now on. An index then starts anew: what
// it holds under the old key is matched by nothing and gives way in time. It
// may be called at any time, from any goroutine.
func (t *Transport) SetHashKey(key prefix.Key) { t.hashKey.Store(&key) }

// scope is where the prompt of a request shares blocks.
func (t *Transport) scope(c *call, req *endpick.Request) prefix.Scope {
	s := prefix.Scope{Key: *t.hashKey.Load(), Model: c.model, Adapter: req.Adapter, Salt: c.salt}
	if !t.config.SharedCache {
		s.Tenant = req.Tenant
	}
	return s
}
