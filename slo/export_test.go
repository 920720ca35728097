package slo

import "github.com/endpick/endpick"

// RunningTargets is the number of targets of running requests that are held.
func RunningTargets(h *Headroom) int { return int(h.running.held.Load()) }

// OutputTokens is the expected length of the response to a request, in tokens.
func OutputTokens(h *Headroom, req *endpick.Request) float64 { return h.outputTokens(req) }
