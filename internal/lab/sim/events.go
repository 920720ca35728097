package sim

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
)

// Events is how engines' KV-cache events reach routers. Those of a step are published at
// its end, in one batch.
type Events struct {
	// Delay is how long a batch takes.
	Delay time.Duration
	// Loss is the share of batches, in [0, 1), that are lost for good. The next one shows
	// the gap: the router then knows only a part of that engine's cache.
	Loss float64
}

// news has the events published so far.
type news struct {
	listeners []listener // one for each router with a precise index
	events    []engine.CacheEvent
	precise   []precise.Event
	lost      []bool   // by server: the last batch was lost
	batches   []uint64 // by server
}

// listener is a router with a precise index: its feeds, by server.
type listener []*precise.Feed

// subscribe adds a router, if it has a precise index and engines publish events.
func (r *run) subscribe(router *endpick.Router, matcher endpick.Matcher) error {
	index, ok := matcher.(*precise.Index)
	if !ok || r.cfg.Events == nil {
		return nil
	}
	n := &r.news
	n.lost, n.batches = make([]bool, len(r.servers)), make([]uint64, len(r.servers))
	var feeds listener
	for i := range r.servers {
		ref, _ := router.Ref(r.servers[i].Endpoint.ID)
		feed, err := index.Feed(ref, precise.FeedConfig{})
		if err != nil {
			return err
		}
		feed.Reset(precise.Whole) // engines start with empty caches
		feeds = append(feeds, feed)
	}
	n.listeners = append(n.listeners, feeds)
	return nil
}

// listen delivers the events that have arrived by now.
func (r *run) listen() {
	n := &r.news
	if len(n.listeners) == 0 {
		return
	}
	for i := range r.servers {
		s := &r.servers[i]
		s.engine.Load(r.now) // advances it to now
		n.events = s.engine.CacheEvents(r.now-r.cfg.Events.Delay, n.events[:0])
		for from := 0; from < len(n.events); {
			to := from
			for to < len(n.events) && n.events[to].At == n.events[from].At {
				to++
			}
			n.batch(r, i, n.events[from:to])
			from = to
		}
	}
}

// batch publishes the events of an engine's step.
func (n *news) batch(r *run, server int, events []engine.CacheEvent) {
	n.batches[server]++
	chance := engine.Mix(engine.Mix(r.cfg.Seed^uint64(server)<<40) ^ n.batches[server])
	if float64(chance>>11) < r.cfg.Events.Loss*(1<<53) {
		n.lost[server] = true
		return
	}
	n.precise = n.precise[:0]
	for _, e := range events {
		p := precise.Event{
			Keys: e.Hashes, Hashes: make([]precise.Hash, len(e.Hashes)),
			Parent: precise.Hash(e.Parent), HasParent: e.HasParent, BlockTokens: prefix.BlockTokens,
		}
		for i, h := range e.Hashes {
			p.Hashes[i] = precise.Hash(h)
		}
		if e.Removed {
			p.Kind = precise.Removed
		}
		n.precise = append(n.precise, p)
	}
	for _, l := range n.listeners {
		if n.lost[server] {
			l[server].Reset(precise.Partial)
		}
		l[server].Apply(n.precise)
	}
	n.lost[server] = false
}
