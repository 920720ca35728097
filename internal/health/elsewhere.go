package health

import "time"

const (
	// mostTold is how many failures that other gateways have told of put an endpoint
	// out, while it sends nothing to this one.
	mostTold = 3
	// toldFor is how long they count.
	toldFor = time.Minute
)

// Tell makes the health tell of each outcome that counts here, and nobody else from now
// on: of all failures, and of what is served by endpoints that have failed of late. It is
// called from many goroutines. Nil: nobody is told.
func (h *Health) Tell(tell func(id string, failed bool)) {
	if tell == nil {
		h.tell.Store(nil)
		return
	}
	h.tell.Store(&tell)
}

func (h *Health) told(s *standing, failed bool) {
	if tell := h.tell.Load(); tell != nil {
		(*tell)(s.id, failed)
	}
}

// Elsewhere says that another gateway has failed at an endpoint so many times, and was
// served so many times. It is put out for that if it has sent nothing to anybody here
// since the first of them: what a gateway sees itself counts for more than what it is
// told, since it may be the way from the other to the endpoint that is broken. Who fails
// at half of the endpoints is not believed, for he may be unhealthy himself.
func (h *Health) Elsewhere(id string, failed, served int) {
	ref, ok := h.current(id)
	if !ok || failed <= 0 || served >= outRatio*failed {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := h.standing(id, ref), h.clock()
	if s.phase == Out {
		return
	}
	if heard := s.heard.Load(); heard != s.toldHeard || !s.isDoubted(now) {
		s.toldOf, s.toldHeard = 0, heard
	}
	h.remark(s, now)
	s.toldOf += failed
	s.toldAt = now
	if s.toldOf < mostTold {
		return
	}
	doubtful := 0
	for _, o := range h.remarked {
		if o.isDoubted(now) {
			doubtful++
		}
	}
	if n := h.endpoints(now); n > 1 && 2*doubtful <= n {
		s.toldOf = 0
		s.putOut(now, Failing)
	}
}

// isDoubted reports whether others have told of failures of late.
func (s *standing) isDoubted(now time.Time) bool {
	return s.toldOf > 0 && ahead(now, s.toldAt.Add(toldFor), toldFor)
}
