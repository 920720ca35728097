// Package health knows which endpoints fail, by the outcome of their requests. It has no
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
	// silentTrials is the number of failed trials from which on a silent endpoint is
	// not used even if there are no others.
	silentTrials = 2
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
//   - After a second, and twice as long after each trial, up to 15 e, one
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
	router *endpick.Router
	clock  func() time.Time
	notify atomic.Pointer[func(id string, failed bool)] // see Tell; nil: nobody

	listed atomic.Int32 // len(known), read without the lock
	// The longest recent waits for first bytes, in nanoseconds, and how many have
	// arrived: for whole responses, and for streams.
	slowest, seen [2]atomic.Int64

	mu        sync.Mutex
	of        endpick.PerEndpoint[*endpoint]
	known     []*endpoint // those with any history
	counted   int         // endpoints of the router, at countedAt
	countedAt time.Time
}

// New returns the health of a router's endpoints, which all start well.
func New(router *endpick.Router, clock func() time.Time) *Health {
	return &Health{router: router, clock: clock}
}

// Router is the router of the endpoints.
func (h *Health) Router() *endpick.Router { return h.router }

// Attempt is one request at one endpoint, or one check of it. The zero Attempt is at none.
type Attempt struct {
	e            *endpoint
	heard        uint64 // e.heard when it was sent
	spell        uint32 // e.spell then
	trial        bool
	noConnection bool
	err          error // why it failed; nil: not known
}

// Because returns the attempt with the reason of its failure.
func (a Attempt) Because(err error) Attempt {
	a.err = err
	return a
}

// NoConnection returns the attempt, marked as one for which no connection could be made.
func (a Attempt) NoConnection() Attempt {
	a.noConnection = true
	return a
}

// ahead reports whether a time is in the future. One further ahead than
// possible was set before the clock was set back.
func ahead(now, at time.Time, most time.Duration) bool {
	left := at.Sub(now)
	return left > 0 && left <= most
}

// Sent records that a request goes to an endpoint.
func (h *Health) Sent(id string, ref endpick.EndpointRef) Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.endpoint(id, ref)
	a := Attempt{e: e, heard: e.heard.Load(), spell: e.spell}
	if e.state == Out {
		if now := h.clock(); !ahead(now, e.nextTrial, maxBackoff) {
			a.trial = true
			e.trials++
			e.postpone(now)
		}
	}
	return a
}

// endpoint returns an endpoint, creating it if necessary; h.mu is held.
func (h *Health) endpoint(id string, ref endpick.EndpointRef) *endpoint {
	at := h.of.At(ref)
	if at == nil { // it is gone
		at = new(*endpoint)
	}
	if *at == nil {
		*at = &endpoint{id: id, ref: ref, opinions: Budget{refill: opinionRate, most: opinionBurst, tokens: opinionBurst}}
	}
	return *at
}

// Heard records that the endpoint has sent something.
func (h *Health) Heard(a Attempt) {
	a.e.heard.Add(1)
	if a.e.silent.Load() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if a.e.silent.Load() {
			a.e.comeBack(h.clock())
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
func (h *Health) Stuck(a Attempt) bool { return a.e.heard.Load() == a.heard }

func kind(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// Served records that the request was answered well, after waiting so long for
// its first byte.
func (h *Health) Served(a Attempt, stream bool, waited time.Duration) {
	if !a.e.silent.Load() { // a stuck request says nothing about normal waits
		h.seen[kind(stream)].Add(1)
		slowest := &h.slowest[kind(stream)]
		if old := slowest.Load(); waited != time.Duration(old) { // about the last 128 count
			slowest.Store(max(int64(waited), old-old/128))
		}
	}
	if h.listed.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := a.e
	if !e.listed {
		return
	}
	now := h.clock()
	e.outcome(now)
	e.good++
	e.refusals = 0
	h.report(e, false)
	if e.state == Out && e.spell == a.spell {
		e.comeBack(now)
	}
}

// Failed records that the endpoint has failed the request; certainly says that
// the request can't be the cause.
func (h *Health) Failed(a Attempt, certainly bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, now := a.e, h.clock()
	e.lastErr = a.err
	if e.state == Out || e.spell != a.spell {
		return // already known
	}
	h.report(e, true)
	h.list(e, now)
	e.outcome(now)
	e.bad++
	share := e.share()
	if e.bad < minFailures || share < outShare {
		return
	}
	switch {
	case certainly:
		e.putOut(now, Unreachable)
		e.unreachable, e.hangs = true, isTimeout(a.err)
	case share >= outRatio*h.others(e, now):
		e.putOut(now, Failing)
	}
}

// Overdue records that the request has waited for as long as Patience.
func (h *Health) Overdue(a Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, now := a.e, h.clock()
	if e.state == Out || e.spell != a.spell || e.heard.Load() != a.heard {
		return
	}
	h.list(e, now)
	if e.overdueHeard != a.heard {
		e.overdue, e.overdueHeard = 0, a.heard
	}
	e.overdue++
	if e.overdue >= maxOverdue {
		e.putOut(now, Silent)
		e.silent.Store(true)
	}
}

// Full records that the endpoint has no room for the request.
func (h *Health) Full(a Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clock()
	h.list(a.e, now)
	a.e.fullUntil = now.Add(fullFor)
	a.e.tryAgain(a, now)
}

// Refused records that the endpoint has refused the request, and returns
// whether another should be asked.
func (h *Health) Refused(a Attempt) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, now := a.e, h.clock()
	h.list(e, now)
	e.refusals++
	return a.trial || e.refusals > 1 && e.opinions.Retry(now)
}

// Undecided records that the request has failed elsewhere too. If it was a
// trial, the next may follow.
func (h *Health) Undecided(a Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.e.tryAgain(a, h.clock())
}

// list records that an endpoint has a history; h.mu is held.
func (h *Health) list(e *endpoint, now time.Time) {
	if e.listed {
		return
	}
	e.listed = true
	e.good, e.bad, e.fadedAt = priorGood, 0, now
	h.known = append(h.known, e)
	h.listed.Store(int32(len(h.known)))
}

// forget drops an endpoint that is gone; h.mu is held.
func (h *Health) forget(e *endpoint) {
	e.listed = false
	if at := h.of.Find(e.ref); at != nil {
		*at = nil
	}
}

// others is the mean share of failures of the endpoints that are not out,
// without e; h.mu is held.
func (h *Health) others(e *endpoint, now time.Time) float64 {
	sum, n := 0.0, h.count(now)-1
	for _, o := range h.known {
		switch {
		case o == e:
		case o.state == Out:
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
