package slo

// RunningTargets is the number of targets of running requests that are held.
func RunningTargets(h *Headroom) int { return int(h.running.held.Load()) }
