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

// lack is an endpoint that has refused a model, or the path of an API, which another has then served: so no client can
// invent its name.
type lack struct {
	model string
	e     *endpoint
	until time.Time // it is avoided; then it is asked, but its refusal is not believed
}

// Lacking returns the attempt, which was refused because the endpoint does not have the model.
func (a Attempt) Lacking(model string) Attempt {
	a.model = model
	return a
}

// lacks records that another endpoint has served the model.
func (a Attempt) lacks() {
	h := a.e.h
	until := h.router.Now().Add(lacksFor)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lacks = slices.DeleteFunc(h.lacks, func(l lack) bool { return l.model == a.model && l.e == a.e })
	if len(h.lacks) == maxLacks {
		h.lacks = slices.Delete(h.lacks, 0, 1)
	}
	h.lacks = append(h.lacks, lack{a.model, a.e, until})
	h.lacking.Store(int32(len(h.lacks)))
}

// knownToLack reports whether the endpoint is known to lack the model; h.mu is held.
func (a Attempt) knownToLack() bool {
	return slices.ContainsFunc(a.e.h.lacks, func(l lack) bool { return l.model == a.model && l.e == a.e })
}

// AvoidFor appends to dst the endpoints that lack a model.
func (h *Health) AvoidFor(dst []string, model string) []string {
	if h.lacking.Load() == 0 {
		return dst
	}
	now := h.router.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lacks {
		if l.model == model && now.Before(l.until) {
			dst = append(dst, l.e.id)
		}
	}
	return dst
}
