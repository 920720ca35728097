// Package health judges endpoints by the results of their requests. It has no
// connections: whoever sends the requests reports to it.
package health

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

const (
	// An endpoint is put out when this share of its recent requests has failed,
	// which must also be this multiple of the others' mean share, and if at least
	// minFailures have (minus a half, because old ones fade).
	outShare    = 0.25
	outRatio    = 3
	minFailures = 2.5
	// keepOutcome is the share of old outcomes that remains after each new one, so
	// that about the last 20 count. They also halve every outcomesHalve, which is
	// longer than a server takes that fails by saying nothing.
	keepOutcome   = 1 - 1.0/20
	outcomesHalve = 5 * time.Minute
	// priorGood is the number of successes that count as remembered before an
	// endpoint's first failure: three failures in a row put it out.
	priorGood = 7.5

	// minSeen is how many first bytes it takes to know what is slow.
	minSeen = 8
	// minPatience is the least time without a byte after which a request is
	// overdue. maxOverdue overdue requests put an endpoint out that has sent
	// nothing to anybody meanwhile.
	minPatience = 3 * time.Second
	maxOverdue  = 3

	// maxOut is the largest share of endpoints that is avoided at one time.
	maxOut = 0.75
	// The first wait before a trial. It doubles with each trial, up to maxBackoff.
	firstBackoff = time.Second
	maxBackoff   = 15 * time.Second
	// checksCount is how long a check counts.
	checksCount = time.Minute
	// vainTrials is the number of failed trials from which on a silent endpoint is
	// not used even if there are no others.
	vainTrials = 2
	// offerFor is how long a trial is reserved for the request it was offered to.
	offerFor = 20 * time.Millisecond
	// rampTime is how long it takes from a successful trial to the full share,
	// beginning with rampFrom.
	rampTime = 15 * time.Second
	rampFrom = 0.1

	// fullFor is how long an endpoint is avoided after it has answered 429.
	fullFor = 250 * time.Millisecond
	// How often per second a refusal is checked by asking another endpoint, and
	// how often at once.
	opinionRate  = 1
	opinionBurst = 4
)

// Health keeps requests away from endpoints that fail, and brings these back. The server
// that fails fastest always looks idlest, so it is not enough to notice those that can't
// be reached. Its rules:
//
//   - An endpoint has failed a request if another has then served it. A request
//     that fails everywhere counts against none: no client can make an endpoint
//     look unhealthy with what every engine refuses. An endpoint that can't be
//     reached, or breaks a response off, has failed without such a witness.
//   - An endpoint is put out when a quarter of its last requests failed, at least
//     three, and the others fail clearly less.
//   - So is one that has sent nothing to anybody for much longer than the pool
//     takes, while three requests wait for their first byte. Its next byte
//     brings it back. A request that waits there for twice as long, and at least
//     ten seconds, is sent to another, once and within the retry budget.
//   - Endpoints that are out are avoided. Of those that can be reached, at most
//     three quarters of all endpoints are. If all are out, all are used, except
//     those that are known to hang.
//   - An endpoint that has failed its checks is out, and not tried until it passes
//     one, unless it answers them and all are out; see [Health.Checked]. One that
//     checks have never reached is out as well, but tried.
//   - After a second, and twice as long after each trial, up to 15 s, one
//     request is tried there. If it is served, the endpoint gets a tenth of the
//     traffic, and its full share 15 s later.
//   - An endpoint that is full (429) is avoided for a quarter of a second, nothing
//     more.
//   - A refusal (400, 404 and the like) goes to the client. When an endpoint
//     has refused twice and served nothing in between, another is asked now
//     and then.
//
// It knows endpoints by their Ref. Its memory is bounded by the number of endpoints. It
// is safe for concurrent use.
type Health struct {
	clock func() time.Time
	// size returns the number of endpoints, present reports whether one of them is
	// this one, and current returns the Ref of the one with an ID.
	size    func() int
	present func(id string, ref endpick.Ref) bool
	current func(id string) (endpick.Ref, bool)
	tell    atomic.Pointer[func(id string, failed bool)] // nil: none

	known atomic.Int32 // len(remarked), read without the lock
	// The longest recent waits for first bytes, in nanoseconds, and how many have
	// arrived: for whole responses, and for streams.
	slowest, seen [2]atomic.Int64

	mu       sync.Mutex
	of       endpick.PerEndpoint[*standing]
	remarked []*standing // those with any history
	fleet    int         // size, at fleetAt
	fleetAt  time.Time
}

