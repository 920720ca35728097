package health

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// Troubled reports whether there is any endpoint that Avoid might avoid.
func (h *Health) Troubled() bool { return h.listed.Load() > 0 }

// Avoid appends to dst the endpoints that the next request should avoid. It grants a
// trial or a growing share by leaving an endpoint off that list; again, after a failure elsewhere, no trial.
// To hanging it appends those to avoid even if there are no others, since they hang. For key see Attempt.Full.
func (h *Health) Avoid(dst, hanging []string, again bool, key uint64) ([]string, []string) {
	if !h.Troubled() {
		return dst, hanging
	}
	now := h.lock()
	defer h.mu.Unlock()
	spare, all, well := h.spare(now)
	h.known = slices.DeleteFunc(h.known, func(e *endpoint) bool {
		if h.gone(e) {
			if at := h.of.Find(e.ref); at != nil {
				*at = nil
			}
			return true
		}
		full := now.Before(e.fullUntil) && (e.fullKey == 0 || e.fullKey == key)
		avoided := full
		switch s := e.current(); {
		case s == Silent && all: // it may answer those that wait
		case s.Out():
			if !s.certain() && !e.unfit(now) {
				if spare--; spare < 0 {
					break
				}
			}
			switch {
			case e.unfit(now) && (e.hangs || !all), now.Before(e.nextTrial),
				now.Before(e.offeredAt.Add(offerFor)):
				avoided = true
				if e.hangs {
					hanging = append(hanging, e.id)
				}
			case again && !all:
				avoided = true
			case !full:
				e.offeredAt = now
			}
		case s == Returning:
			avoided = e.holdBack(now) && well || full // where nobody is well, it is the best that there is
		}
		if avoided {
			dst = append(dst, e.id)
			return false
		}
		e.fade(now)
		e.listed = e.current() != Well || e.bad > 0.1 || e.refusals > 0 || e.failed > 0 || e.suspect(now) || now.Before(e.fullUntil) ||
			e.overdue.n > 0 && e.overdue.heard == e.heard.Load()
		return !e.listed
	})
	h.listed.Store(int32(len(h.known)))
	return dst, hanging
}

// Only returns what a request for a model should avoid besides, so that it goes to an endpoint whose trial has
// been due for long: others were preferred all the while, for their caches or speed. Nil: there is no such
// endpoint. None is asked for like that where requests would hang.
func (h *Health) Only(model string) (others []string) {
	id := h.neglected()
	if id == "" {
		return nil
	}
	found := false
	for _, s := range h.router.Endpoints() {
		if e := s.Candidate.Endpoint; e.ID != id {
			others = append(others, e.ID)
		} else {
			found = Serves(e, model) && !s.Draining && !s.Removed
		}
	}
	if !found {
		return nil
	}
	return others
}

// neglected looks for such an endpoint. It names each at most once a second, since a request may not be for it.
func (h *Health) neglected() string {
	if h.listed.Load() == 0 {
		return ""
	}
	now := h.lock()
	defer h.mu.Unlock()
	for _, e := range h.known {
		if s := e.current(); s.Out() && s != Silent && !e.hangs && !e.unfit(now) && !now.Before(e.fullUntil) &&
			now.Sub(e.nextTrial) >= neglect && now.Sub(e.namedAt) >= time.Second {
			e.namedAt = now
			return e.id
		}
	}
	return ""
}

// Serves reports whether an endpoint takes requests for a model, or for any if it is empty.
func Serves(e *endpick.Endpoint, model string) bool {
	return model == "" || len(e.Models)+len(e.Adapters) == 0 || slices.Contains(e.Models, model) || slices.Contains(e.Adapters, model)
}

// holdBack reports whether the next request exceeds the share of a returning endpoint.
func (e *endpoint) holdBack(now time.Time) bool {
	share := e.share(now)
	if share >= 1 { // it is back
		e.recover(now)
		return false
	}
	if e.credit += share; e.credit < 1 {
		return true
	}
	e.credit--
	return false
}

// spare is how many of the endpoints that are failing or silent may be avoided, and whether any is well;
// h.mu is held. If all are out, none is avoided. Of two endpoints it is one.
func (h *Health) spare(now time.Time) (n int, all, well bool) {
	returning := 0
	for _, e := range h.known {
		switch s := e.current(); {
		case s.Out():
			n++
		case s == Returning:
			returning++
		}
	}
	of := h.count(now)
	well = n+returning < of
	if n == 0 || n >= of {
		return n, true, well
	}
	return int(maxOut * float64(of)), false, well
}

// Out appends to dst the endpoints that wait for a trial.
func (h *Health) Out(dst []string) []string {
	if h.listed.Load() == 0 {
		return dst
	}
	now := h.lock()
	defer h.mu.Unlock()
	for _, e := range h.known {
		if e.current().Out() && (e.unfit(now) || now.Before(e.nextTrial)) {
			dst = append(dst, e.id)
		}
	}
	return dst
}

// Answers reports whether an endpoint is not out, and has not been silent for longer than usual
// although it has work.
func (h *Health) Answers(ref endpick.EndpointRef) bool {
	now := h.lock()
	defer h.mu.Unlock()
	at := h.of.Find(ref)
	return at == nil || *at == nil || !(*at).current().Out() && (*at).asked.lasts(*at, now) < h.usual()
}

// IsOut reports whether an endpoint is out, even if a trial is due.
func (h *Health) IsOut(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.known, func(e *endpoint) bool { return e.id == id && e.current().Out() && !h.gone(e) })
}

// gone reports whether an endpoint has been removed, which Avoid has not noticed yet.
func (h *Health) gone(e *endpoint) bool {
	current, ok := h.router.Ref(e.id)
	return !ok || current != e.ref
}

// Unhealthy is the number of endpoints that get less than their share.
func (h *Health) Unhealthy() int {
	now := h.lock()
	defer h.mu.Unlock()
	n := 0
	for _, e := range h.known {
		if e.share(now) < 1 && !h.gone(e) {
			n++
		}
	}
	return n
}

// count is the number of endpoints, cached for a short time; h.mu is held.
func (h *Health) count(now time.Time) int {
	if h.counted == 0 || now.Sub(h.countedAt) >= time.Second {
		h.counted, h.countedAt = h.router.Stats().Endpoints, now
	}
	return h.counted
}
