package quota

import (
	"errors"
	"fmt"
	"time"
)

// Why a request is refused, for errors.Is.
var (
	// ErrTokens: the tenant has used its tokens.
	ErrTokens = errors.New("quota: out of tokens")
	// ErrRequests: the tenant has as many requests in flight as allowed.
	ErrRequests = errors.New("quota: too many requests at once")
)

// requestsRetry is when to try again after ErrRequests: when one of the tenant's
// requests ends is not known.
const requestsRetry = time.Second

// Error says which limit of which tenant was reached. It matches Reason.
type Error struct {
	Reason error // ErrTokens or ErrRequests
	Tenant string
	// RetryAfter is when the bucket will hold enough if the tenant takes nothing
	// else from it; after ErrRequests a second.
	RetryAfter time.Duration
	Need, Have float64 // tokens; Have is negative for a debt
	Requests   int     // in flight
}

func (e *Error) Error() string {
	if e.Reason == ErrRequests {
		return fmt.Sprintf("%v: tenant %q has %d in flight", e.Reason, e.Tenant, e.Requests)
	}
	return fmt.Sprintf("%v: tenant %q needs %.0f and has %.0f, try again in %v", e.Reason, e.Tenant, e.Need, e.Have, e.RetryAfter.Round(time.Millisecond))
}

// Unwrap returns Reason.
func (e *Error) Unwrap() error { return e.Reason }
