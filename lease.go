package endpick

import (
	"math"
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
		defer s.mu.Unlock()
		s.firstToken(s.router.now())
	}
}

// Tokens reports that n more output tokens have arrived. For a request that
// streams, the first of them is the first token. Tokens(0) only shows that the
// lease is not lost.
func (l Lease) Tokens(n int) {
	s := l.lock()
	if s == nil {
		return
	}
	defer s.mu.Unlock()
	now := s.router.now()
	s.heardAt = now
	if n <= 0 {
		return
	}
	if s.request.Stream {
		s.firstToken(now)
	} else {
		s.endPrefill()
	}
	s.outputTokens += n
	s.lastTokenAt = now
	s.state.outputTokens.Add(int64(n))
	s.router.changed(s.state)
	s.router.streams.tell()
}

// Done closes the lease and returns true, or does nothing and returns false if
// it was closed before.
func (l Lease) Done(o Outcome) bool {
	s := l.lock()
	if s == nil {
		return false
	}
	s.close(s.router.now(), o) // unlocks
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
	router *Router
	index  uint32

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
	outputTokens  int
	timed         bool // a mirrored request whose router has reported how long it took

	// Passed to observers; kept here to avoid an allocation.
	event   Event
	outcome Outcome
}

// firstToken records the first token, once; s.mu is held.
func (s *leaseSlot) firstToken(now time.Time) {
	s.heardAt = now
	if !s.firstTokenAt.IsZero() {
		return
	}
	s.firstTokenAt, s.lastTokenAt = now, now
	s.endPrefill()
	s.router.streams.tell()
	e := s.fillEvent(now)
	for _, o := range s.pipeline.firstToken {
		s.router.firstToken(o, e)
	}
}

// endPrefill removes the request from the endpoint's prefill counts, once.
func (s *leaseSlot) endPrefill() {
	if s.prefilling {
		s.prefilling = false
		s.state.prefilling.Add(-1)
		s.state.prefillTokens.Add(-int64(s.prefillTokens))
		s.router.changed(s.state)
	}
}

// close closes an open lease whose lock is held, and unlocks it even if an
// observer panics.
func (s *leaseSlot) close(now time.Time, o Outcome) {
	defer s.vacate()
	state := s.state
	s.outcome = o
	outcome := &s.outcome
	outcome.InputTokens = max(outcome.InputTokens, 0)
	outcome.OutputTokens = max(outcome.OutputTokens, 0)
	if outcome.CachedTokens < 0 {
		outcome.CachedTokens, outcome.HasCachedTokens = 0, false
	}
	s.open = false
	if s.prefilling && s.request.Stream && outcome.Status == Completed && s.request.MirrorOf == "" && s.router.streams.untell() {
		s.router.warn(ErrNoFirstTokens)
	}
	s.endPrefill()
	state.contextTokens.Add(-int64(s.request.InputTokens))
	state.outputTokens.Add(-int64(s.outputTokens))
	s.router.changed(state)

	if outcome.OutputTokens > 0 {
		if !s.firstTokenAt.IsZero() && !s.lastTokenAt.After(s.firstTokenAt) {
			s.lastTokenAt = now // nobody reported when the last token came
		}
		s.outputTokens = outcome.OutputTokens
	}
	if s.request.MirrorOf != "" {
		s.retime(now, outcome)
	}
	e := s.fillEvent(now)
	for _, ob := range s.pipeline.done {
		s.router.done(ob, e, outcome)
	}
}

// vacate returns the slot of a closed lease to the table and unlocks it.
func (s *leaseSlot) vacate() {
	r, state := s.router, s.state
	s.request, s.candidate, s.event, s.outcome = Request{}, Candidate{}, Event{}, Outcome{}
	s.state, s.pipeline = nil, nil
	s.mu.Unlock()

	r.counts.closed.Add(1)
	r.leave(state)
	r.leases.put(s)
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
		untimed:      s.request.MirrorOf != "" && !s.timed,
	}
	return &s.event
}

const leaseChunk = 256 // slots allocated together

// leaseTable holds all lease slots of a router.
type leaseTable struct {
	router *Router

	mu     sync.Mutex // guards free and growth
	free   []*leaseSlot
	chunks atomic.Pointer[[]*[leaseChunk]leaseSlot]
	opened atomic.Int64  // open leases
	cursor atomic.Uint64 // where reap continues

	expiry expiryHeap
}

func newLeaseTable(r *Router) *leaseTable {
	t := &leaseTable{router: r}
	t.chunks.Store(new([]*[leaseChunk]leaseSlot))
	t.expiry.earliest.Store(math.MaxInt64)
	return t
}

func (t *leaseTable) get() *leaseSlot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		t.grow()
	}
	s := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	return s
}

func (t *leaseTable) grow() {
	held := *t.chunks.Load()
	chunk := new([leaseChunk]leaseSlot)
	for i := leaseChunk - 1; i >= 0; i-- {
		chunk[i].router = t.router
		chunk[i].index = uint32(len(held)*leaseChunk + i)
		t.free = append(t.free, &chunk[i])
	}
	grown := append(held[:len(held):len(held)], chunk)
	t.chunks.Store(&grown)
}

