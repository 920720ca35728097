package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Fleet is how many servers there are behind each way.
const Fleet = 3

// Way is a way from clients to servers.
type Way struct {
	Name  string
	About string // for the table
	// Buffers says that clients get nothing of a response before all of it is there,
	// as the way is meant. Servers don't wait for clients then, and a client that
	// would leave in the middle leaves before the header.
	Buffers bool
	// Without are scenarios that the way is not made for, and why.
	Without map[string]string
	// Patience is how long anything is waited for that has to come. Zero: half a
	// minute.
	Patience time.Duration
	// Open puts the way before servers at these addresses, host:port.
	Open func(servers []string) (*Front, error)
}

// Front is a way that is open.
type Front struct {
	Network, Address string // what clients dial
	// Leases is how many are open. Nil: there are none to be had.
	Leases func() int
	// Close waits until all that Open has started has ended.
	Close func() error
}

// Direct is the way that leads straight to the first of the servers.
func Direct() Way {
	return Way{Name: "directly", Open: func(servers []string) (*Front, error) {
		return &Front{Network: "tcp", Address: servers[0], Close: func() error { return nil }}, nil
	}}
}

// Play has a scenario on a way. The error says what could not be started, or what is
// left of it.
func Play(ctx context.Context, w Way, s Scenario) (t *Transcript, err error) {
	stage := newStage(w.patience())
	fleet, err := startServers(Fleet, stage, s.Replies, w.Buffers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.close()) }()
	front, err := w.Open(fleet.addresses())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	answers, err := talk(ctx, front.Network, front.Address, &s, stage, w.Buffers)
	if err != nil {
		return nil, err
	}
	stage.wait("the servers have ended", ctx.Done(), func() bool { return stage.serving == 0 })
	if front.Leases != nil {
		if err := until(w.patience(), "leases open", front.Leases); err != nil {
			return nil, err
		}
	}
	stage.mu.Lock()
	defer stage.mu.Unlock()
	return &Transcript{Answers: answers, Attempts: stage.attempts, Late: stage.late}, ctx.Err()
}

func (w *Way) patience() time.Duration { return cmp.Or(w.Patience, 30*time.Second) }

// until waits until there is nothing left of something.
func until(patience time.Duration, what string, left func() int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n := left()
		if n <= 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("suite: %s: %d", what, n)
		}
	}
}

// goroutines counts them once there have been as many for a while: what has just ended
// takes a moment to be gone.
func goroutines() int {
	n, since := runtime.NumGoroutine(), time.Now()
	for begun := since; time.Since(since) < 50*time.Millisecond && time.Since(begun) < 5*time.Second; time.Sleep(time.Millisecond) {
		if now := runtime.NumGoroutine(); now != n {
			n, since = now, time.Now()
		}
	}
	return n
}

// goroutinesBack waits until there are no more goroutines than before.
func goroutinesBack(patience time.Duration, before int) error {
	err := until(patience, "goroutines left", func() int { return runtime.NumGoroutine() - before })
	if err != nil {
		stacks := make([]byte, 1<<20)
		err = fmt.Errorf("%w\n%s", err, stacks[:runtime.Stack(stacks, true)])
	}
	return err
}
