package queue

import (
	"errors"
	"fmt"
	"time"
)

// Why a request left the queue without being dispatched, or was not accepted;
// for errors.Is.
var (
	// ErrFull: there was no room for it.
	ErrFull = errors.New("queue: full")
	// ErrTooLarge: it is larger than the whole queue.
	ErrTooLarge = errors.New("queue: request is larger than the whole queue")
	// ErrTimeout: it waited for as long as it may.
	ErrTimeout = errors.New("queue: timed out")
	// ErrShed: it was dropped to make room for a more important request.
	ErrShed = errors.New("queue: shed to make room")
)

// Error says why a request was dropped. It matches Reason.
type Error struct {
	Reason   error // ErrFull, ErrTooLarge, ErrTimeout or ErrShed
	Waited   time.Duration
	Priority int
	// Requests is how many requests the queue held.
	Requests int
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: priority %d, waited %v, %d requests held", e.Reason, e.Priority, e.Waited, e.Requests)
}

// Unwrap returns Reason.
func (e *Error) Unwrap() error { return e.Reason }
