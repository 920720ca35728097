package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport/internal/host"
)

// Source lists endpoints.
type Source interface {
	// Endpoints returns the whole list, in any order. The caller may change it. It is
	// called by one goroutine at a time. An error that matches ErrEmpty means an empty
	// list.
	Endpoints(ctx context.Context) ([]endpick.Endpoint, error)
}

// ErrEmpty: the source lists no endpoints; for errors.Is.
var ErrEmpty = errors.New("discover: no endpoints")

// Change says what a new list has changed.
type Change struct {
	Endpoints      int      // that there are now
	Added, Removed []string // IDs, sorted
}

// maxEndpoints limits the length of a list.
const maxEndpoints = 100_000

// Config configures a [Watcher]. Router and Source are required.
type Config struct {
	// Router receives the lists.
	Router *endpick.Router
	// Source provides them.
	Source Source
	// Interval is the time between two polls. Zero: two seconds.
	Interval time.Duration
	// Timeout is how long the source may take to answer. Zero: five seconds.
	Timeout time.Duration
	// AllowEmpty accepts an empty list.
	AllowEmpty bool
	// Fill completes each endpoint of a list, for example with what the engine
	// reports about itself. It is called at each poll, so that what it learns later
	// is applied too. Nil: endpoints are used as the source lists them.
	Fill func(*endpick.Endpoint)
	// OnChange is called after each list that was applied. Like OnError, it must not call Poll. Nil:
	// changes are not reported.
	OnChange func(Change)
	// OnError is called with an error of Poll when something goes wrong, and not again
	// until that changes. Nil: errors are not reported.
	OnError func(error)
}

func (c *Config) validate() error {
	switch {
	case c.Router == nil:
		return check.Bad("discover.Config.Router", "is nil")
	case c.Source == nil || c.Source == (*DNS)(nil):
		return check.Bad("discover.Config.Source", "is nil")
	}
	return cmp.Or(
		check.Default("discover.Config.Interval", &c.Interval, 2*time.Second),
		check.Default("discover.Config.Timeout", &c.Timeout, 5*time.Second),
		validate(c.Source),
	)
}

// validate checks the required fields of this package's sources.
func validate(s Source) error {
	switch s := s.(type) {
	case *file:
		if s.path == "" {
			return check.Bad("discover.File", "has no path")
		}
	case *DNS:
		switch {
		case s.Name == "":
			return check.Bad("discover.DNS.Name", "is empty")
		case !s.SRV && (s.Port < 1 || s.Port > 65535):
			return check.Bad("discover.DNS.Port", "is %d, not within 1 and 65535", s.Port)
		case !slices.Contains([]string{"", "ip4", "ip6"}, s.Network):
			return check.Bad("discover.DNS.Network", "is %q, not ip4 or ip6", s.Network)
		case !slices.Contains([]string{"", "http", "https", "h2c"}, s.Scheme):
			return check.Bad("discover.DNS.Scheme", "is %q, not http, https or h2c", s.Scheme)
		}
	}
	return nil
}

// Watcher keeps a router's endpoints equal to a source's list. Make one with [New];
// one router has one. It is safe for concurrent use.
type Watcher struct {
	config Config

	mu     sync.Mutex // held while the source is polled
	taken  bool
	last   []endpick.Endpoint // as applied, sorted
	failed string             // the last error reported
}

// New returns a watcher, or an [endpick.ConfigError].
func New(config Config) (*Watcher, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Watcher{config: config}, nil
}

// Run polls the source until ctx is done.
func (w *Watcher) Run(ctx context.Context) {
	tick := time.NewTicker(w.config.Interval)
	defer tick.Stop()
	for {
		_ = w.Poll(ctx) // OnError reports it
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Poll polls the source once, and applies its list if it has changed. After an error the
// endpoints are unchanged. It is that of ctx, or wraps what was wrong with the list: ErrEmpty,
// an error of [endpick.Router.SetEndpoints], or what a file system or resolver returned.
func (w *Watcher) Poll(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	list, err := w.ask(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var change *Change
	if err == nil && !(w.taken && reflect.DeepEqual(list, w.last)) {
		change, err = w.take(list)
	}
	if err != nil {
		err = fmt.Errorf("discover: the endpoints stay as they are: %w", err)
		if text := err.Error(); text != w.failed && w.config.OnError != nil {
			w.failed = text
			guard(func() { w.config.OnError(err) })
		}
		return err
	}
	w.failed = ""
	if change != nil && w.config.OnChange != nil {
		guard(func() { w.config.OnChange(*change) })
	}
	return nil
}

// ask gets a valid list, sorted by ID.
func (w *Watcher) ask(ctx context.Context) (list []endpick.Endpoint, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			list, err = nil, fmt.Errorf("the source, or Config.Fill, panicked: %v", v)
		}
	}()
	list, err = w.config.Source.Endpoints(ctx)
	switch {
	case errors.Is(err, ErrEmpty):
		list = nil
	case err != nil:
		return nil, err
	case len(list) > maxEndpoints:
		return nil, fmt.Errorf("has %d endpoints, more than %d", len(list), maxEndpoints)
	}
	if len(list) == 0 {
		if w.config.AllowEmpty {
			return nil, nil
		}
		return nil, cmp.Or(err, ErrEmpty)
	}
	for i := range list {
		e := &list[i]
		if _, err := host.Parse(e.Address); err != nil {
			return nil, fmt.Errorf("endpoint %d of the list, %q: %w", i+1, e.ID, err)
		}
		if w.config.Fill != nil {
			w.config.Fill(e)
		}
	}
	slices.SortStableFunc(list, func(a, b endpick.Endpoint) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Rank, b.Rank))
	})
	return list, nil
}

// take applies a list to the router.
func (w *Watcher) take(list []endpick.Endpoint) (*Change, error) {
	before := w.ids()
	if err := w.config.Router.SetEndpoints(list); err != nil {
		return nil, err
	}
	w.taken, w.last = true, slices.Clone(list)
	now := w.ids()
	return &Change{Endpoints: len(now), Added: missing(now, before), Removed: missing(before, now)}, nil
}

// ids are those of the router's endpoints, sorted.
func (w *Watcher) ids() []string {
	var ids []string
	for _, e := range w.config.Router.Endpoints() {
		if !e.Removed {
			ids = append(ids, e.Candidate.Endpoint.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// missing returns those of a that are not in b, which is sorted.
func missing(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(id string) bool {
		_, found := slices.BinarySearch(b, id)
		return found
	})
}

// guard calls a function of the host in a goroutine where a panic would end the
// process.
func guard(f func()) {
	defer func() { _ = recover() }()
	f()
}

// copied is a deep copy.
func copied(list []endpick.Endpoint) []endpick.Endpoint {
	list = slices.Clone(list)
	for i := range list {
		e := &list[i]
		e.Models, e.Adapters, e.Labels = slices.Clone(e.Models), slices.Clone(e.Adapters), maps.Clone(e.Labels)
	}
	return list
}
