package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/kvevents"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/transport/scrape"
	"github.com/endpick/endpick/transport/tokens"
)

// tokensSettings say where a model's token ids come from: Render or Llama.
type tokensSettings struct {
	Render string        `yaml:"render"`
	Llama  string        `yaml:"llama"`
	Within time.Duration `yaml:"within"`
}

// eventSettings are the settings of an endpoint that its events depend on.
type eventSettings struct {
	events, replay string // addresses
	model          string // the model it serves
	key            prefix.Key
}

func (a eventSettings) equal(b eventSettings) bool {
	return a.events == b.events && a.replay == b.replay && a.model == b.model && a.key.String() == b.key.String()
}

// scope is the scope of an engine's blocks. Prompts are hashed by the model that was asked for,
// which is the adapter if there is one.
func (a eventSettings) scope(adapter, salt string) prefix.Scope {
	return prefix.Scope{Key: a.key, Model: cmp.Or(adapter, a.model), Salt: salt}
}

// eventsOf is where an endpoint publishes, as the settings say or, of a model with token ids, the
// engine itself; false if it does not.
func (s *settings) eventsOf(at *endpick.Endpoint, inspector *scrape.Inspector) (eventSettings, bool) {
	e := s.entry(at)
	if e == nil || e.Events == "" {
		facts, _ := inspector.Facts(at)
		ok := facts.Events != "" && len(at.Models) == 1 && s.Models[at.Models[0]].Tokens != nil && !s.keepsApart()
		if !ok {
			return eventSettings{}, false
		}
		return eventSettings{events: facts.Events, replay: facts.Replay, model: at.Models[0], key: s.hashKey}, true
	}
	own := eventSettings{events: e.Events, replay: e.Replay, model: e.Models[0], key: s.hashKey}
	if e.Rank != nil {
		own.events, _ = kvevents.RankAddress(e.Events, *e.Rank)
		if e.Replay != "" {
			own.replay, _ = kvevents.RankAddress(e.Replay, *e.Rank)
		}
	}
	return own, true
}

// keepsApart reports whether tenants share no cached prompts. Events tell nothing of tenants.
func (s *settings) keepsApart() bool { return (len(s.Tenants) > 0 || s.TrustHeaders) && !s.SharedCache }

// hasEvents reports whether any endpoint may publish events that can be used.
func (s *settings) hasEvents() bool {
	for _, m := range s.Models {
		if m.Tokens != nil && !s.keepsApart() {
			return true
		}
	}
	return slices.ContainsFunc(s.Endpoints, func(e endpointSettings) bool { return e.Events != "" })
}

func (s *settings) validateEvents() error {
	for i, e := range s.Endpoints {
		at := fmt.Sprintf("endpoints[%d]", i)
		if e.Events == "" {
			if e.Replay != "" {
				return s.bad(at+".replay", "needs events")
			}
			continue
		}
		for field, address := range map[string]string{"events": e.Events, "replay": e.Replay} {
			if address == "" {
				continue
			}
			if _, _, err := net.SplitHostPort(strings.TrimPrefix(address, "tcp://")); err != nil {
				return s.bad(at+"."+field, "%q is not HOST:PORT", address)
			}
			if e.Rank != nil {
				if _, ok := kvevents.RankAddress(address, *e.Rank); !ok {
					return s.bad(at+"."+field, "has no port for rank %d", *e.Rank)
				}
			}
		}
		// Events don't name their model or tenant.
		if len(e.Models) != 1 {
			return s.bad(at+".events", "needs models to be the one that the server has")
		}
		if s.keepsApart() {
			return s.bad(at+".events", "tell nothing of tenants, who are kept apart: set shared_cache if they may share")
		}
	}
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		t := s.Models[model].Tokens
		if t == nil {
			continue
		}
		at := "models." + model + ".tokens"
		if (t.Render == "") == (t.Llama == "") {
			return s.bad(at, "needs one of render and llama")
		}
		for field, url := range map[string]string{"render": t.Render, "llama": t.Llama} {
			if url != "" && (checkBackend(url) != nil || strings.HasPrefix(url, "h2c:")) {
				return s.bad(at+"."+field, "%q is not http://HOST[:PORT] or https://…", url)
			}
		}
	}
	return nil
}

// hearing follows the engines' KV-cache events. It is safe for concurrent use.
type hearing struct {
	log       *slog.Logger
	router    *endpick.Router
	inspector *scrape.Inspector

	mu       sync.Mutex
	feeds    map[string]*heard // by endpoint
	settings *settings         // nil: none yet
	index    *precise.Index    // receives the events; nil: none
}

// heard is the subscription to one endpoint.
type heard struct {
	eventSettings
	ref    endpick.EndpointRef
	events *kvevents.Subscriber
	stop   func()
	warned bool // that its events match nothing
}

// follow subscribes to the endpoints that publish, and to no others. Unchanged subscriptions
// continue.
func (h *hearing) follow(s *settings, index *precise.Index) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settings, h.index = s, index
	return h.look()
}

// run follows what engines say of where they publish, and warns of events that match nothing.
func (h *hearing) run(ctx context.Context) {
	every(ctx, time.Second, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := h.look(); err != nil {
			h.log.Warn("events", "error", err)
		}
		h.warn()
	})
}

