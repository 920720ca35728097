package endpick

import (
	"sync"
	"sync/atomic"
	"time"
)

// Lease is the permission to send one request to one endpoint, and the record
// of that request. It is a small value: copy it freely. Its methods may be
// called from any goroutine, in any order, any number of times; after the
// first Done all of them do nothing, even if the router has since reused the
// lease's slot for another request. The zero Lease is closed.
type Lease struct {
	slot       *leaseSlot
	endpoint   *Endpoint
	generation uint32
}

// Endpoint returns where to send the request, also after Done; nil for the
// zero Lease.
func (l Lease) Endpoint() *Endpoint { return l.endpoint }

// Ref returns the dense handle by which observers identify the lease.
func (l Lease) Ref() LeaseRef {
	if l.slot == nil {
		return LeaseRef{}
	}
	return LeaseRef{Slot: l.slot.index, Generation: l.generation}
}

// Candidate returns the endpoint as it was when it was chosen, with its match
// and prediction; false once the lease is closed.
func (l Lease) Candidate() (Candidate, bool) {
	s := l.lock()
	if s == nil {
		return Candidate{}, false
	}
	defer s.mu.Unlock()
	return s.candidate, true
}

// FirstToken reports that the first token of the response has arrived. It counts
// no token; where Tokens is called for a stream as soon as the first token has
// arrived, FirstToken need not be.
func (l Lease) FirstToken() {
	if s := l.lock(); s != nil {
		defer s.unlock()
		s.firstToken(s.now())
	}
}

// Tokens reports that n more output tokens have arrived, together. For a request that
// streams, the first of them is the first token. Tokens(0) only shows that the
// lease is not lost.
func (l Lease) Tokens(n int) {
	s := l.lock()
	if s == nil {
		return
	}
	defer s.unlock()
	now := s.now()
	s.heardAt = now
	if n <= 0 {
		return
	}
	s.outputTokens += n
	if s.request.Stream {
		s.firstToken(now)
	} else {
		s.endPrefill()
	}
	s.lastTokenAt = now
	s.state.outputTokens.Add(int64(n))
	s.table.tokens.arrived()
}

// Done closes the lease and returns true, or does nothing and returns false if
// it was closed before.
func (l Lease) Done(o Outcome) bool {
	s := l.lock()
	if s == nil {
		return false
	}
	defer s.table.put(s, s.state) // after the next line, and even if an observer ends this goroutine
	defer s.unlock()
	s.close(s.now(), o)
	return true
}

// lock returns the lease's slot, locked, or nil if the lease is closed.
func (l Lease) lock() *leaseSlot {
	s := l.slot
	if s == nil {
		return nil
	}
	s.mu.Lock()
	if !s.open || s.generation != l.generation {
		s.mu.Unlock()
		return nil
	}
	return s
}

// leaseSlot holds one open lease in the router's table. Slots are reused and
// never freed. Each slot subtracts exactly what it added to its endpoint's
// counts, so that these return to zero.
type leaseSlot struct {
	table *leaseTable
	index uint32

	mu         sync.Mutex // guards all fields below
	generation uint32
	open       bool
	state      *endpointState
	pipeline   *pipeline
	request    Request // without the slices that the caller owns
	candidate  Candidate

	routedAt     time.Time
	firstTokenAt time.Time
	lastTokenAt  time.Time
	heardAt      time.Time

	prefilling    bool // counted in the endpoint's prefilling and prefillTokens
	prefillTokens int
	prefillEnd    int64 // when it is thought to end, in nanoseconds since the router's epoch; 0: at the first token
	outputTokens  int
	timed         bool // a mirrored request whose router has reported how long it took

	// Passed to observers; kept here to avoid an allocation.
	event   Event
	outcome Outcome

	warnings []error // for the host, when the lock is released
}

// unlock releases s.mu, and tells the host what has gone wrong.
func (s *leaseSlot) unlock() {
	warnings := s.warnings
	s.warnings = nil
	s.mu.Unlock()
	for _, err := range warnings {
		s.table.guard.notify(err)
	}
}

// warn remembers what the host is to hear, if anything; s.mu is held.
func (s *leaseSlot) warn(err error) {
	if err != nil {
		s.warnings = append(s.warnings, err)
	}
}

