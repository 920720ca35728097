package sim

import (
	"time"

	"github.com/endpick/endpick"
)

// A watch keeps a router's view of the servers' loads fresh: a server's load is reported again when
// it may have changed, and not before. So a decision among a thousand servers only asks the few
// that have done something since the last one.
type watch struct {
	router *endpick.Router
	maxAge time.Duration // the most that reports may age
	stale  *timers       // by server: its report holds until then, inclusive
}

// always is before every time of a run.
const always = -1

// newWatch returns a watch of servers without reports.
func newWatch(router *endpick.Router, servers int, reportMaxAge time.Duration) *watch {
	if reportMaxAge == 0 {
		reportMaxAge = time.Minute // the router's default
	}
	w := &watch{router, reportMaxAge / 2, newTimers(servers)}
	for i := range servers {
		w.stale.set(i, always, true)
	}
	return w
}

// touched says that a server, or a router's requests in flight there, have changed.
func (r *run) touched(server int) {
	for _, w := range r.watches {
		w.stale.set(server, always, true)
	}
}

// refresh reports the current load of every server to a router.
func (r *run) refresh(router int) {
	w := r.watches[router]
	for {
		i, at, ok := w.stale.first()
		if !ok || at >= r.now {
			return
		}
		s := &r.servers[i]
		if !s.up {
			w.stale.set(i, 0, false) // until it is back
			continue
		}
		w.router.Report(s.Endpoint.ID, r.load(s))
		until := r.now + w.maxAge
		if holds, ok := s.engine.LoadHolds(); ok {
			until = min(until, holds)
		}
		// A load that changes at this time is seen by the next one.
		w.stale.set(i, max(until, r.now), true)
	}
}
