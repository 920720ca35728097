package caddy

import "github.com/endpick/endpick"

// Router returns the router of a pool, for programs that contain Caddy and need its leases and
// endpoints. A reload keeps the router as long as the pool's name stays, and updates its
// endpoints if the configuration has changed them. Nil: no configuration uses the pool, or it has
// not had a request yet.
func Router(name string) *endpick.Router {
	var router *endpick.Router
	pools.Range(func(key, value any) bool {
		if key != name {
			return true
		}
		p := value.(*pool)
		p.mu.Lock()
		router = p.router
		p.mu.Unlock()
		return false
	})
	return router
}
