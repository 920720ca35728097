package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/endpick/endpick"
)

// Fleet is the number of servers behind each way.
const Fleet = 3

// Way is a way from clients to servers.
type Way struct {
	Name string
	// Patience is the time limit for anything that has to happen. Zero: half a
	// minute.
	Patience time.Duration
	// Open opens the way in front of servers at these addresses, host:port.
	Open func(servers []string) (*Front, error)
}

// Front is an open way.
type Front struct {
	Network, Address string // what clients dial
	// Router returns the router behind it; nil before there is one. Nil: never.
	Router func() *endpick.Router
	// Close waits until everything that Open has started has ended.
	Close func() error
}

// leases is the number of open leases.
func (f *Front) leases() int {
	if f.Router == nil || f.Router() == nil {
		return 0
	}
	return f.Router().Stats().OpenLeases
}

// Direct is the direct way to the first server.
func Direct() Way {
	return Way{Name: "directly", Open: func(servers []string) (*Front, error) {
		return &Front{Network: "tcp", Address: servers[0], Close: func() error { return nil }}, nil
	}}
}

// Play plays a scenario on a way. The error says what could not be started, or what
// is left.
func Play(ctx context.Context, w Way, s Scenario) (t *Transcript, err error) {
	stage := &stage{patience: w.patience(), changed: make(chan struct{})}
	fleet, err := startServers(Fleet, stage, s.Replies)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.close()) }()
	front, err := w.Open(fleet.addresses())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	answers, err := talk(ctx, front.Network, front.Address, &s, stage)
	if err != nil {
		return nil, err
	}
	stage.wait("the servers have ended", ctx.Done(), func() bool { return stage.serving == 0 })
	if err := until(w.patience(), "leases open", front.leases); err != nil {
		return nil, err
	}
	stage.mu.Lock()
	defer stage.mu.Unlock()
	return &Transcript{Answers: answers, Attempts: stage.attempts, Late: stage.late}, ctx.Err()
}

func (w *Way) patience() time.Duration { return cmp.Or(w.Patience, 30*time.Second) }

// until waits until nothing is left of something.
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

// goroutines counts goroutines once their number is stable, because they take a moment
// to end.
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
