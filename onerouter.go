package endpick

import (
	"fmt"
	"sync/atomic"
)

// OneRouter is embedded by a stage that keeps state for endpoints or leases.
// The handles of one router mean nothing in another, so New and SetPolicy
// refuse a stage that another router uses already. The policies of one router
// may share it.
type OneRouter struct{ owner atomic.Pointer[Router] }

func (o *OneRouter) oneRouter() *OneRouter { return o }

// claim takes ownership of the stages that belong to a single router. If any of
// them belongs to another router, it takes none and returns an error that names
// it.
func (r *Router) claim(stages []any) error {
	var claimed []*OneRouter
	for _, s := range stages {
		b, ok := s.(interface{ oneRouter() *OneRouter })
		if !ok {
			continue
		}
		o := b.oneRouter()
		switch {
		case o.owner.CompareAndSwap(nil, r):
			claimed = append(claimed, o)
		case o.owner.Load() != r:
			for _, o := range claimed {
				o.owner.Store(nil)
			}
			return &ConfigError{Field: "Policy", Reason: fmt.Sprintf("has stage %s, which is already in another router", stageName(s))}
		}
	}
	return nil
}

// disclaim releases stages that were claimed for a router that could not be made.
func (r *Router) disclaim(stages []any) {
	for _, s := range stages {
		if b, ok := s.(interface{ oneRouter() *OneRouter }); ok {
			b.oneRouter().owner.CompareAndSwap(r, nil)
		}
	}
}
