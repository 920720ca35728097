package delay

import (
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// Config configures a [Marginal]. The zero value is a usable default.
type Config struct {
	// MaxKinds bounds the number of pairs of served model and variant that are
	// learned. A pair is learned once a request for it has been completed, or, where
	// there are several variants, answered; it replaces the one whose last completed
	// request is the oldest. Zero: 64.
	MaxKinds int
}

// terms are parts of the cost that tests leave out, to work out the others.
type terms uint8

const (
	// horizon shrinks differences in load by how much of them will last.
	horizon terms = 1 << iota
	// room is the wait for KV memory or a place in the batch.
	room
	// ownPace distinguishes servers of one kind if one is slower than the others.
	ownPace
)

const defaultMaxKinds = 64

func (c *Config) validate() error {
	if c.MaxKinds < 0 {
		return &endpick.ConfigError{Field: "delay.Config.MaxKinds", Reason: "is negative"}
	}
	if c.MaxKinds == 0 {
		c.MaxKinds = defaultMaxKinds
	}
	return nil
}

// Marginal is a Scorer, and the Predictor of its latencies: put the same one into
// both places of a policy. With another Predictor, its predictions are used as the
// request's own latencies.
//
// The cost of a candidate is the sum of the delays, in milliseconds, that the
// request would have and cause there. The lowest cost scores 1, twice that cost
// scores one half. Everything is learned from the responses, per served model and
// variant; before there are any, costs are in prompt tokens.
//
// Make one with [New]. It is safe for concurrent use, belongs to one router and
// allocates nothing in a decision.
type Marginal interface {
	endpick.Predictor
	endpick.Scorer
}

type marginal struct {
	endpick.Exclusive
	config  Config
	without terms
	work    sync.Pool // *decision

	mu           sync.RWMutex // guards the fields below
	kinds        map[kindName]*kind
	common       kind // of all kinds together, for new ones
	token        mean // time of a prompt token, by the proportions
	lengths      lengths
	uses         uses // of prefixes
	prompt, anew mean // tokens of a prompt with its response, and of these, how many are computed
	first        mean // time to first token of streams

	// According to the kind of server that each prompt went to:
	computed, computing mean // recently computed prompt tokens, and how long they take
	idle, whole         mean // time of responses on an idle server, and their actual time
	leases              endpick.PerLease[lease]
	endpoints           endpick.PerEndpoint[endpoint]
	completed           uint64
}

var (
	_ endpick.RoutedObserver     = (*marginal)(nil)
	_ endpick.FirstTokenObserver = (*marginal)(nil)
	_ endpick.DoneObserver       = (*marginal)(nil)
	_ endpick.EndpointObserver   = (*marginal)(nil)
)

// New returns a Marginal that has learned nothing, or an [endpick.ConfigError].
func New(config Config) (Marginal, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	m := &marginal{config: config, kinds: map[kindName]*kind{}}
	m.work.New = func() any { return new(decision) }
	prior := scaled(1)
	m.common.start(&prior)
	return m, nil
}

func (*marginal) Name() string { return "marginal-delay" }

// kindName identifies a kind: servers that behave alike.
type kindName struct{ model, variant string }

// maxName is the longest name in bytes; longer ones are ignored.
const maxName = 256

// nameOf is the kind of a request on a variant. Adapters count as their model.
func nameOf(req *endpick.Request, variant string) kindName {
	n := kindName{req.Model, variant}
	if n.model == "" {
		n.model = req.Adapter
	}
	return n
}

// kind is what is known about the servers of one kind. Times are in milliseconds.
type kind struct {
	linear
	used        uint64  // marginal.completed when a request there was last completed
	decoding    mean    // time from the first token to the last
	size        mean    // tokens in memory per request, halfway through its response
	fresh       mean    // prompt tokens computed per request
	meanwhile   amounts // tokens and pairs computed for others during a step, summed
	meanSteps   float64
	late, slow  bound
	persistence persistence
	compared    int64 // when its endpoints were last compared, in nanoseconds since the epoch
}

// find returns the kind of that name, or the common one if there is none. m.mu
// is held.
func (m *marginal) find(n kindName) *kind {
	if k := m.kinds[n]; k != nil {
		return k
	}
	return &m.common
}

// admit gives a kind a place when a request for it has been completed, or, in a fleet of
// several kinds, answered: until then it is like all others, and slow servers would be
// filled like fast ones for as long as a response takes.
func (m *marginal) admit(n kindName) {
	k := m.kinds[n]
	if k == nil {
		if len(n.model) > maxName || len(n.variant) > maxName {
			return
		}
		if len(m.kinds) >= m.config.MaxKinds {
			delete(m.kinds, m.leastUsed())
		}
		k = new(kind)
		*k = m.common
		k.linear = linear{}
		k.start(&m.common.each)
		m.kinds[kindName{strings.Clone(n.model), strings.Clone(n.variant)}] = k
	}
	m.completed++
	k.used = m.completed
}

func (m *marginal) leastUsed() (least kindName) {
	used := m.completed + 1
	for n, k := range m.kinds {
		if k.used < used { // all are distinct
			least, used = n, k.used
		}
	}
	return least
}

// learn passes a measured time on to the kind and to the common model.
func (m *marginal) learn(n kindName, x *amounts, ms float64) {
	base := 0.0
	for i, v := range x {
		base += v * proportions[i]
	}
	if base > 0 {
		m.token.add(ms / base)
	}
	prior := scaled(max(m.token.or(1), 1e-6))
	if m.common.labels == 0 {
		m.common.start(&prior)
	}
	m.common.label(x, ms, &prior)
	if k := m.kinds[n]; k != nil {
		own := m.common.each
		for i, v := range own {
			own[i] = max(v, prior[i]/100) // what is zero for all kinds together may not be for one
		}
		k.label(x, ms, &own)
	}
}

// milliseconds is negative if the clock was set back.
func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// duration is capped at maxLatency.
func duration(ms float64) time.Duration {
	return time.Duration(min(ms, maxLatency) * float64(time.Millisecond))
}

// maxLatency is the longest latency that is predicted or learned, in milliseconds.
const maxLatency = 24 * 3600 * 1e3
