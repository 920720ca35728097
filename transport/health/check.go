package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// Run checks endpoints until ctx is done, and leaves no goroutine behind when it
// returns. Endpoints that come and go are noticed in the next round. Endpoints with
// the same URL, such as the ranks of a server, are checked together.
func (m *Monitor) Run(ctx context.Context) {
	var round sync.WaitGroup
	defer round.Wait()
	tick := time.NewTicker(m.config.Interval)
	defer tick.Stop()
	states := map[endpick.EndpointRef]State{}
	for {
		m.start(ctx, &round, false)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m.reportChanges(states)
	}
}

// Check checks every endpoint once, and returns when all have answered or timed
// out. It leaves out those that are being checked.
func (m *Monitor) Check(ctx context.Context) {
	var round sync.WaitGroup
	m.start(ctx, &round, true)
	round.Wait()
}

// reportChanges calls OnChange for the endpoints whose state is not the one in states,
// which it updates.
func (m *Monitor) reportChanges(states map[endpick.EndpointRef]State) {
	if m.config.OnChange == nil {
		return
	}
	seen := map[endpick.EndpointRef]bool{}
	m.each(func(ref endpick.EndpointRef, s Status) {
		seen[ref] = true
		if was := states[ref]; was != s.State { // the zero State is Well
			states[ref] = s.State
			defer func() { _ = recover() }() // the host's problem
			m.config.OnChange(s)
		}
	})
	maps.DeleteFunc(states, func(ref endpick.EndpointRef, _ State) bool { return !seen[ref] })
}

const (
	// manyDead is how many servers that can't be connected to are checked in an Interval; if there
	// are more, each is checked less often, but once in mostPause at least.
	manyDead  = 20
	mostPause = 30 * time.Second
)

// start checks every server that has no check under way. One that can't be connected to waits for its
// time, unless no other is left or all is set.
func (m *Monitor) start(ctx context.Context, round *sync.WaitGroup, all bool) {
	servers := map[string][]endpick.Candidate{}
	for _, s := range m.config.Router.Endpoints() {
		if !s.Removed {
			if u := m.url(s.Candidate.Endpoint); u != "" {
				servers[u] = append(servers[u], s.Candidate)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.asked, func(u string, s *server) bool { return servers[u] == nil && !s.busy })
	dead := 0
	for _, s := range m.asked {
		if s.dead {
			dead++
		}
	}
	now := time.Now()
	pause := min(m.config.Interval*time.Duration(dead)/manyDead, mostPause)
	for u, endpoints := range servers {
		s := m.asked[u]
		if s == nil {
			s = &server{}
			m.asked[u] = s
		}
		if s.busy || s.dead && !all && dead < len(servers) && now.Sub(s.at) < pause {
			continue
		}
		s.busy, s.at = true, now
		round.Go(func() {
			connected := m.check(ctx, u, endpoints)
			m.mu.Lock()
			defer m.mu.Unlock()
			s.busy, s.dead = false, !connected
		})
	}
}

// server is what is known of a server's checks; Monitor.mu guards it.
type server struct {
	busy bool      // one is under way
	at   time.Time // of the last
	dead bool      // which found no connection
}

// url is the address of an endpoint's page, or empty if Config.URL panics.
func (m *Monitor) url(e *endpick.Endpoint) (u string) {
	defer func() {
		if recover() != nil {
			u = ""
		}
	}()
	return m.config.URL(e)
}

// check checks one server, records the result for its endpoints, and says whether a connection could
// be made.
func (m *Monitor) check(ctx context.Context, u string, endpoints []endpick.Candidate) bool {
	checks := make([]health.Attempt, len(endpoints))
	busy := slices.ContainsFunc(endpoints, func(c endpick.Candidate) bool { return c.InFlight.Requests > 0 })
	for i, c := range endpoints {
		checks[i] = m.core.Check(c.Endpoint.ID, c.Ref, busy)
	}
	connected, err := m.ask(ctx, u)
	if ctx.Err() != nil {
		return true
	}
	for _, a := range checks {
		a.Checked(err, connected)
	}
	return connected
}

// ask requests a page, and says whether a connection could be made. It returns nil if the server is
// well, or if the page says nothing about it, or if the host's client panics.
func (m *Monitor) ask(ctx context.Context, u string) (connected bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.config.Timeout)
	defer cancel()
	defer func() {
		if recover() != nil {
			connected, err = true, nil
		}
	}()
	var wanted, got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { wanted.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return true, err // of Config.URL
	}
	resp, err := m.config.Client.Do(req)
	if err != nil {
		// Only the trace shows that a connection was not made in time.
		waited := errors.Is(err, context.DeadlineExceeded) && wanted.Load() && !got.Load()
		return !waited && !host.IsDial(err), err
	}
	defer resp.Body.Close()
	host.Drain(resp, 4<<10)
	if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented {
		err = fmt.Errorf("health: answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return true, err
}
