package health

import "time"

const (
	// mostTold is how many failures reported by other gateways put an endpoint out,
	// if it sends nothing to this one meanwhile.
	mostTold = 3
	// toldFor is how long reported failures count.
	toldFor = time.Minute
)

// Tell sets a function that is called for each outcome that counts here: for all
// failures, and for what endpoints with recent failures have served. It is called from
// many goroutines. A panic of it is ignored: it is the host's. Nil: none.
func (h *Health) Tell(tell func(id string, failed bool)) {
	if tell == nil {
		h.tell.Store(nil)
		return
	}
	h.tell.Store(&tell)
}

func (h *Health) told(s *standing, failed bool) {
	if tell := h.tell.Load(); tell != nil {
		defer func() { _ = recover() }()
		(*tell)(s.id, failed)
	}
}

// Elsewhere records that an endpoint has failed another gateway so many times, and
// served it so many times. The endpoint is put out if it has sent nothing to anybody
// here since the first failure: our own observations outweigh reports, because only the
// path from the other gateway may be broken. A gateway that fails at half of the
// endpoints is not believed, because it may be unhealthy itself.
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
		s.putOut(now, Failing)
	}
}

// isDoubted reports whether other gateways have recently reported failures.
func (s *standing) isDoubted(now time.Time) bool {
	return s.toldOf > 0 && ahead(now, s.toldAt.Add(toldFor), toldFor)
}
