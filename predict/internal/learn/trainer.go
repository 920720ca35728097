package learn

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultShare = 0.2
	// maxPending limits the labels of a learner that wait during a fit; more are dropped and
	// counted.
	maxPending = 8192
)

// A Trainer decides when and where the learners that share it are fitted: one at a time, started by
// the label that makes a fit due, in a goroutine that ends with it, and within its share of a core.
// The zero value is ready to use. It is safe for concurrent use once learners have it, and there is
// nothing to close.
type Trainer struct {
	// Synchronous fits in the call of Label that makes a fit due, so that the result depends only on
	// the order of the calls. It is for simulators and tests.
	Synchronous bool
	// Manual leaves refits to calls of Learner.Refit.
	Manual bool
	// Share is how much of one core fits may take, in (0, 1]; 0 means 0.2.
	Share float64

	fitting func(*Learner) // in tests: called within each fit

	mu   sync.Mutex // guards the fields below, held briefly
	due  []*Learner // waiting for their turn, each once
	busy bool
	rest time.Time // no fit begins before
}

// fit fits the learner, here or, when it is its turn, in a goroutine that ends with the fit. A
// postponed turn comes with one of the next labels of the learners that are due.
func (t *Trainer) fit(l *Learner) {
	if t.Synchronous {
		l.refitIfDue()
		return
	}
	began := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.due, l) {
		t.due = append(t.due, l)
	}
	if t.busy || began.Before(t.rest) {
		return
	}
	next := t.due[0]
	t.due = slices.Delete(t.due, 0, 1)
	t.busy = true
	go func() {
		next.refitIfDue()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.busy = false
		now := time.Now()
		t.rest = now.Add(rest(now.Sub(began), t.Share))
	}()
}

// rest is how long to pause after working, so that work takes a share of the time.
func rest(worked time.Duration, share float64) time.Duration {
	if share == 0 {
		share = defaultShare
	}
	return time.Duration(float64(worked) * (1 - share) / share)
}

// clock is only read around refits, for their duration. A synchronous trainer has none.
func (t *Trainer) clock() time.Time {
	if t.Synchronous {
		return time.Time{}
	}
	return time.Now()
}

// takeIn learns from the pending labels, unless another goroutine is doing so, which then includes
// these, or a fit is running, which does so at its end. Callers must not hold l.mu.
func (l *Learner) takeIn() {
	for l.queue.waiting.Load() > 0 && l.mu.TryLock() {
		if l.takePending() {
			l.trainer.fit(l)
		}
	}
}

// release unlocks l.mu and learns from the labels that have arrived meanwhile.
func (l *Learner) release() {
	l.mu.Unlock()
	l.takeIn()
}

// takePending learns from pending labels, and reports whether a refit is then due. It unlocks
// l.mu.
func (l *Learner) takePending() (due bool) {
	defer l.mu.Unlock()
	samples, rows := l.queue.takeAll()
	k := l.config.Boost.Features
	for i, s := range samples {
		l.take(rows[i*k:(i+1)*k], s)
	}
	return l.due()
}

// recovered turns a panic into an error, because nobody else would recover it.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("learn: panic in a fit: %v", p)
	}
}

// A queue holds labels until they are learned from.
type queue struct {
	waiting atomic.Int64 // how many there are

	mu             sync.Mutex
	samples, spare []sample
	rows, spareRow []float64
}

// put copies a sample into the queue; false if it is full.
func (q *queue) put(row []float64, s sample) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.samples) >= maxPending {
		return false
	}
	q.samples = append(q.samples, s)
	q.rows = append(q.rows, row...)
	q.waiting.Store(int64(len(q.samples)))
	return true
}

// takeAll empties the queue. The result is valid until the next call.
func (q *queue) takeAll() ([]sample, []float64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	samples, rows := q.samples, q.rows
	q.samples, q.rows = q.spare[:0], q.spareRow[:0]
	q.spare, q.spareRow = samples, rows
	q.waiting.Store(0)
	return samples, rows
}
