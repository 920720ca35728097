package endpick

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// Endpoint describes one inference server, or one data-parallel rank of one.
// The router keeps a copy; change it with [Router.Update].
type Endpoint struct {
	// ID names the endpoint, uniquely in a router. Empty: Address, and
	// "#rank" after it where there is a rank.
	ID string
	// Address is where the server listens: "host:port" or a URL. The router
	// does not read it; package transport does.
	Address string
	// Ranked says that Rank counts: the endpoint is one data-parallel rank
	// of the server at Address.
	Ranked bool
	Rank   int

	// Models and Adapters are what it serves, by the names that requests
	// use. If both are empty, it serves every model.
	Models   []string
	Adapters []string
	// Labels are the host application's own: zone, pool, price.
	Labels map[string]string
	// Variant names its accelerator class and runtime, such as "h100-tp2".
	// Endpoints of one variant behave alike; the predictor tells variants
	// apart. Empty is a variant like any other.
	Variant string

	// MaxSequences is how many requests it runs at once. Zero: unknown.
	MaxSequences int
	// KVTokens is how many tokens its KV cache holds. Zero: unknown.
	KVTokens int
}

// clone returns a deep copy with its ID set.
func (e *Endpoint) clone() Endpoint {
	c := *e
	c.ID = e.id()
	c.Models = slices.Clone(e.Models)
	c.Adapters = slices.Clone(e.Adapters)
	c.Labels = maps.Clone(e.Labels)
	return c
}

func (e *Endpoint) id() string {
	if e.ID != "" {
		return e.ID
	}
	if e.Ranked {
		return e.Address + "#" + strconv.Itoa(e.Rank)
	}
	return e.Address
}

func (e *Endpoint) validate() error {
	switch {
	case e.ID == "" && e.Address == "":
		return &EndpointError{ID: "", Reason: "has neither ID nor address", err: ErrBadEndpoint}
	case e.Rank < 0:
		return &EndpointError{ID: e.id(), Reason: "rank is negative", err: ErrBadEndpoint}
	case e.MaxSequences < 0:
		return &EndpointError{ID: e.id(), Reason: "MaxSequences is negative", err: ErrBadEndpoint}
	case e.KVTokens < 0:
		return &EndpointError{ID: e.id(), Reason: "KVTokens is negative", err: ErrBadEndpoint}
	}
	return nil
}

// servesAll reports whether the endpoint takes requests for any model.
func (e *Endpoint) servesAll() bool { return len(e.Models) == 0 && len(e.Adapters) == 0 }

// serves reports whether the endpoint takes requests for the model or adapter.
func (e *Endpoint) serves(name string) bool {
	return e.servesAll() || slices.Contains(e.Models, name) || slices.Contains(e.Adapters, name)
}

// Ref is the dense handle of an endpoint in its router: stateful policies keep
// what they know in a slice indexed by Slot and drop it when Generation has
// changed, because slots are used again. Generations start at 1, so that the
// zero Ref is nobody's.
type Ref struct {
	Slot       uint32
	Generation uint32
}

// Signals is a set of the signals in an engine's report.
type Signals uint8

// The signals of a [Load].
const (
	WaitingSignal Signals = 1 << iota
	RunningSignal
	KVUsageSignal

	allSignals = WaitingSignal | RunningSignal | KVUsageSignal
)

// Load is what an engine says of itself.
type Load struct {
	Waiting float64 // requests in its queue
	Running float64 // requests in its batch
	KVUsage float64 // share of its KV cache in use, in [0, 1]

	// Absent lists the signals that the engine does not report; their fields
	// are not read.
	Absent Signals
	// Adapters are the adapters that are loaded now. Nil: not reported.
	Adapters []string
	// Mark is what [Router.Mark] returned when the engine was asked. The zero
	// Mark: the report is as fresh as the call of Report.
	Mark Mark
}

// clean returns the load without its broken signals, and an error that names
// the first of them.
func (l Load) clean(id string) (Load, error) {
	l.Adapters = slices.Clone(l.Adapters)
	var err error
	check := func(s Signals, name string, v, most float64) {
		if l.Absent&s != 0 || (v >= 0 && v <= most) {
			return
		}
		l.Absent |= s
		if err == nil {
			err = &LoadError{ID: id, Signal: name, Value: v}
		}
	}
	check(WaitingSignal, "waiting", l.Waiting, math.MaxInt32)
	check(RunningSignal, "running", l.Running, math.MaxInt32)
	check(KVUsageSignal, "KV usage", l.KVUsage, 1)
	return l, err
}

