package slo

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// WarmupConfig configures [NewWarmup]. The zero value is ready to use.
type WarmupConfig struct {
	// Ramp is how long a new endpoint takes to reach its full share. Zero: one
	// minute.
	Ramp time.Duration
}

// NewWarmup returns a filter that brings new endpoints in gradually, or an
// [endpick.ConfigError]. A new endpoint is empty and looks fast, so that every cold request would go there at once,
// before its kernels are compiled, its cache is filled and its first reports
// have arrived.
//
// At age a, an endpoint is considered for a share 1/n + (1 − 1/n)·a/Ramp of the
// requests whose prefix it does not hold, where n is the number of candidates:
// at first only for its fair share. Age counts from the first request that
// could have gone there, relative to the oldest endpoint, so that a fleet that
// starts all at once is not held back. This is the slow start of Envoy, with
// the fair share instead of its minimum weight.
//
// The filter belongs to one router.
func NewWarmup(config WarmupConfig) (endpick.Filter, error) {
	if err := check.Default("slo.WarmupConfig.Ramp", &config.Ramp, time.Minute); err != nil {
		return nil, err
	}
	return &warmup{ramp: config.Ramp}, nil
}

type warmup struct {
	endpick.Exclusive
	ramp time.Duration

	mu    sync.RWMutex
	since endpick.PerEndpoint[time.Time] // when each was first seen
	warm  time.Time                      // when the newest endpoint reaches its full share
}

func (*warmup) Name() string { return "warmup" }

var saltWarmup = endpick.Salt("slo/warmup")

func (w *warmup) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	now := req.Now()
	w.meet(candidates, now)
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !now.Before(w.warm) {
		return candidates
	}
	oldest := 0.0
	for i := range candidates {
		oldest = max(oldest, w.age(candidates[i].Ref, now))
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

// age is the endpoint's age as a share of the ramp, at most 1; w.mu is held.
func (w *warmup) age(ref endpick.EndpointRef, now time.Time) float64 {
	at := w.since.Find(ref)
	if at == nil {
		return 0
	}
	return min(float64(now.Sub(*at))/float64(w.ramp), 1)
}

// meet records endpoints that are seen for the first time.
func (w *warmup) meet(candidates []endpick.Candidate, now time.Time) {
	if w.knows(candidates) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range candidates {
		if at := w.since.At(candidates[i].Ref); at != nil && at.IsZero() {
			*at = now
			if warm := now.Add(w.ramp); warm.After(w.warm) {
				w.warm = warm
			}
		}
	}
}

func (w *warmup) knows(candidates []endpick.Candidate) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for i := range candidates {
		if w.since.Find(candidates[i].Ref) == nil {
			return false
		}
	}
	return true
}
