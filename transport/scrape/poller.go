package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// maxAtOnce limits the pages longer than shortPage that are being read, but neither others nor the
// servers that are waited for: servers that hang would block the others.
const (
	maxAtOnce = 64
	shortPage = 128 << 10
)

// Poller polls engines. Make one with [New]. It is safe for concurrent use.
type Poller struct {
	config Config
	slots  chan struct{}
	panics atomic.Uint64
	names  signals

	mu      sync.Mutex
	servers map[string]*server // by URL
}

// server is when a server is polled next. One that does not answer, or not with numbers, is asked
// half as often each time, and one whose page is long so rarely that reading it takes little of a
// core.
type server struct {
	busy  bool // a request is under way
	pause time.Duration
	next  time.Time
	page  string // where its page is, if not at its URL; for the request under way
}

const (
	// maxPause is the longest pause after failures; a server that is back is found after it.
	maxPause = 10 * time.Second
	// perByte is the pause for each byte of a page: it takes some 10 ns to read one, and 120 ns in the worst
	// of pages, which then take five percent of a core. That of a vLLM has 60 to 100 KB.
	perByte = 2500 * time.Nanosecond
)

// ended says how a poll went, and how many bytes the page had.
func (s *server) ended(now time.Time, interval time.Duration, size int64, failed bool) {
	s.busy = false
	if failed {
		s.pause = min(max(2*s.pause, interval), maxPause)
	} else {
		s.pause = 0
	}
	// Less than a whole interval, since rounds are not exactly as far apart.
	s.next = now.Add(max(s.pause, time.Duration(size)*perByte) - interval/2)
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
	return &Poller{config: config, names: names, slots: make(chan struct{}, maxAtOnce), servers: map[string]*server{}}, nil
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
		p.start(ctx, &round, false)
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
	p.start(ctx, &round, true)
	round.Wait()
}

// start polls every server that has no request under way, and whose time has come or, if all are
// to be asked, may come.
func (p *Poller) start(ctx context.Context, round *sync.WaitGroup, all bool) {
	found := map[string][]*endpick.Endpoint{}
	for _, s := range p.config.Router.Endpoints() {
		if e := s.Candidate.Endpoint; !s.Removed {
			if u := p.url(e); u != "" {
				found[u] = append(found[u], e)
			}
		}
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.servers, func(u string, s *server) bool { return found[u] == nil && !s.busy })
	for u, endpoints := range found {
		s := p.servers[u]
		if s == nil {
			s = new(server)
			p.servers[u] = s
		}
		if s.busy || !all && now.Before(s.next) {
			continue
		}
		s.busy = true
		round.Go(func() {
			size, failed := p.scrape(ctx, u, &s.page, endpoints)
			p.mu.Lock()
			defer p.mu.Unlock()
			s.ended(time.Now(), p.config.Interval, size, failed)
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

func (p *Poller) report(e *endpick.Endpoint, u string, err error) {
	if at, err := url.Parse(u); err == nil {
		u = at.Redacted() // a password in it is for the server only
	}
	_ = p.guard(func() { p.config.OnError(&Error{Endpoint: e.ID, URL: u, Err: err}) }) // a panic is counted
}

// scrape polls one server and reports for its endpoints. An invalid answer
// voids what was known; without an answer, that grows old. trtllm-serve has JSON at /metrics.
func (p *Poller) scrape(ctx context.Context, u string, page *string, endpoints []*endpick.Endpoint) (size int64, failed bool) {
	snapshots := make([]endpick.Snapshot, len(endpoints))
	for i, e := range endpoints {
		snapshots[i] = p.config.Router.Snapshot(e.ID)
	}
	read, size, answered, err := p.read(ctx, cmp.Or(*page, u))
	if server, is := strings.CutSuffix(u, "/metrics"); *page != "" && err != nil {
		*page = ""
	} else if is && errors.Is(err, ErrFormat) {
		at := server + "/prometheus/metrics"
		if other, n, _, bad := p.read(ctx, at); bad == nil {
			read, size, err, *page = other, n, nil, at
		}
	}
	if ctx.Err() != nil {
		return size, false
	}
	for i, e := range endpoints {
		load, bad := endpick.Load{}, err
		if bad == nil {
			load, bad = read.load(e, &p.names)
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
	return size, err != nil
}

// read reads and parses a page of metrics.
func (p *Poller) read(ctx context.Context, u string) (read page, size int64, answered bool, err error) {
	text, answered, err := p.get(ctx, u, "text/plain;version=0.0.4")
	if err == nil {
		bad := p.guard(func() { read, err = parse(string(text)) })
		err = cmp.Or(bad, err)
	}
	return read, int64(len(text)), answered, err
}

// get reads a page; answered reports whether the server did. A status other than 200 is a StatusError.
func (p *Poller) get(ctx context.Context, u string, accept ...string) (text []byte, answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, false, err
	}
	req.Header["Accept"] = accept
	bad := p.guard(func() {
		var resp *http.Response
		if resp, err = p.config.Client.Do(req); err != nil {
			return
		}
		defer resp.Body.Close()
		if answered = true; resp.StatusCode != http.StatusOK {
			host.Drain(resp, 4<<10)
			err = StatusError(resp.StatusCode)
			return
		}
		body := io.LimitReader(resp.Body, max(p.config.MaxBytes, p.config.MaxBytes+1))
		if text, err = io.ReadAll(io.LimitReader(body, shortPage)); len(text) == shortPage {
			select {
			case p.slots <- struct{}{}:
				defer func() { <-p.slots }()
			case <-ctx.Done():
				answered, err = false, ctx.Err()
				return
			}
			var rest []byte
			rest, err = io.ReadAll(body)
			text = append(text, rest...)
		}
		if answered = ctx.Err() == nil; int64(len(text)) > p.config.MaxBytes {
			err = ErrTooLong
		}
	})
	return text, answered, cmp.Or(bad, err)
}
