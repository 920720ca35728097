package queue

import (
	"errors"
	"fmt"

	"github.com/endpick/endpick"
)

// The reasons for which admitters reject a request, for errors.Is. To admit
// every request, leave the policy's Admitters empty.
var (
	// ErrRejectAll: nothing is admitted.
	ErrRejectAll = errors.New("queue: every request is rejected")
	// ErrRateLimited: the token bucket does not hold enough.
	ErrRateLimited = errors.New("queue: rate limited")
	// ErrSaturated: the endpoints are full and the request can be shed.
	ErrSaturated = errors.New("queue: saturated")
)

// RejectAll is an admitter that rejects every request, for tests of what is in
// front of a router (BLIS, "Admission Pipeline").
type RejectAll struct{}

// Admit implements [endpick.Admitter].
func (RejectAll) Admit(*endpick.Request, []endpick.Candidate) error { return ErrRejectAll }

// Admitter rejects sheddable requests, those with a priority below 0, while the
// endpoints are full (BLIS, "Admission Pipeline"; by priority under
// saturation). The zero value is ready.
type Admitter struct {
	// By says when the endpoints are full. Nil: the zero Utilization.
	By Saturation
}

// SaturatedError carries the saturation that a sheddable request met. It
// matches ErrSaturated.
type SaturatedError struct {
	Saturation float64
	Priority   int
}

func (e *SaturatedError) Error() string {
	return fmt.Sprintf("queue: saturated: %.2f of capacity is taken and priority %d can be shed", e.Saturation, e.Priority)
}

// Unwrap returns ErrSaturated.
func (e *SaturatedError) Unwrap() error { return ErrSaturated }

// Admit implements [endpick.Admitter].
func (a Admitter) Admit(req *endpick.Request, candidates []endpick.Candidate) error {
	if req.Priority >= 0 {
		return nil
	}
	by := a.By
	if by == nil {
		by = Utilization{}
	}
	if s := by.Saturation(candidates); s >= 1 {
		return &SaturatedError{Saturation: s, Priority: req.Priority}
	}
	return nil
}
