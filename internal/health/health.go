// Package health judges endpoints by what becomes of their requests. It knows
// nothing of connections: whoever sends the requests tells it.
package health

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

const (
	// An endpoint is put out when this share of what it did of late has failed,
	// which is also so many times the mean share of the others, and at least
	// minFailures have (a half less, because old ones fade).
	outShare    = 0.25
	outRatio    = 3
	minFailures = 2.5
	// keepOutcome is the share of old outcomes that stays at each new one, so
	// that about the last 20 count. They also halve each outcomesHalve, which
	// is longer than a server takes that fails by saying nothing.
	keepOutcome   = 1 - 1.0/20
	outcomesHalve = 5 * time.Minute
	// priorGood is how many answers an endpoint has given before its first
	// failure, as far as is remembered: three failures in a row put it out.
	priorGood = 7.5

	// minSeen is how many first bytes make known what is slow.
	minSeen = 8
	// minPatience is how long a request may be without a byte at the least
	// before it is overdue, and maxOverdue how many of them put an endpoint out
	// that has sent nothing to anybody meanwhile.
	minPatience = 3 * time.Second
	maxOverdue  = 3

	// maxOut is the share of the endpoints that is avoided at one time.
	maxOut = 0.75
	// The first wait before a trial, doubled by each trial up to maxBackoff.
	firstBackoff = time.Second
	maxBackoff   = 15 * time.Second
	// checksCount is how long a check counts.
	checksCount = time.Minute
	// vainTrials is how many trials have been made at a silent endpoint before it is
	// not asked even if there are no others.
	vainTrials = 2
	// offerFor is how long a trial is kept for the request it was offered to.
	offerFor = 20 * time.Millisecond
	// rampTime is how long it takes from a trial's success to a full share,
	// beginning with rampFrom.
	rampTime = 15 * time.Second
	rampFrom = 0.1

	// fullFor is how long an endpoint is spared that has answered 429.
	fullFor = 250 * time.Millisecond
	// An endpoint that refuses requests is checked with another endpoint so
	// many times a second, and so many times at once.
	opinionRate  = 1
	opinionBurst = 4
)

// Health keeps requests away from endpoints that fail, and leads them back.
// The server that fails fastest always looks idlest, so that it is not enough
// to notice those that can't be reached. Its rules:
//
//   - An endpoint has failed a request if another has then served it. A request
//     that failed wherever it was sent speaks against the request: no client can
//     make an endpoint look unhealthy with what every engine refuses. Who can't be
//     reached, or breaks a response off, has failed without such a witness.
//   - An endpoint is put out when a quarter of its last answers were failures,
//     three at least, and the others fail clearly less.
//   - So is one that has sent nothing to anybody for much longer than the pool
//     takes, while three requests wait for their first byte. Its next byte
//     brings it back. A request that waits there for twice as long, and ten
//     seconds at least, is sent to another, once and within the retry budget.
//   - Who is out is avoided, but for those that can be reached no more than
//     three quarters of the endpoints, unless all are out: then all are asked,
//     but for those of which it is known that they take long and give nothing.
//   - An endpoint that has failed its checks is out, and not tried until it passes
//     one, unless it answers them and all are out; see [Health.Checked]. One that checks
//     have never got a connection to is out as well, but tried.
//   - After a second, and twice as long after each trial, up to 15 s, one
//     request is tried there. If it is served, the endpoint gets a tenth of the
//     traffic, and all of its share 15 s later.
//   - An endpoint that is full (429) is spared for a quarter of a second, and no
//     more.
//   - A refusal (404, 400 and their like) goes to the client. When an endpoint
//     has refused twice and served nothing in between, another is asked, now
//     and then.
//
// It knows endpoints by their Ref and nothing of connections. What it keeps is
// bounded by the endpoints there are. It is safe for concurrent use.
type Health struct {
	clock func() time.Time
	// size is how many endpoints there are, present whether one of them is this one,
	// current the Ref of the one of that ID.
	size    func() int
	present func(id string, ref endpick.Ref) bool
	current func(id string) (endpick.Ref, bool)
	tell    atomic.Pointer[func(id string, failed bool)] // nil: nobody is told

	known atomic.Int32 // len(remarked), read without the lock
	// What has been waited for first bytes of late, in nanoseconds, and how
	// many have come: of responses at once, and of streams.
	slowest, seen [2]atomic.Int64

	mu       sync.Mutex
	of       endpick.PerEndpoint[*standing]
	remarked []*standing // of whom there is anything to say
	fleet    int         // size, as of fleetAt
	fleetAt  time.Time
}

// New returns the health of a router's endpoints, all well.
func New(router *endpick.Router, clock func() time.Time) *Health {
	return &Health{
		clock: clock, current: router.Ref,
		present: func(id string, ref endpick.Ref) bool {
			current, ok := router.Ref(id)
			return ok && current == ref
		},
		size: func() int { return len(router.Endpoints()) },
	}
}

// NewWithin returns the health of endpoints that a stage of a router knows, all well. A
// stage must not call its router, and counts them itself.
func NewWithin(clock func() time.Time, size func() int, present func(id string, ref endpick.Ref) bool) *Health {
	return &Health{
		clock: clock, size: size, present: present,
		current: func(string) (endpick.Ref, bool) { return endpick.Ref{}, false },
	}
}

// Visit is one request at one endpoint, as health knows it. The zero visit is to
// nobody.
type Visit struct {
	s     *standing
	heard uint64 // s.heard when it was sent
	spell uint32
	trial bool
	apart bool  // there was no connection
	err   error // what it has failed of; nil: not known
}

// Because is the visit with what it has failed of.
func (v Visit) Because(err error) Visit {
	v.err = err
	return v
}

