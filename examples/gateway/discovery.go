package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/discover"
)

// checkBackend returns an error if an address can't be a model server's.
func checkBackend(s string) error {
	const want = "want http://HOST[:PORT], https://… or h2c://…"
	u, err := url.Parse(s) // whose error may show a password
	switch {
	case !strings.Contains(s, "://"):
		return errors.New("has no scheme: " + want)
	case err != nil || u.Hostname() == "":
		return errors.New("has no valid host or port: " + want)
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c":
		return fmt.Errorf("has the scheme %q: %s", u.Scheme, want)
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("has a query or a fragment, which would not be sent")
	}
	if n, err := strconv.Atoi(cmp.Or(u.Port(), "80")); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%s is not a port", u.Port())
	}
	return nil
}

// discoverTimeout is how long to wait for the first list.
const discoverTimeout = 10 * time.Second

// listed are the endpoints of the settings, as a source.
type listed []endpick.Endpoint

func (l listed) Endpoints(context.Context) ([]endpick.Endpoint, error) { return l, nil }

// source is where the list of endpoints comes from.
func (s *settings) source() discover.Source {
	d := s.Discover
	switch {
	case d == nil:
		return listed(s.endpoints())
	case d.File != "":
		return discover.File(d.File)
	case d.SRV != "":
		return &discover.DNS{SRV: true, Name: d.SRV, Scheme: d.Scheme, Endpoint: d.Endpoint.endpoint()}
	}
	return &discover.DNS{Name: d.DNS, Port: d.Port, Network: d.Network, Scheme: d.Scheme, Endpoint: d.Endpoint.endpoint()}
}

func (s *settings) validateDiscover() error {
	d := s.Discover
	given := slices.DeleteFunc([]string{d.File, d.DNS, d.SRV}, func(name string) bool { return name == "" })
	switch {
	case len(s.Endpoints) > 0:
		return s.bad("discover", "and endpoints can't both be given")
	case len(given) != 1:
		return s.bad("discover", "needs one of file, dns and srv")
	case d.DNS != "" && (d.Port < 1 || d.Port > 65535):
		return s.bad("discover.port", "%d is not a port", d.Port)
	case d.DNS == "" && d.Port != 0:
		return s.bad("discover.port", "is for dns")
	case d.DNS == "" && d.Network != "":
		return s.bad("discover.network", "is for dns")
	case d.Network != "" && d.Network != "ip4" && d.Network != "ip6":
		return s.bad("discover.network", "%q is neither ip4 nor ip6", d.Network)
	case d.File != "" && d.Scheme != "":
		return s.bad("discover.scheme", "is for dns and srv; the file has URLs")
	case d.Scheme != "" && d.Scheme != "http" && d.Scheme != "https" && d.Scheme != "h2c":
		return s.bad("discover.scheme", "%q is none of http, https, h2c", d.Scheme)
	case d.File != "" && !reflect.ValueOf(d.Endpoint).IsZero():
		return s.bad("discover.endpoint", "is for dns and srv; the file says what each endpoint is")
	case d.Endpoint.URL != "" || d.Endpoint.ID != "" || d.Endpoint.Rank != nil || d.Endpoint.Drain || d.Endpoint.Events != "" || d.Endpoint.Replay != "" ||
		d.Endpoint.Wake.given():
		return s.bad("discover.endpoint", "has what belongs to one endpoint alone")
	case d.Interval > 0 && d.Interval < 100*time.Millisecond:
		return s.bad("discover.interval", "is %v, less than 100ms", d.Interval)
	}
	return s.validateEndpoint("discover.endpoint", &d.Endpoint)
}

// discovery keeps the router's endpoints equal to those of a source.
type discovery struct {
	settings *discoverSettings // nil: there is no source
	watcher  *discover.Watcher
	stop     func()
}

// sourceError says why a source has given no list. It may give one later.
type sourceError struct{ error }

// findEndpoints applies the endpoints that the settings list, or their source. On an
// error, a sourceError if the source is the reason, nothing has changed.
func (g *gateway) findEndpoints(s *settings) error {
	if s.Discover != nil && reflect.DeepEqual(s.Discover, g.discovery.settings) {
		return nil
	}
	config := g.watching(s)
	watcher, err := discover.New(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), discoverTimeout)
	defer cancel()
	// Whatever the source takes to answer, the old one is followed meanwhile.
	if _, err := config.Source.Endpoints(ctx); err != nil {
		return &sourceError{s.failed("discover", err)}
	}
	before := g.discovery
	g.discovery.end() // otherwise it might restore its own list
	if err := watcher.Poll(ctx); err != nil {
		g.discovery = startDiscovery(before.settings, before.watcher)
		// Without Poll's own words: it says that endpoints stay, and there may be none yet.
		return &sourceError{s.failed("discover", cmp.Or(errors.Unwrap(err), err))}
	}
	g.discovery = startDiscovery(s.Discover, watcher)
	return nil
}

// watching is how the source of the settings is watched.
func (g *gateway) watching(s *settings) discover.Config {
	c := discover.Config{
		Router: g.router, Source: s.source(), Fill: g.inspector.Fill, // what engines have said would be forgotten until they are asked again
		OnChange: func(c discover.Change) {
			if len(c.Added)+len(c.Removed) > 0 {
				g.log.Info("endpoints", "number", c.Endpoints, "added", c.Added, "removed", c.Removed)
			}
		},
		OnError: func(err error) { g.log.Error("endpoints stay as they are", "error", err) },
	}
	if s.Discover != nil {
		c.Interval = s.Discover.Interval
	}
	return c
}

// drain drains the endpoints that the settings say, and resumes all others. What is known
// about them is kept.
func (g *gateway) drain(s *settings) {
	for _, e := range g.router.Endpoints() {
		at := e.Candidate.Endpoint
		own := s.entry(at)
		wanted := own != nil && own.Drain
		if e.Removed || wanted == e.Draining {
			continue
		}
		change := g.router.Resume
		if wanted {
			change = g.router.Drain
		}
		if change(at.ID) == nil { // an error means that it is gone by now
			g.log.Info("endpoint", "id", at.ID, "drained", wanted)
		}
	}
}

// entry is what the settings say of an endpoint of the router; nil: nothing. An entry
// without an ID is meant by its address and rank, unless another one has this ID.
func (s *settings) entry(at *endpick.Endpoint) *endpointSettings {
	var unnamed *endpointSettings
	for i := range s.Endpoints {
		switch e := &s.Endpoints[i]; {
		case e.ID == at.ID:
			return e
		case e.ID == "" && e.URL == at.Address && (e.Rank != nil) == at.Ranked && (e.Rank == nil || *e.Rank == at.Rank):
			unnamed = e
		}
	}
	return unnamed
}

// startDiscovery starts one, unless there is no source.
func startDiscovery(s *discoverSettings, watcher *discover.Watcher) discovery {
	if s == nil {
		return discovery{}
	}
	return discovery{s, watcher, background(watcher.Run)}
}

func (d *discovery) end() {
	if d.stop != nil {
		d.stop()
	}
	*d = discovery{}
}