func (h *hearing) look() error {
	wanted := map[string]eventSettings{}
	if h.index != nil {
		for _, there := range h.router.Endpoints() {
			at := there.Candidate.Endpoint
			if own, ok := h.settings.eventsOf(at, h.inspector); ok && !there.Removed {
				wanted[at.ID] = own
			}
		}
	}
	for id, f := range h.feeds {
		own, ok := wanted[id]
		if ref, there := h.router.Ref(id); !ok || !there || ref != f.ref || !own.equal(f.eventSettings) {
			f.stop()
			delete(h.feeds, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if h.feeds[id] != nil {
			continue
		}
		ref, ok := h.router.Ref(id)
		if !ok {
			continue // removed meanwhile
		}
		f, err := startHearing(ref, wanted[id], h.index)
		if err != nil {
			return fmt.Errorf("events of endpoint %q: %w", id, err)
		}
		if h.feeds == nil {
			h.feeds = map[string]*heard{}
		}
		h.feeds[id] = f
	}
	return nil
}

func startHearing(ref endpick.EndpointRef, own eventSettings, index *precise.Index) (*heard, error) {
	feed, err := index.Feed(ref, precise.FeedConfig{Scope: own.scope})
	if err != nil {
		return nil, err
	}
	events, err := kvevents.New(kvevents.Config{Events: own.events, Replay: own.replay, Sink: feed})
	if err != nil {
		feed.Close()
		return nil, err
	}
	stop := background(func(ctx context.Context) { _ = events.Run(ctx) }) // the only error is the context's
	return &heard{eventSettings: own, ref: ref, events: events, stop: func() {
		stop()
		feed.Close()
	}}, nil
}

func (h *hearing) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.feeds {
		f.stop()
	}
	h.feeds = nil
}

// heardStatus is the state of one endpoint's events.
type heardStatus struct {
	Endpoint string
	Model    string
	kvevents.Stats
	Blocks int               // known blocks
	Feed   precise.FeedStats // what they match
}

// enoughPrompts is how many prompts have to match nothing for it to be no accident.
const enoughPrompts = 8

// Hint says why events match nothing; empty: they do, or it is too early to tell.
func (s *heardStatus) Hint() string {
	f := &s.Feed
	switch {
	case f.Confirmed > 0 || f.Textual+f.Unconfirmed < enoughPrompts:
		return ""
	case f.Textual >= f.Unconfirmed:
		return "requests come without token ids: see models." + s.Model + ".tokens, and whether that server answers"
	case s.Events == 0:
		return "none has come, though prompts have been computed"
	}
	return "prompts have other token ids than in the engine: see whether models." + s.Model + ".tokens has the same model and chat template"
}

// status returns the state of all subscriptions, by endpoint.
func (h *hearing) status() []heardStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.statuses()
}

func (h *hearing) statuses() (all []heardStatus) {
	if len(h.feeds) == 0 {
		return nil
	}
	feeds := map[endpick.EndpointRef]precise.FeedStats{}
	for _, f := range h.index.Stats().Feeds {
		feeds[f.Ref] = f
	}
	for _, id := range slices.Sorted(maps.Keys(h.feeds)) {
		f := h.feeds[id]
		all = append(all, heardStatus{id, f.model, f.events.Stats(), feeds[f.ref].Blocks, feeds[f.ref]})
	}
	return all
}

// warn logs once for each subscription that its events match nothing.
func (h *hearing) warn() {
	for _, s := range h.statuses() {
		if f := h.feeds[s.Endpoint]; !f.warned && s.Hint() != "" {
			f.warned = true
			h.log.Warn("KV-cache events match no prompt", "endpoint", s.Endpoint, "hint", s.Hint())
		}
	}
}

// tokenizers are the clients for token ids, by model. It is immutable once in use.
type tokenizers map[string]*tokenizer

type tokenizer struct {
	tokensSettings
	*tokens.Client
}

// tokenizers returns those of the settings, which ask with this client; unchanged ones are taken from
// before, with their caches.
func (s *settings) tokenizers(before tokenizers, client *http.Client) (tokenizers, error) {
	all := tokenizers{}
	for model, m := range s.Models {
		if m.Tokens == nil {
			continue
		}
		if old := before[model]; old != nil && old.tokensSettings == *m.Tokens {
			all[model] = old
			continue
		}
		by := tokens.Rendering(m.Tokens.Render, client)
		if m.Tokens.Llama != "" {
			by = tokens.Llama(m.Tokens.Llama, client)
		}
		client, err := tokens.New(tokens.Config{Tokenizer: by, Within: m.Tokens.Within})
		if err != nil {
			return nil, err
		}
		all[model] = &tokenizer{*m.Tokens, client}
	}
	return all, nil
}

// tokenize applies the settings of token ids.
func (g *gateway) tokenize(s *settings) error {
	var before tokenizers
	if now := g.tokenizers.Load(); now != nil {
		before = *now
	}
	all, err := s.tokenizers(before, g.asking(64))
	if err == nil {
		g.tokenizers.Store(&all)
	}
	return err
}

// tokens returns the token ids of a request's prompt, if there is a tokenizer for its model.
func (g *gateway) tokens(ctx context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
	t := (*g.tokenizers.Load())[req.Model]
	if t == nil {
		return nil, 0
	}
	return t.Client.Tokens(ctx, path, body)
}
