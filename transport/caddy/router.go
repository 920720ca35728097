package caddy

import "github.com/endpick/endpick"

// Router is the router of a pool, for a program that has Caddy in it and wants to
// know of its leases and endpoints. A reload keeps it, as long as the pool's name stays, and sets
// its endpoints anew where the configuration has changed them. Nil: no configuration uses
// the pool, or it has not had a request yet.
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
