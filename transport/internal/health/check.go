package health

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// Check begins a check of an endpoint; busy says that requests are in flight there.
func (h *Health) Check(id string, ref endpick.EndpointRef, busy bool) Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.attempt(id, ref)
	a.busy = busy
	return a
}

// Checked records the result of a check; nil: passed. A check without an answer counts only if the
// endpoint has sent nothing to anybody meanwhile, because a busy server may be late. While it has
// work, it counts as a request that waits, and only once the endpoint has been silent for longer
// than usual. An endpoint that has never passed a check is known by its requests alone, since the
// check may be wrong, unless it has never sent anything either and no connection could be made to
// it. One that fails requests is not well just because it passes checks.
func (a Attempt) Checked(err error, connected bool) {
	e, h := a.e, a.e.h
	now := h.lock()
	defer h.mu.Unlock()
	e.checkedAt, e.checkErr = now, err
	hangs := host.IsTimeout(err)
	switch {
	case err == nil:
		if e.current() == absent && e.heard.Load() == 0 {
			e.recover(now)
		} else if e.unfit(now) || e.current().certain() && now.Before(e.nextTrial) {
			e.nextTrial = now
		}
		e.hangs, e.everPassed, e.failed, e.hung = false, true, 0, silence{}
		return
	case hangs && !a.Stuck(), host.IsOwn(err):
		e.checkErr = nil
		return
	case hangs && connected && (a.busy || e.asked.lasts(e, now) > 0):
		e.hung.begin(e, now) // though it has sent something since it was given its last work
		if e.everPassed && max(e.asked.lasts(e, now), e.hung.lasts(e, now)) >= h.usual() {
			e.late(now, a.heard)
		}
		return
	}
	e.list(now)
	e.failed++
	switch {
	case e.failed < h.failures:
	case e.everPassed:
		if !e.current().Out() {
			e.putOut(Unfit, now, hangs)
		}
		e.hangs = hangs
	case !connected && e.heard.Load() == 0 && !e.current().Out():
		e.putOut(absent, now, hangs)
	}
}