// now is the router's time; s.mu is held.
func (s *leaseSlot) now() time.Time {
	at, failure := s.table.guard.time()
	s.warn(failure)
	return at
}

// firstToken records the first token, once; s.mu is held.
func (s *leaseSlot) firstToken(now time.Time) {
	s.heardAt = now
	if !s.firstTokenAt.IsZero() {
		return
	}
	s.firstTokenAt, s.lastTokenAt = now, now
	s.endPrefill()
	if !s.before(s.state.answered.Load()) { // of two at once, the earlier may be kept
		s.state.answered.Store(uint32(s.request.number))
	}
	s.table.tokens.arrived()
	e := s.fillEvent(now)
	for _, o := range s.pipeline.firstToken {
		s.warn(s.pipeline.call(o, func() { o.FirstToken(e) }))
	}
}

// close closes the lease; s.mu is held. The slot then belongs back into the table.
func (s *leaseSlot) close(now time.Time, o Outcome) {
	o.InputTokens, o.OutputTokens = max(o.InputTokens, 0), max(o.OutputTokens, 0)
	if o.CachedTokens < 0 {
		o.CachedTokens, o.HasCachedTokens = 0, false
	}
	s.open = false
	mirrored := s.request.Adopted != nil && s.request.Adopted.Mirrored
	if s.prefilling && s.request.Stream && o.Status == Completed && !mirrored && s.table.tokens.missing() {
		s.warn(ErrNoFirstTokens)
	}
	s.endPrefill()
	s.state.contextTokens.Add(-int64(s.request.InputTokens))
	s.state.outputTokens.Add(-int64(s.outputTokens))

	if o.OutputTokens > 0 {
		if !s.firstTokenAt.IsZero() && !s.lastTokenAt.After(s.firstTokenAt) {
			s.lastTokenAt = now // nobody reported when the last token came
		}
		s.outputTokens = o.OutputTokens
	}
	if mirrored && o.Status != Lost {
		s.retime(now, s.request.Adopted)
	}
	s.outcome = o
	e := s.fillEvent(now)
	for _, observer := range s.pipeline.done {
		s.warn(s.pipeline.call(observer, func() { observer.Done(e, &s.outcome) }))
	}
	s.request, s.candidate, s.event, s.outcome = Request{}, Candidate{}, Event{}, Outcome{}
	s.state, s.pipeline = nil, nil
}

// retime replaces the times of a mirrored request by those that its own router
// has measured, from which observers learn; s.mu is held.
func (s *leaseSlot) retime(now time.Time, a *Adopted) {
	if a.Took <= 0 || a.TTFT < 0 || a.TTFT > a.Took {
		return
	}
	s.timed = true
	s.routedAt = now.Add(-a.Took)
	s.firstTokenAt, s.lastTokenAt = time.Time{}, now
	if a.TTFT > 0 {
		s.firstTokenAt = s.routedAt.Add(a.TTFT)
	}
}

func (s *leaseSlot) fillEvent(now time.Time) *Event {
	s.event = Event{
		Lease:        LeaseRef{Slot: s.index, Generation: s.generation},
		Request:      &s.request,
		Candidate:    &s.candidate,
		Now:          now,
		RoutedAt:     s.routedAt,
		FirstTokenAt: s.firstTokenAt,
		LastTokenAt:  s.lastTokenAt,
		OutputTokens: s.outputTokens,
		timed:        s.timed,
	}
	return &s.event
}

const leaseChunk = 256 // slots allocated together

// leaseTable holds all lease slots of a router.
type leaseTable struct {
	guard   *guard
	fleet   *fleet
	timeout time.Duration // Config.LeaseTimeout

	mu     sync.Mutex // guards idle and growth
	idle   []*leaseSlot
	chunks atomic.Pointer[[]*[leaseChunk]leaseSlot]
	cursor atomic.Uint64 // where reap continues

	opened, closed, reaped atomic.Uint64 // leases so far

	expiry expiry
	tokens tokenCheck
}

func newLeaseTable(g *guard, f *fleet, timeout time.Duration) *leaseTable {
	t := &leaseTable{guard: g, fleet: f, timeout: timeout}
	t.chunks.Store(new([]*[leaseChunk]leaseSlot))
	t.expiry.start()
	return t
}

func (t *leaseTable) get() *leaseSlot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle) == 0 {
		t.grow()
	}
	s := t.idle[len(t.idle)-1]
	t.idle = t.idle[:len(t.idle)-1]
	return s
}

