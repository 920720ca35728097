package slo

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// WarmupConfig says how a [Warmup] ramps. The zero value is ready to use.
type WarmupConfig struct {
	// Ramp is how long a new endpoint takes to its full share. Zero: one
	// minute.
	Ramp time.Duration
}

// Warmup is a filter that brings new endpoints in by a ramp. An endpoint that
// has just come is empty and looks fast, so that every cold request would go
// there at once, before its compiled kernels, its cache and its first reports
// are there.
//
// At age a an endpoint is considered for a share 1/n + (1 − 1/n)·a/Ramp of the
// requests of which it holds no head, n being the number of candidates: at
// first for no more than its fair share. Age counts from the first request that
// could have gone there, and against the oldest endpoint: a fleet that starts
// as a whole is not held back. This is the slow start of Envoy, with the fair
// share in the place of its minimum weight.
//
// Warmup is safe for concurrent use and belongs to one router.
type Warmup struct {
	endpick.OneRouter
	ramp time.Duration

	mu    sync.RWMutex
	since []firstSeen // by endpoint slot
	warm  time.Time   // when the newest endpoint has come to its full share
}

type firstSeen struct {
	generation uint32
	at         time.Time
}

// NewWarmup returns a Warmup, or an [endpick.ConfigError].
func NewWarmup(config WarmupConfig) (*Warmup, error) {
	if config.Ramp < 0 {
		return nil, &endpick.ConfigError{Field: "slo.WarmupConfig.Ramp", Reason: "is negative"}
	}
	if config.Ramp == 0 {
		config.Ramp = time.Minute
	}
	return &Warmup{ramp: config.Ramp}, nil
}

// Name is what receipts show.
func (*Warmup) Name() string { return "warmup" }

var saltWarmup = endpick.Salt("slo/warmup")

// Filter implements [endpick.Filter].
func (w *Warmup) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	now := req.Now()
	w.meet(candidates, now)
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !now.Before(w.warm) {
		return candidates
	}
	oldest, youngest := 0.0, 1.0
	for i := range candidates {
		a := w.age(candidates[i].Ref, now)
		oldest, youngest = max(oldest, a), min(youngest, a)
	}
	if youngest >= oldest {
		return candidates
	}
	fair := 1 / float64(len(candidates))
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool {
		if c.PrefixTokens > 0 {
			return true
		}
		a := w.age(c.Ref, now)
		return a >= oldest || req.ChanceOf(saltWarmup, c) < fair+(1-fair)*a/oldest
	})
}

// age is the endpoint's age as a share of the ramp, in [0, 1]; w.mu is held.
func (w *Warmup) age(ref endpick.Ref, now time.Time) float64 {
	if int(ref.Slot) >= len(w.since) {
		return 0
	}
	s := &w.since[ref.Slot]
	if s.generation != ref.Generation {
		return 0
	}
	return min(max(float64(now.Sub(s.at))/float64(w.ramp), 0), 1)
}

// meet notes the endpoints that are seen for the first time.
func (w *Warmup) meet(candidates []endpick.Candidate, now time.Time) {
	w.mu.RLock()
	known := true
	for i := range candidates {
		ref := candidates[i].Ref
		if int(ref.Slot) >= len(w.since) || w.since[ref.Slot].generation < ref.Generation {
			known = false
			break
		}
	}
	w.mu.RUnlock()
	if known {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range candidates {
		ref := candidates[i].Ref
		for int(ref.Slot) >= len(w.since) {
			w.since = append(w.since, firstSeen{})
		}
		if s := &w.since[ref.Slot]; s.generation < ref.Generation {
			*s = firstSeen{generation: ref.Generation, at: now}
			if warm := now.Add(w.ramp); warm.After(w.warm) {
				w.warm = warm
			}
		}
	}
}
