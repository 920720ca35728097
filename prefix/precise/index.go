package precise

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// Config configures an Index. The zero value is valid.
type Config struct {
	// MaxBytes is the most memory to take for what events tell, at least 1 MiB; an eighth
	// of it is for what has just been routed. Beyond it the feed with the most blocks is
	// forgotten, and its knowledge is Partial from then on. A block that one engine holds
	// takes at most 220 bytes, and one more engine that holds it at most 70. Zero: 512 MiB.
	MaxBytes int64
	// LoadCost is the cost of loading a block.
	LoadCost LoadCosts
	// Grace is how long after the first token what was routed still counts without its
	// events. Zero: one second.
	Grace time.Duration
	// Approximate is the index for endpoints without events. It is told of requests by
	// this one, so it must not be in a policy itself. Its memory is additional. Nil: a
	// new one of default size.
	Approximate *prefix.Index
}

// LoadCosts are what loading a block into GPU memory costs, by where it lies, as a part
// of the time in which it would be computed. A block that costs 1 or more is not worth
// loading, and not counted. Zero: the default.
//
// The defaults are those of a model of 8 billion parameters, 128 KiB of cache and 50 µs
// of prefill for a token: 25 GB/s over PCIe take 5 µs, an SSD's 5 GB/s take 26 µs, and a
// network's 10 GB/s take 13 µs.
type LoadCosts struct {
	CPU      float64 // zero: 0.1
	Disk     float64 // zero: 0.5
	External float64 // zero: 0.3
}

const (
	defaultMaxBytes = 512 << 20
	leastMaxBytes   = 1 << 20
	defaultGrace    = time.Second
)

func (c *Config) validate() error {
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.MaxBytes < leastMaxBytes {
		return &endpick.ConfigError{Field: "precise.Config.MaxBytes", Reason: "is less than 1 MiB"}
	}
	if c.Grace < 0 {
		return &endpick.ConfigError{Field: "precise.Config.Grace", Reason: "is negative"}
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	for _, p := range []struct {
		name  string
		cost  *float64
		usual float64
	}{{"CPU", &c.LoadCost.CPU, 0.1}, {"Disk", &c.LoadCost.Disk, 0.5}, {"External", &c.LoadCost.External, 0.3}} {
		if !(*p.cost >= 0) {
			return &endpick.ConfigError{Field: "precise.Config.LoadCost." + p.name, Reason: "is negative or not a number"}
		}
		if *p.cost == 0 {
			*p.cost = p.usual
		}
	}
	return nil
}

// Index is a Matcher of one router that knows what engines hold because they report it,
// through feeds. It must also be the router's observer ([endpick.Policy] sees to that),
// and is safe for concurrent use. See the package for what counts as held.
type Index struct {
	endpick.OneRouter

	config  Config
	worth   [1 << Tiers]float64 // of a block, by the tiers that hold it: what it saves of computing it
	approx  *prefix.Index
	scratch sync.Pool // *scratch

	mu        sync.Mutex // guards what follows
	store     store
	tails     tails
	entries   int // of all feeds
	endpoints endpick.PerEndpoint[endpoint]
	feeds     []*Feed // by number
	freeFeeds []uint32
	routed    routed
	windowed  int // feeds none of whose layers need the whole prompt
	overflows uint64
}

// endpoint is what is known of one endpoint.
type endpoint struct{ feeds []*Feed }

// knows is the least that is known of any of its engine's processes.
func (e *endpoint) knows() Knowledge {
	if len(e.feeds) == 0 {
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
	x := &Index{config: config, approx: config.Approximate}
	costs := [Tiers]float64{0, config.LoadCost.CPU, config.LoadCost.Disk, config.LoadCost.External}
	for tiers := range x.worth {
		for t, cost := range costs {
			if tiers>>t&1 != 0 {
				x.worth[tiers] = max(x.worth[tiers], 1-cost)
			}
		}
	}
	x.scratch.New = func() any { return new(scratch) }
	x.store.init()
	x.routed.init(x)
	x.endpoints.Forget = func(_ endpick.Ref, e *endpoint) {
		for _, f := range e.feeds {
			x.end(f)
		}
	}
	return x, nil
}

// Name is what receipts show.
func (x *Index) Name() string { return "precise-index" }

// Approximate is the index for endpoints without events.
func (x *Index) Approximate() *prefix.Index { return x.approx }

// Observer is the index for endpoints without events, which listens too.
func (x *Index) Observer() any { return x.approx }

// Routed implements [endpick.RoutedObserver].
func (x *Index) Routed(e *endpick.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.routed.expire(e.Now)
	if e.Request.Exact {
		x.routed.begin(e)
	}
}

// FirstToken implements [endpick.FirstTokenObserver].
func (x *Index) FirstToken(e *endpick.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.routed.computed(e.Lease, e.Now)
	x.routed.expire(e.Now)
}

// Done implements [endpick.DoneObserver].
func (x *Index) Done(e *endpick.Event, o *endpick.Outcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if o.Status == endpick.Completed {
		x.routed.computed(e.Lease, e.Now)
	}
	x.routed.leases.Drop(e.Lease)
	x.routed.expire(e.Now)
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (x *Index) EndpointRemoved(ref endpick.Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endpoints.Drop(ref)
}

// weight is the most memory that what events tell may take now.
func (x *Index) weight() int64 {
	return x.store.weight() + int64(x.entries)*entryWeight + int64(x.tails.live())*tailWeight + int64(len(x.routed.counts))*pairWeight
}

// fit keeps to the bound. What is forgotten is matched approximately again.
func (x *Index) fit() {
	for x.weight() > x.config.MaxBytes {
		var most *Feed
		for _, f := range x.feeds {
			if f != nil && (most == nil || len(f.entries) > len(most.entries)) {
				most = f
			}
		}
		if most == nil || len(most.entries) == 0 {
			return // the rest is what was routed, which has a bound of its own
		}
		most.forgetAll()
		most.knows = min(most.knows, Partial)
		x.overflows++
	}
}
