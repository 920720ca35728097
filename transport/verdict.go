package transport

import (
	"cmp"
	"slices"
)

// What an attempt says of its endpoint is known when the request has been tried
// elsewhere, or can't be.

// failedVisit is an attempt that has failed.
type failedVisit struct {
	visit
	kind failureKind
}

// again decides whether a failed attempt is followed by another, and pays for
// it.
func (tr *trip) again(a *attempt) bool {
	if a.failure == nil || tr.in.Context().Err() != nil {
		return false
	}
	switch a.kind {
	case unreachable:
		tr.t.health.failed(a.x.visit, true)
	case full:
		tr.t.health.full(a.x.visit)
	default:
		tr.failed = append(tr.failed, failedVisit{a.x.visit, a.kind})
	}
	switch {
	case tr.attempts >= tr.t.config.MaxAttempts:
		return false
	case a.kind == unreachable:
		return true // nobody has worked on it: that costs nothing
	case !tr.repeatable():
		return false
	case a.kind == refusal:
		return tr.t.health.refused(a.x.visit)
	case !a.x.paid && !tr.t.budget.retry(tr.t.now()):
		tr.t.denied.Add(1)
		return false
	}
	return true
}

// judge tells health how the request has fared where it was sent, when it has
// been served or given up.
func (tr *trip) judge(served bool) {
	h := &tr.t.health
	for _, f := range tr.failed {
		switch {
		case served:
			h.failed(f.visit, false)
		case len(tr.failed) > 1:
			h.undecided(f.visit)
		case tr.t.config.MaxAttempts == 1, f.kind != refusal && !tr.repeatable():
			h.failed(f.visit, false) // nobody else can be asked
		}
	}
	tr.failed = nil
}

// hasOthers reports whether the request could go to another endpoint that is not
// put out. It looks at all of them: for requests that are in trouble.
func (tr *trip) hasOthers(id string) bool {
	name := cmp.Or(tr.req.Adapter, tr.req.Model)
	for _, e := range tr.t.config.Router.Endpoints() {
		other := e.Candidate.Endpoint
		serves := name == "" || len(other.Models)+len(other.Adapters) == 0 ||
			slices.Contains(other.Models, name) || slices.Contains(other.Adapters, name)
		if serves && !e.Draining && !e.Removed && other.ID != id &&
			!slices.Contains(tr.tried, other.ID) && !tr.t.health.isOut(other.ID) {
			return true
		}
	}
	return false
}

// repeatable reports whether the request may be sent twice.
func (tr *trip) repeatable() bool {
	if tr.model != "" {
		return true
	}
	switch tr.in.Method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "":
		return true
	}
	return false
}
