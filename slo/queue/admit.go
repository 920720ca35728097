package queue

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/endpick/endpick"
)

// RejectAll rejects every request, for tests of what is in front of a router (BLIS, "Admission Pipeline").
func RejectAll() endpick.Admitter { return rejectAll{} }

type rejectAll struct{}

var errRejectAll = errors.New("queue: every request is rejected")

func (rejectAll) Admit(*endpick.Request, []endpick.Candidate) error { return errRejectAll }

// RejectSheddable rejects sheddable requests, those with a priority below 0, with a [SaturatedError] while the
// endpoints are full (BLIS, "Admission Pipeline"; by priority under saturation). Nil: they are full when
// [Utilization] says so, with its defaults.
func RejectSheddable(by Saturation) endpick.Admitter {
	return rejectSheddable{cmp.Or(by, Utilization(0, 0))}
}

type rejectSheddable struct{ by Saturation }

// SaturatedError carries the saturation that a sheddable request met.
type SaturatedError struct {
	Saturation float64
	Priority   int
}

func (e *SaturatedError) Error() string {
	return fmt.Sprintf("queue: saturated: %.2f of capacity is taken and priority %d can be shed", e.Saturation, e.Priority)
}

// Refusal is what the client learns; see [endpick.Admitter].
func (e *SaturatedError) Refusal() (message string, retryAfter time.Duration) {
	return "all servers are busy, and the request's priority is too low to wait", 0
}

func (a rejectSheddable) Admit(req *endpick.Request, candidates []endpick.Candidate) error {
	if req.Priority >= 0 {
		return nil
	}
	if s := a.by.Saturation(candidates); s >= 1 {
		return &SaturatedError{Saturation: s, Priority: req.Priority}
	}
	return nil
}
