package health

import "time"

const (
	// maxReported is how many failures reported by other gateways put an endpoint out,
	// if it sends nothing to this one meanwhile.
	maxReported = 3
	// reportsCount is how long reported failures count.
	reportsCount = time.Minute
)

// Tell sets a function that is called for each outcome that counts here: for all
// failures, and for what endpoints with recent failures have served. It is called from
// many goroutines. A panic of it is ignored: it is the host's. Nil: none.
func (h *Health) Tell(f func(id string, failed bool)) { h.notify.Store(&f) }

// Shared reports whether there is such a function: the endpoints are other gateways', too.
func (h *Health) Shared() bool { f := h.notify.Load(); return f != nil && *f != nil }

func (h *Health) report(e *endpoint, failed bool) {
	if f := h.notify.Load(); f != nil && *f != nil {
		defer func() { _ = recover() }()
		(*f)(e.id, failed)
	}
}

// Elsewhere records that an endpoint has failed another gateway so many times, and
// served it so many times. The endpoint is put out if it has sent nothing to anybody
// here since the first failure: our own observations outweigh reports, because only the
// path from the other gateway may be broken. A gateway that fails at more than half of
// the endpoints is not believed, because it may be unhealthy itself.
func (h *Health) Elsewhere(id string, failed, served int) {
	ref, ok := h.router.Ref(id)
	if !ok || failed <= 0 || served >= outRatio*failed {
		return
	}
	now := h.lock()
	defer h.mu.Unlock()
	e := h.endpoint(id, ref)
	if e.current().Out() {
		return
	}
	if !e.suspect(now) {
		e.elsewhere.n = 0
	}
	e.list(now)
	e.elsewhere.add(failed, e.heard.Load())
	e.reported = now
	if e.elsewhere.n < maxReported {
		return
	}
	suspects := 0
	for _, o := range h.known {
		if o.suspect(now) {
			suspects++
		}
	}
	if 2*suspects <= h.count(now) {
		e.putOut(Failing, now, false)
	}
}

// suspect reports whether other gateways have recently reported failures.
func (e *endpoint) suspect(now time.Time) bool {
	return e.elsewhere.n > 0 && now.Before(e.reported.Add(reportsCount))
}
