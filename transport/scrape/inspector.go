package scrape

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport/internal/host"
)

// Facts are what an engine reports about itself. What it does not report is
// zero.
type Facts struct {
	Engine       string // such as "vllm"; empty: unknown
	KVTokens     int    // tokens that its KV cache holds
	BlockTokens  int    // tokens per block of it
	MaxSequences int    // requests that it runs at once
	// Models and Adapters are the names that it serves, those of Ollama with and
	// without the tag "latest". Nil: it does not report them, or accepts any name, as
	// llama.cpp does with one model.
	Models, Adapters []string
	// Events and Replay are the addresses at which it publishes KV-cache events, host:port, as
	// package kvevents takes them: the host is the endpoint's, whatever the engine says.
	Events, Replay string
	// Residents are its models and where they are, of Ollama, llama.cpp with several models,
	// llama-swap and LM Studio.
	Residents []endpick.Resident
	// MaxResidents is how many of them fit into memory at a time.
	MaxResidents int
	adapts       bool // it may load adapters at any time
}

// InspectorConfig configures an [Inspector]. All fields except Router are optional.
type InspectorConfig struct {
	// Router is the router whose endpoints are completed. It must be set.
	Router *endpick.Router
	// Client sends the requests. Nil: as in [Config].
	Client *http.Client
	// Interval is the time after which an engine that has answered is asked again,
	// because it may have been restarted or have loaded an adapter. An engine that
	// has not answered is asked again after a tenth of it, one that loads models when they are
	// asked for, or adapters, after a thirtieth, and after a quarter of a second once these have come or gone; one whose
	// pages are long, 2.5 seconds later for each megabyte of them. Zero: one minute.
	Interval time.Duration
	// Timeout is how long each page may take. Zero: five seconds.
	Timeout time.Duration
	// MaxBytes limits the length of a page. Zero: 8 MiB.
	MaxBytes int64
	// Skip says which endpoints are not to be asked. Nil: all are.
	Skip func(*endpick.Endpoint) bool
	// DisableModels leaves the Models and Adapters of endpoints as they are: an
	// endpoint without names then serves any model.
	DisableModels bool
	// OnError is called with each error, an [Error], from many goroutines.
	// Nil: errors are ignored.
	OnError func(error)
}

// Inspector asks engines for their capacity and models, and completes the endpoints of
// a router: Engine, Residents, KVTokens and MaxSequences if they are unknown, Models and Adapters if both
// are empty. What the host has set is kept. Make one with [NewInspector]. It is safe for
// concurrent use.
type Inspector struct {
	config InspectorConfig
	asker  *Poller       // its client, limits and guards are used
	moved  chan struct{} // holds one while models that have come or gone are not in the router yet

	round sync.Mutex // held while endpoints are completed

	mu    sync.Mutex
	known map[string]*inspected // by key
}

// inspected is what is known about one endpoint.
type inspected struct {
	facts Facts
	good  bool      // facts are known
	since time.Time // when it was asked for them, on the router's clock
	asked time.Time // when it was last asked, or is being asked
	busy  bool
	size  int              // bytes of its pages since then
	pause time.Duration    // how long one that loads models is left alone
	base  endpick.Endpoint // as the host describes it
	set   endpick.Endpoint // as completed
	// given and filled are what Fill last got and returned.
	given, filled endpick.Endpoint
}

// NewInspector returns an inspector, or an [endpick.ConfigError].
func NewInspector(config InspectorConfig) (*Inspector, error) {
	if err := check.Default("scrape.InspectorConfig.Interval", &config.Interval, time.Minute); err != nil {
		return nil, err
	}
	asker, err := New(Config{
		Router: config.Router, Client: config.Client, Timeout: config.Timeout, MaxBytes: config.MaxBytes, OnError: config.OnError,
	})
	if err != nil {
		return nil, err
	}
	return &Inspector{config: config, asker: asker, moved: make(chan struct{}, 1), known: map[string]*inspected{}}, nil
}

// key identifies a server, or a rank of one.
func key(e *endpick.Endpoint) string {
	if e.Ranked {
		return e.Address + "#" + strconv.Itoa(e.Rank)
	}
	return e.Address
}

// Run asks new endpoints within a second, and the others from time to time, until ctx
// is done; results are applied within another second. It leaves no goroutine behind
// when it returns.
func (s *Inspector) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		s.start(ctx, &all, false)
		select {
		case <-ctx.Done():
			return
		case <-s.moved:
		case <-time.After(s.pause()):
		}
	}
}

// soon is how long a server is left alone whose models have come or gone: which had to go is not known
// until it says so.
const soon = time.Second / 4

