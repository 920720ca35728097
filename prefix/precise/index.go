package precise

import (
	"cmp"
	"slices"
	"sync"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
)

// Config configures an Index. The zero value is valid.
type Config struct {
	// MaxBytes is the most memory for events, at least 1 MiB. When it is full, the feed with
	// the most blocks is forgotten, and its knowledge is Partial from then on. A block that one
	// engine holds takes at most 220 bytes (the first of a prompt 340), and each further engine
	// that holds it at most 70. Zero: 512 MiB.
	MaxBytes int64
	// LoadCost is the cost of loading a block into GPU memory from each tier, as a share of
	// the time to compute it. A block that costs 1 or more is not worth loading and does not
	// count. Zero: 0.1 for CPU, 0.5 for Disk, 0.3 for External.
	//
	// These are for a model of 8 billion parameters, with 128 KiB of cache and 50 µs of
	// prefill per token: 25 GB/s over PCIe take 5 µs, an SSD's 5 GB/s take 26 µs, and a
	// network's 10 GB/s take 13 µs.
	LoadCost [Tiers]float64
	// Approximate is the index for endpoints without events, and for requests under way. This
	// index passes requests on to it, so it must not be in a policy itself. Its memory is
	// additional. Nil: a new one of default size.
	Approximate *prefix.Index
}

func (c *Config) validate() error {
	c.MaxBytes = cmp.Or(c.MaxBytes, 512<<20)
	if c.MaxBytes < 1<<20 {
		return check.Bad("precise.Config.MaxBytes", "is less than 1 MiB")
	}
	for t, usual := range [Tiers]float64{CPU: 0.1, Disk: 0.5, External: 0.3} {
		cost := &c.LoadCost[t]
		if !(*cost >= 0) {
			return check.Bad("precise.Config.LoadCost", "is negative or not a number")
		}
		*cost = cmp.Or(*cost, usual)
	}
	return nil
}

// Index is a Matcher of one router that knows from the engines' own reports what they
// hold. It must also be the router's observer ([endpick.Policy] sees to that), and is
// safe for concurrent use. See the package for what counts as held.
type Index struct {
	endpick.Exclusive

	config Config
	saved  [1 << Tiers]float64 // of a block, by the tiers that hold it: the share of computing it that is saved
	approx *prefix.Index
	paths  sync.Pool // *[]stretch

	mu        sync.RWMutex // guards the fields below; Match only reads
	store     store
	endpoints endpick.PerEndpoint[endpoint]
	feeds     []*Feed // by number; nil: none
	prompts   endpick.PerLease[prompt]
	overflows uint64
}

// endpoint is what is known about one endpoint. Its list of feeds is not changed, but
// replaced.
type endpoint struct{ feeds []*Feed }

// knows is the least that is known about any of its engine's processes.
func (x *Index) knows(ref endpick.EndpointRef) Knowledge {
	e := x.endpoints.Find(ref)
	if e == nil || len(e.feeds) == 0 {
		return Nothing
	}
	least := Whole
	for _, f := range e.feeds {
		least = min(least, f.knows)
	}
	return least
}

// New returns an empty index, or an [endpick.ConfigError].
func New(config Config) (*Index, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if config.Approximate == nil {
		var err error
		if config.Approximate, err = prefix.NewIndex(prefix.IndexConfig{}); err != nil {
			return nil, err
		}
	}
	x := &Index{config: config, approx: config.Approximate, store: store{nodes: map[uint64]*node{}}}
	for tiers := range x.saved {
		for t, cost := range config.LoadCost {
			if tiers>>t&1 != 0 {
				x.saved[tiers] = max(x.saved[tiers], 1-cost)
			}
		}
	}
	x.paths.New = func() any { return new([]stretch) }
	x.endpoints.Forget = func(_ endpick.EndpointRef, e *endpoint) {
		for _, f := range e.feeds {
			f.end()
		}
	}
	return x, nil
}

// Name is what receipts show.
func (x *Index) Name() string { return "precise-index" }

// Observer is for the router: what listens for the index, and the index for endpoints
// without events and requests under way.
func (x *Index) Observer() any { return []any{observer{x}, x.approx} }

// observer learns what is routed where.
type observer struct{ index *Index }

// EndpointRemoved implements [endpick.EndpointObserver].
func (of observer) EndpointRemoved(ref endpick.EndpointRef) {
	x := of.index
	x.mu.RLock()
	var feeds []*Feed
	if e := x.endpoints.Find(ref); e != nil {
		feeds = e.feeds
	}
	x.mu.RUnlock()
	for _, f := range feeds {
		f.Close()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endpoints.Drop(ref)
}

// fit enforces the limit. What is forgotten is matched approximately again.
func (x *Index) fit() {
	for x.store.bytes > x.config.MaxBytes {
		most := slices.MaxFunc(x.feeds, func(a, b *Feed) int { return a.size() - b.size() })
		most.knows = min(most.knows, Partial)
		most.empty(allTiers)
		x.overflows++
	}
}