func (t *leaseTable) grow() {
	before := *t.chunks.Load()
	chunk := new([leaseChunk]leaseSlot)
	for i := leaseChunk - 1; i >= 0; i-- {
		chunk[i].table = t
		chunk[i].index = uint32(len(before)*leaseChunk + i)
		t.idle = append(t.idle, &chunk[i])
	}
	grown := append(before[:len(before):len(before)], chunk)
	t.chunks.Store(&grown)
}

// put takes back the slot of a closed lease, whose request leaves the endpoint.
func (t *leaseTable) put(s *leaseSlot, state *endpointState) {
	t.fleet.leave(state)
	t.closed.Add(1) // last: who sees no open lease sees nothing in flight either
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = append(t.idle, s)
}

// open opens a lease for a decision. The endpoint has already counted the
// request.
func (t *leaseTable) open(d *decision, p *pipeline, m member, c *Candidate) Lease {
	s, state, now := t.get(), m.state, d.req.now
	t.opened.Add(1)

	s.mu.Lock()
	defer s.unlock()
	s.generation = max(s.generation+1, 1) // 0 is nobody's
	s.open = true
	s.state, s.pipeline = state, p
	s.request, s.candidate = d.req, *c
	s.request.Receipt, s.request.Exclude, s.request.Avoid = nil, nil, nil
	s.routedAt, s.heardAt = now, now
	s.firstTokenAt, s.lastTokenAt = time.Time{}, time.Time{}
	s.outputTokens, s.timed = 0, false
	s.prefilling = true
	s.prefillTokens = c.NewTokens(&s.request)

	state.prefilling.Add(1)
	state.prefillTokens.Add(int64(s.prefillTokens))
	state.contextTokens.Add(int64(s.request.InputTokens))

	if len(p.routed) > 0 {
		e := s.fillEvent(now)
		e.Candidates = d.candidates
		for _, o := range p.routed {
			s.warn(p.call(o, func() { o.Routed(e) }))
		}
		e.Candidates = nil
	}
	s.request.Blocks = nil
	if c.Prediction.Has&TTFT != 0 {
		t.expiry.push(s, now.Sub(t.guard.epoch)+s.prefillTime())
	}
	return Lease{slot: s, endpoint: m.endpoint, generation: s.generation}
}

// reap examines up to most slots, and closes leases that have not been used for
// LeaseTimeout.
func (t *leaseTable) reap(now time.Time, most int) (reaped int) {
	chunks := *t.chunks.Load()
	room := uint64(len(chunks) * leaseChunk)
	most = int(min(uint64(most), room))
	from := t.cursor.Add(uint64(most)) - uint64(most)
	for i := range uint64(most) {
		n := (from + i) % room
		if chunks[n/leaseChunk][n%leaseChunk].reap(now) {
			t.reaped.Add(1)
			reaped++
		}
	}
	return reaped
}

// reap closes the lease if it has not been used for LeaseTimeout.
func (s *leaseSlot) reap(now time.Time) bool {
	if !s.mu.TryLock() {
		return false // in use right now
	}
	if !s.open || now.Sub(s.heardAt) <= s.table.timeout {
		s.mu.Unlock()
		return false
	}
	defer s.table.put(s, s.state) // after the next line, and even if an observer ends this goroutine
	defer s.unlock()
	s.close(now, Outcome{Status: Lost})
	return true
}

// tokenCheck notices a host that sets Request.Stream and never says that a token has arrived: its
// prompts all seem to be in prefill until their responses end, and nobody learns how long the
// first token takes.
type tokenCheck struct {
	seen   atomic.Bool  // a token has been reported
	silent atomic.Int32 // streams that have completed before that
}

// mostSilent is how many streams complete before the host is warned. Where tokens are reported,
// none does, unless the very first responses are empty.
const mostSilent = 16

// arrived records that a token has been reported.
func (c *tokenCheck) arrived() {
	if !c.seen.Load() {
		c.seen.Store(true)
	}
}

// missing records a stream that has completed without a token. It is true once, when there have
// been too many and none with a token.
func (c *tokenCheck) missing() bool {
	return !c.seen.Load() && c.silent.Load() < mostSilent && c.silent.Add(1) == mostSilent
}
