package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/scrape"
)

// minPoll is the least time between two polls of a server.
const minPoll = 50 * time.Millisecond

// unasked reports whether a server is to be asked nothing, because it would wake.
func (g *gateway) unasked(e *endpick.Endpoint) bool { return (*g.sleepers.Load())(e.Address) }

// unlisted answers in place of such a server when a client asks for the models of all.
func (g *gateway) unlisted(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if one := storyOf(r.Context()); one != nil && !one.described && (*g.sleepers.Load())(r.URL.Host) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
		}
		return base.RoundTrip(r)
	})
}

// sleepers returns which addresses, and hosts with their ports, are not to be asked.
func (s *settings) sleepers() func(address string) bool {
	of := map[string]bool{}
	for _, e := range s.Endpoints {
		of[e.URL] = of[e.URL] || e.Unasked
		if to, err := url.Parse(e.URL); err == nil {
			of[to.Host] = of[to.Host] || e.Unasked
		}
	}
	return func(address string) bool { return of[address] || s.Discover != nil && s.Discover.Endpoint.Unasked }
}

// asking is a client for questions to servers, with the key that engines require. It follows
// no redirects, and keeps this many connections to a server.
func (g *gateway) asking(idle int) *http.Client {
	base := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: idle, IdleConnTimeout: time.Minute}
	return &http.Client{
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if key := *g.engineKey.Load(); key != "" {
				r = r.Clone(r.Context())
				r.Header.Set("Authorization", "Bearer "+string(key))
			}
			return base.RoundTrip(r)
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// startPolling polls the router's endpoints for their load, checks their health, and
// asks for their capacities and models until stop is called.
func (g *gateway) startPolling(every time.Duration) (stop func(), err error) {
	poller, err := scrape.New(scrape.Config{
		Router: g.router, Client: g.asking(1), Interval: every, URL: g.page("/metrics"), OnError: newPollErrors(g.log).report,
	})
	if err != nil {
		return nil, err
	}
	return background(poller.Run, g.health.Run, g.inspector.Run, g.hearing.run), nil
}

// background runs functions, each in a goroutine, until stop is called, which waits for them.
func background(all ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range all {
		running.Go(func() { run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// every calls do again and again until the context ends.
func every(ctx context.Context, pause time.Duration, do func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// page is the address of a page of each server that may be asked.
func (g *gateway) page(path string) func(*endpick.Endpoint) string {
	return func(e *endpick.Endpoint) string {
		to, err := transport.Target(e, &url.URL{Path: path})
		if err != nil || g.unasked(e) {
			return ""
		}
		to.Scheme = strings.Replace(to.Scheme, "h2c", "http", 1)
		return to.String()
	}
}

// pollErrors logs errors of polling: in one line those of all servers within pollErrorsWait, and of
// each server one an hour, or another one after a minute.
type pollErrors struct {
	log *slog.Logger

	mu      sync.Mutex
	last    map[string]pollError // by endpoint, within the last hour
	waiting map[string]error     // by endpoint, not logged yet
}

type pollError struct {
	at   time.Time
	text string
}

const pollErrorsWait = time.Second

func newPollErrors(l *slog.Logger) *pollErrors {
	return &pollErrors{log: l, last: map[string]pollError{}, waiting: map[string]error{}}
}

func (p *pollErrors) report(err error) {
	id := ""
	if e := new(scrape.Error); errors.As(err, &e) {
		id = e.Endpoint
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e, last := pollError{time.Now(), err.Error()}, p.last[id]
	if since := e.at.Sub(last.at); since < time.Minute || since < time.Hour && e.text == last.text {
		return
	}
	maps.DeleteFunc(p.last, func(_ string, last pollError) bool { return e.at.Sub(last.at) >= time.Hour })
	if len(p.waiting) == 0 {
		time.AfterFunc(pollErrorsWait, p.flush)
	}
	p.last[id], p.waiting[id] = e, err
}

func (p *pollErrors) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := slices.SortedFunc(maps.Keys(p.waiting), func(a, b string) int { return cmp.Compare(inOrder(a), inOrder(b)) })
	attributes := []any{"engines", len(ids), "ids", strings.Join(ids[:min(len(ids), 10)], " "), "error", p.waiting[ids[0]]}
	dead := func(id string) bool { return errors.As(p.waiting[id], new(*net.OpError)) }
	if slices.ContainsFunc(ids, func(id string) bool { return !dead(id) }) {
		attributes = append(attributes, "hint", "vLLM reports by itself, SGLang with --enable-metrics, llama.cpp with --metrics; of others, such as Ollama, the gateway counts its own requests")
	}
	p.log.Warn("engines do not report their load", attributes...)
	clear(p.waiting)
}