// pause is after how long somebody may be due.
func (s *Inspector) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	pause := time.Second
	for _, k := range s.known {
		if k.facts.Residents != nil && k.pause < pause {
			pause = soon
		}
	}
	return min(pause, s.config.Interval)
}

// Poll asks every endpoint once and returns when all have answered. It leaves out those that
// are being asked.
func (s *Inspector) Poll(ctx context.Context) {
	var all sync.WaitGroup
	s.start(ctx, &all, true)
	all.Wait()
	s.complete()
}

// Facts returns what is known about an endpoint; false if nothing is.
func (s *Inspector) Facts(e *endpick.Endpoint) (Facts, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[key(e)]
	if k == nil || !k.good {
		return Facts{}, false
	}
	return k.facts, true
}

// Fill completes the description of an endpoint with what is already known about it.
// Use it as the Fill of package discover, so that nothing is lost when a new list is
// applied.
func (s *Inspector) Fill(e *endpick.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.known[key(e)]; k != nil && k.good {
		k.given = *e
		s.fill(e, k)
		k.filled = *e
	}
}

func (s *Inspector) fill(e *endpick.Endpoint, k *inspected) {
	f := &k.facts
	e.Engine = cmp.Or(e.Engine, f.Engine)
	e.KVTokens = cmp.Or(e.KVTokens, f.KVTokens)
	e.MaxSequences = cmp.Or(e.MaxSequences, f.MaxSequences)
	e.MaxResidents = cmp.Or(e.MaxResidents, f.MaxResidents)
	if len(e.Models)+len(e.Adapters) == 0 {
		e.Models, e.Adapters = slices.Clone(f.Models), slices.Clone(f.Adapters)
	}
	if e.Residents == nil && f.Residents != nil {
		e.Residents, e.ResidentsAt = slices.Clone(f.Residents), k.since
	}
}

