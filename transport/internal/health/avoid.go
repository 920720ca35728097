package health

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// Avoid appends to dst the endpoints that the next request should avoid. It grants a
// trial or a growing share by leaving an endpoint off that list. To inVain it appends
// the endpoints to avoid even if there are no others, because they are known to hang.
func (h *Health) Avoid(dst, inVain []string) ([]string, []string) {
	if h.known.Load() == 0 {
		return dst, inVain
	}
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	spare, all := h.spare(now)
	h.remarked = slices.DeleteFunc(h.remarked, func(s *standing) bool {
		if !h.present(s.id, s.ref) {
			h.forget(s)
			return true
		}
		avoided := ahead(now, s.fullUntil, fullFor)
		switch s.phase {
		case Out:
			if !s.gone {
				if spare--; spare < 0 {
					break
				}
			}
			ailing := s.isAiling(now) && (s.mute || !all)
			if ailing || ahead(now, s.until, maxBackoff) || ahead(now, s.offeredAt.Add(offerFor), offerFor) {
				avoided = true
				if s.fruitless() {
					inVain = append(inVain, s.id)
				}
			} else if !avoided {
				s.offeredAt = now
			}
		case Returning:
			avoided = s.spared(now) || avoided
		}
		if avoided {
			dst = append(dst, s.id)
			return false
		}
		s.fade(now)
		s.listed = s.phase != Well || s.bad > 0.1 || s.refusals > 0 || s.overdue > 0 && s.overdueAt == s.heard.Load() || s.unfit > 0 || s.isDoubted(now)
		return !s.listed
	})
	h.known.Store(int32(len(h.remarked)))
	return dst, inVain
}

// InVain reports whether a request to this endpoint would hang: it is out for
// being silent, and no trial is due.
func (h *Health) InVain(ref endpick.Ref) bool {
	if h.known.Load() == 0 {
		return false
	}
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.of.Find(ref)
	if at == nil || *at == nil {
		return false
	}
	s := *at
	return s.phase == Out && s.fruitless() && (s.isAiling(now) || ahead(now, s.until, maxBackoff))
}

// spare is how many of the endpoints that are out, and not unreachable, may be
// avoided; h.mu is held. If all are out, none is. Of two endpoints it is one.
func (h *Health) spare(now time.Time) (n int, all bool) {
	for _, s := range h.remarked {
		if s.phase == Out {
			n++
		}
	}
	if n == 0 || n >= h.endpoints(now) {
		return n, true
	}
	return int(maxOut * float64(h.endpoints(now))), false
}

// Out appends to dst the endpoints that wait for a trial.
func (h *Health) Out(dst []string) []string {
	if h.known.Load() == 0 {
		return dst
	}
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.remarked {
		if s.phase == Out && (s.isAiling(now) || ahead(now, s.until, maxBackoff)) {
			dst = append(dst, s.id)
		}
	}
	return dst
}

// IsOut reports whether an endpoint is out, even if a trial is due.
func (h *Health) IsOut(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.remarked, func(s *standing) bool { return s.id == id && s.phase == Out })
}

// Unhealthy is the number of endpoints that get less than their share.
func (h *Health) Unhealthy() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, s := range h.remarked {
		if s.phase != Well {
			n++
		}
	}
	return n
}

// endpoints is the number of endpoints, cached for a short time; h.mu is held.
func (h *Health) endpoints(now time.Time) int {
	if h.fleet == 0 || !ahead(now, h.fleetAt.Add(time.Second), time.Second) {
		h.fleet, h.fleetAt = h.size(), now
	}
	return h.fleet
}
