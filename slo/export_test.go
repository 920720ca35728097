package slo

import "github.com/endpick/endpick"

// RunningTargets is the number of targets of running requests that are held.
func RunningTargets(h *Headroom) int { return int(h.running.held.Load()) }

// OutputTokens is the expected length of the response to a request, in tokens.
func OutputTokens(h *Headroom, req *endpick.Request) float64 { return h.outputTokens(req) }

// Fit is the headroom of one request on one candidate.
type Fit = fit

// FitOf measures it.
func FitOf(h *Headroom, req *endpick.Request, c *endpick.Candidate) Fit {
	m := h.measure(req, h.config.UpperBound)
	defer m.end()
	var f Fit
	m.fit(c, &f)
	return f
}

// Routed and Done notify a Headroom, as a router does.
func Routed(h *Headroom, e *endpick.Event)                   { h.running.Routed(e) }
func Done(h *Headroom, e *endpick.Event, o *endpick.Outcome) { h.running.Done(e, o) }