// New returns the health of a router's endpoints, which all start well.
func New(router *endpick.Router, clock func() time.Time) *Health {
	return &Health{
		clock: clock, current: router.Ref,
		present: func(id string, ref endpick.Ref) bool {
			current, ok := router.Ref(id)
			return ok && current == ref
		},
		size: func() int { return router.Stats().Endpoints },
	}
}

// NewWithin returns the health of the endpoints that a stage of a router knows, which
// all start well. A stage must not call its router, so it counts them itself.
func NewWithin(clock func() time.Time, size func() int, present func(id string, ref endpick.Ref) bool) *Health {
	return &Health{
		clock: clock, size: size, present: present,
		current: func(string) (endpick.Ref, bool) { return endpick.Ref{}, false },
	}
}

// Visit is one request at one endpoint. The zero visit is at none.
type Visit struct {
	s     *standing
	heard uint64 // s.heard when it was sent
	spell uint32
	trial bool
	apart bool  // no connection could be made
	err   error // why it failed; nil: not known
}

// Because returns the visit with the reason of its failure.
func (v Visit) Because(err error) Visit {
	v.err = err
	return v
}

// Apart returns the visit, marked as one for which no connection could be made.
func (v Visit) Apart() Visit {
	v.apart = true
	return v
}

// ahead reports whether a time is in the future. One further ahead than
// possible was set before the clock was set back.
func ahead(now, at time.Time, most time.Duration) bool {
	left := at.Sub(now)
	return left > 0 && left <= most
}

// Sent records that a request goes to an endpoint.
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

// standing returns that of an endpoint, creating it if necessary; h.mu is held.
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

// Heard records that the endpoint has sent something.
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
// overdue: twice the longest recent wait. 0: not known yet.
func (h *Health) Patience(stream bool) time.Duration {
	if h.seen[kind(stream)].Load() < minSeen {
		return 0
	}
	return max(minPatience, 2*time.Duration(h.slowest[kind(stream)].Load()))
}

// Stuck reports whether the endpoint has sent nothing to anybody since the
// request was sent there.
func (h *Health) Stuck(v Visit) bool { return v.s.heard.Load() == v.heard }

func kind(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// Served records that the request was answered well, after waiting so long for
// its first byte.
func (h *Health) Served(v Visit, stream bool, waited time.Duration) {
	if !v.s.silent.Load() { // a stuck request says nothing about normal waits
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

// Failed records that the endpoint has failed the request; certainly says that
// the request can't be the cause.
func (h *Health) Failed(v Visit, certainly bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := v.s, h.clock()
	s.err = v.err
	if s.phase == Out || s.spell != v.spell {
		return // already known
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

// Overdue records that the request has waited for as long as Patience.
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

// Full records that the endpoint has no room for the request.
func (h *Health) Full(v Visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clock()
	h.remark(v.s, now)
	v.s.fullUntil = now.Add(fullFor)
	v.s.tryAgain(v, now)
}

// Refused records that the endpoint has refused the request, and returns
// whether another should be asked.
func (h *Health) Refused(v Visit) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := v.s, h.clock()
	h.remark(s, now)
	s.refusals++
	return v.trial || s.refusals > 1 && s.opinions.Retry(now)
}

// Undecided records that the request has failed elsewhere too. If it was a
// trial, the next may follow.
func (h *Health) Undecided(v Visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.s.tryAgain(v, h.clock())
}

// remark records that an endpoint has a history; h.mu is held.
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

// others is the mean share of failures of the endpoints that are not out,
// without s; h.mu is held.
func (h *Health) others(s *standing, now time.Time) float64 {
	sum, n := 0.0, h.endpoints(now)-1
	for _, o := range h.remarked {
		switch {
		case o == s:
		case o.phase == Out:
			n--
		default:
			o.fade(now)
			if o.bad >= 1 { // a single, faded failure says little
				sum += o.share()
			}
		}
	}
	return sum / float64(max(n, 1))
}