// Apart is the visit of whom no connection could be made to.
func (v Visit) Apart() Visit {
	v.apart = true
	return v
}

// ahead reports whether a moment is still to come. One that is further off than
// it can be was set by a clock that has been set back since.
func ahead(now, at time.Time, most time.Duration) bool {
	left := at.Sub(now)
	return left > 0 && left <= most
}

// Sent says that a request goes to an endpoint.
func (h *Health) Sent(id string, ref endpick.Ref) Visit {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.standing(id, ref)
	v := Visit{s: s, heard: s.heard.Load(), spell: s.spell}
	if s.phase == Out {
		if now := h.clock(); !ahead(now, s.until, maxBackoff) {
			v.trial = true
			s.trials++
			s.wait(now)
		}
	}
	return v
}

// standing is that of an endpoint, which may be a new one; h.mu is held.
func (h *Health) standing(id string, ref endpick.Ref) *standing {
	at := h.of.At(ref)
	if at == nil { // it is gone
		at = new(*standing)
	}
	if *at == nil {
		*at = &standing{id: id, ref: ref, opinions: Budget{refill: opinionRate, most: opinionBurst, tokens: opinionBurst}}
	}
	return *at
}

// Heard says that the endpoint has sent something.
func (h *Health) Heard(v Visit) {
	v.s.heard.Add(1)
	if v.s.silent.Load() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if v.s.silent.Load() {
			v.s.comeBack(h.clock())
		}
	}
}

// Patience is how long a request may wait for its first byte before it is
// overdue: twice what the slowest have waited of late. 0: that is not known yet.
func (h *Health) Patience(stream bool) time.Duration {
	if h.seen[kind(stream)].Load() < minSeen {
		return 0
	}
	return max(minPatience, 2*time.Duration(h.slowest[kind(stream)].Load()))
}

// Stuck reports whether the endpoint has sent nothing to anybody since the
// Request was sent there.
func (h *Health) Stuck(v Visit) bool { return v.s.heard.Load() == v.heard }

func kind(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// Served says that the request was answered well, for the first byte of which
// it has waited so long.
func (h *Health) Served(v Visit, stream bool, waited time.Duration) {
	if !v.s.silent.Load() { // of what was stuck nothing can be learned
		h.seen[kind(stream)].Add(1)
		slowest := &h.slowest[kind(stream)]
		if old := slowest.Load(); waited != time.Duration(old) { // about the last 128 count
			slowest.Store(max(int64(waited), old-old/128))
		}
	}
	if h.known.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := v.s
	if !s.listed {
		return
	}
	now := h.clock()
	s.outcome(now)
	s.good++
	s.refusals = 0
	h.told(s, false)
	if s.phase == Out && s.spell == v.spell {
		s.comeBack(now)
	}
}

// Failed says that the endpoint has failed the request; certainly: that no
// Request can be the cause.
func (h *Health) Failed(v Visit, certainly bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := v.s, h.clock()
	s.err = v.err
	if s.phase == Out || s.spell != v.spell {
		return // known already
	}
	h.told(s, true)
	h.remark(s, now)
	s.outcome(now)
	s.bad++
	share := s.share()
	if s.bad < minFailures || share < outShare {
		return
	}
	switch {
	case certainly:
		s.putOut(now, Unreachable)
		s.gone, s.mute = true, isTimeout(v.err)
	case share >= outRatio*h.others(s, now):
		s.putOut(now, Failing)
	}
}

// Overdue says that the request has waited as long as patience allows.
func (h *Health) Overdue(v Visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := v.s, h.clock()
	if s.phase == Out || s.spell != v.spell || s.heard.Load() != v.heard {
		return
	}
	h.remark(s, now)
	if s.overdueAt != v.heard {
		s.overdue, s.overdueAt = 0, v.heard
	}
	s.overdue++
	if s.overdue >= maxOverdue {
		s.putOut(now, Silent)
		s.silent.Store(true)
	}
}

// Full says that the endpoint has no room for the request.
func (h *Health) Full(v Visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clock()
	h.remark(v.s, now)
	v.s.fullUntil = now.Add(fullFor)
	v.s.tryAgain(v, now)
}

// Refused says that the endpoint has refused the request, and returns whether
// another should be asked.
func (h *Health) Refused(v Visit) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := v.s, h.clock()
	h.remark(s, now)
	s.refusals++
	return v.trial || s.refusals > 1 && s.opinions.Retry(now)
}

// Undecided says that the request has failed elsewhere too. If it was a trial,
// the next may follow.
func (h *Health) Undecided(v Visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.s.tryAgain(v, h.clock())
}

// remark notes that there is something to say of an endpoint; h.mu is held.
func (h *Health) remark(s *standing, now time.Time) {
	if s.listed {
		return
	}
	s.listed = true
	s.good, s.bad, s.fadedAt = priorGood, 0, now
	h.remarked = append(h.remarked, s)
	h.known.Store(int32(len(h.remarked)))
}

// forget drops an endpoint that is gone; h.mu is held.
func (h *Health) forget(s *standing) {
	s.listed = false
	if at := h.of.Find(s.ref); at != nil {
		*at = nil
	}
}

// others is the mean share of failures of the endpoints that are not out, but
// for s; h.mu is held.
func (h *Health) others(s *standing, now time.Time) float64 {
	sum, n := 0.0, h.endpoints(now)-1
	for _, o := range h.remarked {
		switch {
		case o == s:
		case o.phase == Out:
			n--
		default:
			o.fade(now)
			if o.bad >= 1 { // a single one that has faded says little
				sum += o.share()
			}
		}
	}
	return sum / float64(max(n, 1))
}
