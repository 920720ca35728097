package transport

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
	if a.kind == unreachable {
		tr.t.health.failed(a.x.visit, true)
	} else {
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
	case !tr.t.budget.retry(tr.t.now()):
		tr.t.denied.Add(1)
		return false
	}
	return true
}

// judge tells health how the request has fared where it was sent, when it has
// been served or given up.
func (tr *trip) judge(served bool) {
	h := &tr.t.health
	answers := 0 // that it can't be served
	for _, f := range tr.failed {
		if f.kind != full {
			answers++
		}
	}
	for _, f := range tr.failed {
		switch {
		case served && f.kind == full:
			h.full(f.visit)
		case served:
			h.failed(f.visit, false)
		case f.kind == full:
		case answers > 1:
			h.undecided(f.visit)
		case tr.t.config.MaxAttempts == 1, f.kind != refusal && !tr.repeatable():
			h.failed(f.visit, false) // nobody else can be asked
		}
	}
	tr.failed = nil
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
