package health

import (
	"slices"
	"time"
)

const (
	// lacksFor is how long an endpoint is not asked again for a model, or an API, that it has not got.
	lacksFor = 30 * time.Second
	// maxLacks is how many pairs of a model, or an API, and an endpoint are remembered.
	maxLacks = 256
)

// Lack is what an endpoint has not got: a model, or an API for it. The zero Lack is not remembered.
type Lack struct {
	Model string // that was asked for; it may be empty
	Path  string // of the API; empty: any
}

// lack is an endpoint that has refused what another one has then served.
type lack struct {
	Lack
	e     *endpoint
	until time.Time // it is avoided; then it is asked, but its refusal is not believed
}

// Lacking returns the attempt, which was refused because the endpoint has not got what was asked for.
func (a Attempt) Lacking(l Lack) Attempt {
	a.lack, a.lacking = l, true
	return a
}

// lacks records that another endpoint has served what this one lacks.
func (a Attempt) lacks() {
	h := a.e.h
	if a.lack == (Lack{}) {
		return
	}
	until := h.lock().Add(lacksFor)
	defer h.mu.Unlock()
	h.lacks = slices.DeleteFunc(h.lacks, func(l lack) bool { return l.Lack == a.lack && l.e == a.e })
	if len(h.lacks) == maxLacks {
		h.lacks = slices.Delete(h.lacks, 0, 1)
	}
	h.lacks = append(h.lacks, lack{a.lack, a.e, until})
	h.lacking.Store(int32(len(h.lacks)))
}

// knownToLack reports whether the endpoint is known to lack that; h.mu is held.
func (a Attempt) knownToLack() bool {
	return slices.ContainsFunc(a.e.h.lacks, func(l lack) bool { return l.Lack == a.lack && l.e == a.e })
}

// AvoidFor appends to dst the endpoints that lack a model, or for it the API of a path.
func (h *Health) AvoidFor(dst []string, model, path string) []string {
	if h.lacking.Load() == 0 {
		return dst
	}
	now := h.lock()
	defer h.mu.Unlock()
	for _, l := range h.lacks {
		if l.Model == model && (l.Path == "" || l.Path == path) && now.Before(l.until) && !h.gone(l.e) {
			dst = append(dst, l.e.id)
		}
	}
	return dst
}