// prepare makes a clean load ready for use.
func (l Load) prepare(at time.Duration, mark Mark) *report {
	rep := &report{at: at, reported: allSignals &^ l.Absent, requests: mark.requests, prefilling: mark.prefilling, load: &l}
	if rep.reported&WaitingSignal != 0 {
		rep.waiting = l.Waiting
	}
	if rep.reported&RunningSignal != 0 {
		rep.running = l.Running
	}
	if rep.reported&KVUsageSignal != 0 {
		rep.kvUsage = l.KVUsage
	}
	return rep
}

// Mark remembers what the router had in flight on an endpoint at one moment,
// so that a report which was asked for at that moment can be corrected by what
// has been routed since. The zero Mark stands for no moment.
type Mark struct {
	ref        Ref
	at         time.Time
	requests   int32
	prefilling int32
}

// InFlight is what the router itself has on an endpoint: requests that were
// routed there and are not done. It is exact, and right when Route returns.
type InFlight struct {
	// Requests are the open leases.
	Requests int
	// Prefilling are those of them that still wait for their first token. A
	// response that does not stream has none: it counts until its predicted
	// TTFT has passed, and without a prediction until it is done.
	Prefilling int
	// PrefillTokens, Q, are the prompt tokens of those, less what the prefix
	// index expected to be cached.
	PrefillTokens int
	// ContextTokens are the prompt tokens of all open leases: not yet
	// prefilled, or prefilled and still resident.
	ContextTokens int
	// OutputTokens are the tokens generated so far for the open leases.
	OutputTokens int
}

// endpointState is one generation of one endpoint in a router. Its counters
// are changed without a lock; a request is counted before anybody can see that
// it was routed. It is one cache line: a decision reads every candidate's.
type endpointState struct {
	ref    Ref
	idHash uint64

	report atomic.Pointer[report]

	requests      atomic.Int32
	prefilling    atomic.Int32
	prefillTokens atomic.Int64
	contextTokens atomic.Int64
	outputTokens  atomic.Int64
	flags         atomic.Uint32 // changed under Router.mu
}

const (
	draining uint32 = 1 << iota
	removed         // set before the last check of requests
)

func (s *endpointState) is(flag uint32) bool { return s.flags.Load()&flag != 0 }

// report is a Load ready for use: one cache line. It never changes.
type report struct {
	at         time.Duration // when the engine was asked, since the router's epoch
	reported   Signals
	waiting    float64
	running    float64
	kvUsage    float64
	requests   int32 // in flight at that moment
	prefilling int32
	load       *Load // as it came in
}

// open returns how many leases are open and how many of them wait for their
// first token: never more, though the two are read one after the other.
func (s *endpointState) open() (requests, prefilling int32) {
	requests = s.requests.Load()
	return requests, min(s.prefilling.Load(), requests)
}

func (s *endpointState) mark(now time.Time) Mark {
	requests, prefilling := s.open()
	return Mark{ref: s.ref, at: now, requests: requests, prefilling: prefilling}
}

// fill makes the candidate from the endpoint's own report and the router's
// account. A signal without a report keeps the account alone, and KVUsage 0:
// see fillAbsent. Reports from before oldest do not count.
//
// It writes field by field: a literal would be built elsewhere and copied.
func (s *endpointState) fill(c *Candidate, e *Endpoint, oldest time.Duration) {
	requests, prefilling := s.open()
	c.Endpoint = e
	c.Ref = s.ref
	c.IDHash = s.idHash
	c.InFlight.Requests = int(requests)
	c.InFlight.Prefilling = int(prefilling)
	c.InFlight.PrefillTokens = int(s.prefillTokens.Load())
	c.InFlight.ContextTokens = int(s.contextTokens.Load())
	c.InFlight.OutputTokens = int(s.outputTokens.Load())
	c.PrefixTokens = 0
	if c.Prediction.Has != 0 {
		c.Prediction = Prediction{}
	}

	rep := s.report.Load()
	if rep == nil || rep.at < oldest {
		c.Report, c.Reported = nil, 0
		c.Waiting, c.Running, c.KVUsage = float64(prefilling), float64(requests-prefilling), 0
		return
	}
	c.Report, c.Reported = rep.load, rep.reported
	c.KVUsage = rep.kvUsage
	opened := float64(requests - rep.requests)
	queued := float64(prefilling - rep.prefilling)
	switch rep.reported & (WaitingSignal | RunningSignal) {
	case WaitingSignal | RunningSignal:
		// Which of the two a request has moved between is a guess; their sum
		// is not.
		batch := max(rep.waiting+rep.running+opened, 0)
		c.Waiting = min(max(rep.waiting+queued, 0), batch)
		c.Running = batch - c.Waiting
	case WaitingSignal:
		c.Waiting, c.Running = max(rep.waiting+queued, 0), float64(requests-prefilling)
	case RunningSignal:
		c.Waiting, c.Running = float64(prefilling), max(rep.running+opened-queued, 0)
	default:
		c.Waiting, c.Running = float64(prefilling), float64(requests-prefilling)
	}
}