func (t *leaseTable) put(s *leaseSlot) {
	t.opened.Add(-1)
	t.mu.Lock()
	t.free = append(t.free, s)
	t.mu.Unlock()
}

func (t *leaseTable) size() (open, room int) {
	return int(t.opened.Load()), len(*t.chunks.Load()) * leaseChunk
}

// open opens a lease for a decision. The endpoint has already counted the
// request.
func (t *leaseTable) open(d *decision, p *pipeline, m member, c *Candidate) Lease {
	s, state := t.get(), m.state
	t.opened.Add(1)
	now := d.req.now

	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	s.open = true
	s.state, s.pipeline = state, p
	s.request, s.candidate = d.req, *c
	s.request.Receipt, s.request.Exclude, s.request.Avoid = nil, nil, nil
	s.routedAt, s.heardAt = now, now
	s.firstTokenAt, s.lastTokenAt = time.Time{}, time.Time{}
	s.outputTokens, s.timed = 0, false
	s.prefilling = true
	s.prefillTokens = max(s.request.InputTokens-c.CachedTokens(), 0)

	state.prefilling.Add(1)
	state.prefillTokens.Add(int64(s.prefillTokens))
	state.contextTokens.Add(int64(s.request.InputTokens))
	t.router.changed(state) // covers enter, too

	if len(p.routed) > 0 {
		e := s.fillEvent(now)
		e.Candidates = d.candidates
		for _, o := range p.routed {
			t.router.routed(o, e)
		}
		e.Candidates = nil
	}
	s.request.Blocks = nil
	if !s.request.Stream && c.Prediction.Has&TTFT != 0 {
		// A lease that is silent for LeaseTimeout is reaped anyway.
		wait := min(c.Prediction.TTFT, t.router.config.LeaseTimeout)
		t.expiry.push(expiring{at: int64(now.Sub(t.router.epoch) + wait), slot: s, generation: s.generation})
	}
	return Lease{slot: s, endpoint: m.endpoint, generation: s.generation}
}

// reap examines up to most slots, and closes leases that have not been used for
// LeaseTimeout.
func (t *leaseTable) reap(now time.Time, most int) int {
	chunks := *t.chunks.Load()
	room := uint64(len(chunks) * leaseChunk)
	most = int(min(uint64(most), room))
	from := t.cursor.Add(uint64(most)) - uint64(most)
	reaped := 0
	for i := range uint64(most) {
		n := (from + i) % room
		s := &chunks[n/leaseChunk][n%leaseChunk]
		if !s.mu.TryLock() {
			continue // in use right now
		}
		if s.open && now.Before(s.heardAt) {
			s.heardAt = now // the clock has been set back
		}
		if !s.open || now.Sub(s.heardAt) <= t.router.config.LeaseTimeout {
			s.mu.Unlock()
			continue
		}
		s.close(now, Outcome{Status: Lost})
		t.router.counts.reaped.Add(1)
		reaped++
	}
	return reaped
}

// expire ends the prefill of responses that do not stream once their predicted
// TTFT has passed.
func (t *leaseTable) expire(now time.Time) {
	since := int64(now.Sub(t.router.epoch))
	for since >= t.expiry.earliest.Load() {
		x, ok := t.expiry.pop(since)
		if !ok {
			return
		}
		s := x.slot
		s.mu.Lock()
		if s.open && s.generation == x.generation {
			s.endPrefill()
		}
		s.mu.Unlock()
	}
}

// expiring is a prefill that ends at a known time.
type expiring struct {
	at         int64 // nanoseconds since the router's epoch
	slot       *leaseSlot
	generation uint32
}

// expiryHeap is a binary min-heap of prefills, ordered by time.
type expiryHeap struct {
	// earliest is the time of the first item, math.MaxInt64 if there is none.
	// It is read without the lock.
	earliest atomic.Int64
	mu       sync.Mutex
	items    []expiring
}

func (h *expiryHeap) push(x expiring) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.items = append(h.items, x)
	i := len(h.items) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h.items[i].at >= h.items[parent].at {
			break
		}
		h.items[i], h.items[parent] = h.items[parent], h.items[i]
		i = parent
	}
	h.earliest.Store(h.items[0].at)
}

// pop removes and returns the earliest item if it is due.
func (h *expiryHeap) pop(now int64) (expiring, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.items) == 0 || h.items[0].at > now {
		return expiring{}, false
	}
	x := h.items[0]
	last := len(h.items) - 1
	h.items[0] = h.items[last]
	h.items[last] = expiring{}
	h.items = h.items[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.items[child].at < h.items[least].at {
				least = child
			}
		}
		if least == i {
			break
		}
		h.items[i], h.items[least] = h.items[least], h.items[i]
		i = least
	}
	h.earliest.Store(math.MaxInt64)
	if last > 0 {
		h.earliest.Store(h.items[0].at)
	}
	return x, true
}