// start asks the endpoints that are due, and completes all from what is known.
func (s *Inspector) start(ctx context.Context, all *sync.WaitGroup, now bool) {
	there := s.complete()
	for k, e := range there {
		if !s.skips(e) && s.due(k, now) {
			all.Go(func() { s.ask(ctx, k, e) })
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.known, func(k string, v *inspected) bool { return there[k] == nil && !v.busy })
}

func (s *Inspector) skips(e *endpick.Endpoint) (skip bool) {
	if s.config.Skip == nil {
		return false
	}
	if err := s.asker.guard(func() { skip = s.config.Skip(e) }); err != nil {
		s.asker.report(e, "", err)
	}
	return skip
}

// due reports whether an endpoint is due, and records that it is being asked.
func (s *Inspector) due(at string, now bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[at]
	if k == nil {
		k = &inspected{}
		s.known[at] = k
	}
	wait := s.config.Interval
	switch {
	case !k.good:
		wait /= 10
	case k.facts.Residents != nil:
		wait = k.pause
	case k.facts.adapts:
		wait /= 30
	}
	wait = max(wait, time.Duration(k.size)*perByte)
	if k.busy || !now && time.Since(k.asked) < wait {
		return false
	}
	k.busy, k.asked, k.size = true, time.Now(), 0
	return true
}

// ask asks one engine. The facts are applied when endpoints are next completed, because
// the host may have changed this one's description meanwhile.
func (s *Inspector) ask(ctx context.Context, at string, e *endpick.Endpoint) {
	s.mu.Lock()
	facts := s.known[at].facts
	s.mu.Unlock()
	since := s.config.Router.Now()
	var err error
	bad := s.asker.guard(func() {
		if facts.Residents != nil { // what it is does not change as fast
			facts.Models, facts.Adapters, facts.Residents = nil, nil, nil
			if err = s.readSeveral(ctx, e, &facts); err == nil && facts.Residents != nil {
				return
			}
		}
		facts, err = s.read(ctx, e)
	})
	err = cmp.Or(bad, err)
	s.mu.Lock()
	k := s.known[at]
	k.busy = false
	moved := err == nil && !slices.EqualFunc(k.facts.Residents, facts.Residents, sameState)
	if k.pause *= 2; moved {
		k.pause = soon
	}
	k.pause = min(k.pause, max(s.config.Interval/30, soon)) // also for one that has died
	if err == nil {
		k.facts, k.good, k.since = facts, true, since
	}
	s.mu.Unlock()
	if moved {
		select {
		case s.moved <- struct{}{}:
		default:
		}
	}
	if err != nil && ctx.Err() == nil {
		s.asker.report(e, host.Page(e.Address, ""), err)
	}
}

// complete updates the router's endpoints from what is known, and returns the first
// endpoint of each server or rank.
func (s *Inspector) complete() map[string]*endpick.Endpoint {
	s.round.Lock()
	defer s.round.Unlock()
	there := map[string]*endpick.Endpoint{}
	for _, status := range s.config.Router.Endpoints() {
		e := status.Candidate.Endpoint
		if k := key(e); !status.Removed && there[k] == nil {
			there[k] = e
			s.completeOne(k, e)
		}
	}
	return there
}

func (s *Inspector) completeOne(at string, e *endpick.Endpoint) {
	s.mu.Lock()
	k := s.known[at]
	if k == nil || !k.good {
		s.mu.Unlock()
		return
	}
	if !reflect.DeepEqual(*e, k.set) { // the host has changed it
		k.base = *e
		k.given.ID, k.filled.ID = e.ID, e.ID // it may be the router that has named it
		if reflect.DeepEqual(*e, k.filled) {
			k.base = k.given
		}
	}
	next := k.base
	s.fill(&next, k)
	k.set = next
	s.mu.Unlock()
	if !reflect.DeepEqual(next, *e) {
		if err := s.config.Router.Update(next); err != nil && !errors.Is(err, endpick.ErrUnknownEndpoint) { // the endpoint was removed meanwhile
			s.asker.report(e, host.Page(e.Address, ""), err)
		}
	}
}

// get reads a page of an engine.
func (s *Inspector) get(ctx context.Context, e *endpick.Endpoint, path string) ([]byte, error) {
	text, _, err := s.asker.get(ctx, host.Page(e.Address, path))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[key(e)].size += len(text)
	return text, err
}

// ErrNoFacts: the server has no page with the capacities of a known engine, and lists no models.
var ErrNoFacts = errors.New("scrape: no known engine")

// read recognizes the engine, and reads what it reports.
func (s *Inspector) read(ctx context.Context, e *endpick.Endpoint) (Facts, error) {
	text, err := s.get(ctx, e, "/metrics")
	if err != nil && !errors.As(err, new(StatusError)) {
		return Facts{}, err
	}
	if err == nil {
		p, err := parse(string(text))
		if err != nil && !json.Valid(text) { // LM Studio answers 200 with an error, whatever the path
			return Facts{}, err
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(p)), func(name string) bool { return strings.HasPrefix(name, "vllm_") }) {
			f := p.vllm(e)
			f.adapts = strings.Contains(string(text), "lora_requests_info") // at first, only its help
			if err = s.readModels(ctx, e, &f); err == nil {
				err = s.readEvents(ctx, e, &f)
			}
			return f, err
		}
	}
	var f Facts
	// SGLang and llama.cpp may have no metrics.
	for _, page := range []struct {
		path string
		read func([]byte, *endpick.Endpoint) (Facts, error)
	}{{"/props", llamaFacts}, {"/get_server_info", sglangFacts}, {"/server_info", sglangFacts}} {
		text, err := s.get(ctx, e, page.path)
		if errors.As(err, new(StatusError)) {
			continue
		}
		if err != nil {
			return Facts{}, err
		}
		f, err = page.read(text, e)
		switch {
		case errors.Is(err, ErrNoFacts):
			continue
		case err != nil:
			return f, badPage(page.path, err)
		case f.Engine == "sglang":
			err = s.readModels(ctx, e, &f)
		}
		return f, err
	}
	// Others, and llama.cpp with several models, list these at least.
	return f, s.readSeveral(ctx, e, &f)
}

// readSeveral adds the models of an engine, and which of them are in memory.
func (s *Inspector) readSeveral(ctx context.Context, e *endpick.Endpoint, f *Facts) error {
	err := s.readModels(ctx, e, f)
	if err == nil {
		err = s.readMemory(ctx, e, f)
	}
	if err == nil && len(f.Models) == 0 && !(s.config.DisableModels && f.Engine != "") {
		err = ErrNoFacts
	}
	return err
}

// readModels adds the names that an engine serves. An engine that requires a key, unless the
// client adds it, does not tell.
func (s *Inspector) readModels(ctx context.Context, e *endpick.Endpoint, f *Facts) error {
	if s.config.DisableModels {
		return nil
	}
	for _, path := range []string{"/v1/models", "/api/tags"} { // the latter is Ollama's
		text, err := s.get(ctx, e, path)
		if errors.As(err, new(StatusError)) {
			continue
		}
		if err != nil {
			return err
		}
		if err = f.serves(text); err != nil {
			return badPage(path, err)
		}
		break
	}
	return nil
}

// readEvents adds where a vLLM publishes events. Old releases have no such page.
func (s *Inspector) readEvents(ctx context.Context, e *endpick.Endpoint, f *Facts) error {
	text, err := s.get(ctx, e, "/kv_event_sources")
	if errors.As(err, new(StatusError)) {
		return nil
	}
	f.publishes(text, e)
	return err
}

func badPage(path string, err error) error { return fmt.Errorf("%w: %s: %w", ErrFormat, path, err) }