// fillAbsent gives the candidates that do not report a signal the mean of
// those that do, so that silence never looks idle: for requests no less than
// the router's own count, for KV usage 0.5 if nobody reports.
func fillAbsent(candidates []Candidate) {
	var waiting, running, kv mean
	for i := range candidates {
		c := &candidates[i]
		if c.Reported&WaitingSignal != 0 {
			waiting.add(c.Waiting)
		}
		if c.Reported&RunningSignal != 0 {
			running.add(c.Running)
		}
		if c.Reported&KVUsageSignal != 0 {
			kv.add(c.KVUsage)
		}
	}
	for i := range candidates {
		c := &candidates[i]
		if c.Reported&WaitingSignal == 0 {
			c.Waiting = max(c.Waiting, waiting.or(0))
		}
		if c.Reported&RunningSignal == 0 {
			c.Running = max(c.Running, running.or(0))
		}
		if c.Reported&KVUsageSignal == 0 {
			c.KVUsage = kv.or(0.5)
		}
	}
}

// mean is a mean of values that are not negative. It carries what each addition
// rounds away (Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation
// endlicher Summen, 1974), so that it does not depend on the order of values.
type mean struct {
	sum, lost float64
	count     int
}

func (m *mean) add(v float64) {
	sum := m.sum + v
	m.lost += min(m.sum, v) - (sum - max(m.sum, v))
	m.sum = sum
	m.count++
}

func (m *mean) or(none float64) float64 {
	if m.count == 0 {
		return none
	}
	return (m.sum + m.lost) / float64(m.count)
}

// member is an endpoint as it stands in a table: its description, which
// Router.Update replaces, and its state, which lives as long as the endpoint.
type member struct {
	state    *endpointState
	endpoint *Endpoint
}

func bySlot(a, b member) int { return cmp.Compare(a.state.ref.Slot, b.state.ref.Slot) }

// table is the set of endpoints at one moment. It never changes; a change
// makes a new one.
type table struct {
	byID map[string]member
	// pools holds the endpoints to choose from, ordered by slot, for each
	// model and adapter that any of them names; every is the pool of all
	// other names.
	pools map[string][]member
	every []member
}

func newTable(byID map[string]member) *table {
	t := &table{byID: byID, pools: map[string][]member{}}
	active := slices.SortedFunc(maps.Values(byID), bySlot)
	active = slices.DeleteFunc(active, func(m member) bool { return m.state.is(draining) })
	for _, m := range active {
		for _, name := range slices.Concat(m.endpoint.Models, m.endpoint.Adapters) {
			t.pools[name] = nil
		}
	}
	for _, m := range active {
		if m.endpoint.servesAll() {
			t.every = append(t.every, m)
			for name := range t.pools {
				t.pools[name] = append(t.pools[name], m)
			}
			continue
		}
		for _, name := range slices.Concat(m.endpoint.Models, m.endpoint.Adapters) {
			pool := t.pools[name]
			if n := len(pool); n == 0 || pool[n-1] != m { // it may name a thing twice
				t.pools[name] = append(pool, m)
			}
		}
	}
	return t
}

// pool returns the endpoints that serve what the request asks for.
func (t *table) pool(name string) []member {
	if p, ok := t.pools[name]; ok {
		return p
	}
	return t.every
}

// explainEmpty says why there is nobody to choose from.
func (t *table) explainEmpty(name string, excluded int) error {
	err := &NoEndpointsError{Model: name, Excluded: excluded}
	for _, m := range t.byID {
		if !m.endpoint.serves(name) {
			continue
		}
		err.Serving++
		if m.state.is(draining) {
			err.Draining++
		}
	}
	return err
}
