package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// maxAtOnce limits the pages that are being read, but not the servers that are
// waited for: servers that hang would block the others.
const maxAtOnce = 64

// Poller polls engines. Make one with [New]. It is safe for concurrent use.
type Poller struct {
	config Config
	slots  chan struct{}
	panics atomic.Uint64
	names  signals

	mu   sync.Mutex
	busy map[string]bool // URLs with a request under way
}

// New returns a poller, or an [endpick.ConfigError].
func New(config Config) (*Poller, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	names, err := config.Names.signals()
	if err != nil {
		return nil, err
	}
	return &Poller{config: config, names: names, slots: make(chan struct{}, maxAtOnce), busy: map[string]bool{}}, nil
}

// Panics returns how often a function of the Config, or parsing a page, has
// panicked. Each panic cost its endpoint one report.
func (p *Poller) Panics() uint64 { return p.panics.Load() }

// Run polls until ctx is done, and leaves no goroutine behind when it returns.
// Endpoints that come and go are noticed in the next round. Endpoints with the
// same URL, such as the ranks of a server, are polled together.
func (p *Poller) Run(ctx context.Context) {
	var round sync.WaitGroup
	defer round.Wait()
	tick := time.NewTicker(p.config.Interval)
	defer tick.Stop()
	for {
		p.start(ctx, &round)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Poll polls every endpoint once and returns when all have answered. It leaves out those that
// are being polled.
func (p *Poller) Poll(ctx context.Context) {
	var round sync.WaitGroup
	p.start(ctx, &round)
	round.Wait()
}

// start polls every server that has no request under way.
func (p *Poller) start(ctx context.Context, round *sync.WaitGroup) {
	servers := map[string][]*endpick.Endpoint{}
	for _, s := range p.config.Router.Endpoints() {
		if e := s.Candidate.Endpoint; !s.Removed {
			if u := p.url(e); u != "" {
				servers[u] = append(servers[u], e)
			}
		}
	}
	for u, endpoints := range servers {
		p.mu.Lock()
		busy := p.busy[u]
		p.busy[u] = true
		p.mu.Unlock()
		if busy {
			continue
		}
		round.Go(func() {
			p.scrape(ctx, u, endpoints)
			p.mu.Lock()
			delete(p.busy, u)
			p.mu.Unlock()
		})
	}
}

// url is the address of an endpoint's page.
func (p *Poller) url(e *endpick.Endpoint) (u string) {
	if err := p.guard(func() { u = p.config.URL(e) }); err != nil {
		p.report(e, "", err)
		return ""
	}
	return u
}

// guard calls a function of the host in a goroutine of the poller, where a
// panic would end the process.
func (p *Poller) guard(f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p.panics.Add(1)
			err = fmt.Errorf("scrape: panic: %v", v)
		}
	}()
	f()
	return nil
}

// report reports an error.
func (p *Poller) report(e *endpick.Endpoint, u string, err error) {
	if at, err := url.Parse(u); err == nil {
		u = at.Redacted() // a password in it is for the server only
	}
	_ = p.guard(func() { p.config.OnError(&Error{Endpoint: e.ID, URL: u, Err: err}) }) // a panic is counted
}

// scrape polls one server and reports for its endpoints. An invalid answer
// voids what was known; without an answer, that grows old.
func (p *Poller) scrape(ctx context.Context, u string, endpoints []*endpick.Endpoint) {
	snapshots := make([]endpick.Snapshot, len(endpoints))
	for i, e := range endpoints {
		snapshots[i] = p.config.Router.Snapshot(e.ID)
	}
	page, answered, err := p.fetch(ctx, u)
	if ctx.Err() != nil {
		return
	}
	for i, e := range endpoints {
		load, bad := endpick.Load{}, err
		if bad == nil {
			load, bad = page.load(e, &p.names)
		}
		if bad != nil {
			p.report(e, u, bad)
			if !answered {
				continue
			}
			load = endpick.Load{Absent: endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal}
		}
		load.Snapshot = snapshots[i]
		bad = p.config.Router.Report(e.ID, load)
		if bad != nil && !errors.Is(bad, endpick.ErrUnknownEndpoint) { // the endpoint was removed meanwhile
			p.report(e, u, bad)
		}
	}
}

// fetch gets a page; answered reports whether the server did.
func (p *Poller) fetch(ctx context.Context, u string) (_ page, answered bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	var resp *http.Response
	if bad := p.guard(func() { resp, err = p.config.Client.Do(req) }); bad != nil {
		return nil, false, bad
	}
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be reused
		return nil, true, StatusError(resp.StatusCode)
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	var read page
	if bad := p.guard(func() { read, err = parse(resp.Body, p.config.MaxBytes) }); bad != nil {
		return nil, true, bad
	}
	return read, ctx.Err() == nil, err
}
