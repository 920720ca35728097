package quota

import (
	"fmt"
	"time"
)

// requestsRetry is when to try again if too many requests are in flight: when one of
// them ends is not known.
const requestsRetry = time.Second

// Error says which limit a tenant has reached: Requests, if that is above zero, or
// else that of its tokens.
type Error struct {
	Tenant string
	// RetryAfter is when the bucket will hold enough if the tenant takes nothing
	// else from it; a second if it has too many requests in flight.
	RetryAfter time.Duration
	Need, Have float64 // tokens; Have is negative for a debt
	Requests   int     // in flight, as many as allowed; 0: it is out of tokens
}

// Refusal is what the client learns, and when to try again; see [endpick.Admitter].
func (e *Error) Refusal() (message string, retryAfter time.Duration) {
	if e.Requests > 0 {
		return fmt.Sprintf("too many requests at once: %d are running, and more are not allowed", e.Requests), e.RetryAfter
	}
	return fmt.Sprintf("the rate limit is reached: try again in %v", e.RetryAfter.Round(time.Millisecond)), e.RetryAfter
}

func (e *Error) Error() string {
	if e.Requests > 0 {
		return fmt.Sprintf("quota: too many requests at once: tenant %q has %d in flight", e.Tenant, e.Requests)
	}
	return fmt.Sprintf("quota: out of tokens: tenant %q needs %.0f and has %.0f, try again in %v", e.Tenant, e.Need, e.Have, e.RetryAfter.Round(time.Millisecond))
}
