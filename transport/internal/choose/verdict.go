package choose

import (
	"context"

	"github.com/endpick/endpick/transport/internal/health"
)

// What an attempt says about its endpoint is only known when the request has
// been retried elsewhere, or can't be.

// failedVisit is a failed attempt.
type failedVisit struct {
	health.Visit
	kind Kind
}

// Failed records that an attempt has failed.
func (t *Trip) Failed(v health.Visit, kind Kind) {
	switch kind {
	case Unreachable:
		t.Desk.Health.Failed(v, true)
	case Full:
		t.Desk.Health.Full(v)
	default:
		t.failed = append(t.failed, failedVisit{v, kind})
	}
}

// Again decides whether to make another attempt after a failed one, and pays for
// it unless that is paid.
func (t *Trip) Again(ctx context.Context, v health.Visit, kind Kind, paid bool) bool {
	switch {
	case ctx.Err() != nil, t.Attempts >= t.Desk.MaxAttempts:
		return false
	case kind == Unreachable:
		return true // no endpoint has worked on it, so it costs nothing
	case kind.begun() && !t.Repeatable():
		return false
	case kind == Refusal:
		return t.Desk.Health.Refused(v)
	case !paid && !t.Desk.Budget.Retry(t.Desk.Clock()):
		t.Desk.Denied.Add(1)
		return false
	}
	return true
}

// Judge reports the attempts to health, when the request has been served or given
// up.
func (t *Trip) Judge(served bool) {
	h := t.Desk.Health
	for _, f := range t.failed {
		switch {
		case served:
			h.Failed(f.Visit, false)
		case len(t.failed) > 1:
			h.Undecided(f.Visit)
		case t.Alone, f.kind != Refusal && !t.Repeatable():
			h.Failed(f.Visit, false) // no other endpoint can be asked
		}
	}
	t.failed = nil
}
