// Package health knows which endpoints of a router fail, by how attempts and checks end. It has no
// connections: whoever sends requests and checks reports to it.
package health

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// Health is a table of a router's endpoints that says which share of its traffic each gets
// ([Health.Avoid]), by how attempts ([Attempt.Ended]) and checks ([Attempt.Checked]) end there. The
// server that fails fastest always looks idlest, so it is not enough to notice those that can't be
// reached. The states:
//
//	state        begins when                              gets                 ends when
//	well         it becomes known, or returning is over   its share            one of the next five begins
//	failing      a quarter of its requests failed,        trials               a request is served: returning
//	             and clearly fewer at the others
//	unreachable  a connection was refused, or so many     trials               the same; a check that passes
//	             requests failed, the last for lack of one                     makes a trial due
//	silent       three requests are overdue, or checks    trials; if all are   it sends anything: returning
//	             while it may be busy, and it has sent    out, requests wait
//	             nothing to anybody meanwhile             here
//	unfit        it fails checks in a row, and has        trials, when checks  a request is served: returning;
//	             passed one before                        have stopped         a check that passes makes a trial due
//	absent       it fails checks for lack of a            trials               a check passes: well;
//	             connection, and has never sent a byte                         a request is served: returning
//	returning    a request was served while it was out    a tenth, growing     15 seconds have passed: well;
//	                                                                           or one of the five begins
//
//	full, beside it says so: it is full, or loads a       nothing, while       the time that it has asked for
//	any other    model                                    others have room     is over, or a quarter of a second
//
// Who is silent may be busy with a long prompt, load a model, or hang: nobody can tell them apart.
// So it is avoided, but where all are out, it is the one where waiting may help: health chooses
// among endpoints, and never refuses a request that might be served.
//
// A trial is a single request, a second after the endpoint was put out, then after twice as long
// each time, up to 15 s; if none chooses the endpoint, one is sent there 15 s later. These end an attempt without a change of state:
//
//   - An endpoint has failed a request if another has then served it. A request that fails
//     everywhere counts against none: no client can make an endpoint look unhealthy with what
//     every engine refuses; see [Suspects].
//   - A refusal (400 and the like) goes to the client. When an endpoint has refused twice and served
//     nothing in between, or may lack the model or the API, another is asked now and then.
//   - One that does not have a model is asked for that less, if another has it; see AvoidFor.
//
// What holds for all of them:
//
//   - Of failing and silent endpoints, at most three quarters of all endpoints are avoided. If all
//     are out, all are used, except those that can't be connected to in time, or have not answered
//     checks although they have nothing to do.
//   - One that is out for another reason, and fails checks as well, gets no trials either.
//   - What was sent before an endpoint was put out has no effect on it any more.
//
// The router's clock is read without the lock, since it may call the host. Endpoints are known by
// their Ref. Its memory is bounded by the number of endpoints. It is safe for concurrent use.
type Health struct {
	router   *endpick.Router
	failures int                                          // checks in a row that count
	notify   atomic.Pointer[func(id string, failed bool)] // see Tell; nil: nobody

	listed, lacking atomic.Int32 // len(known), len(lacks), read without the lock
	// The longest recent waits for first bytes, in nanoseconds, and how many have
	// arrived: for whole responses, and for streams.
	slowest, seen [2]atomic.Int64

	mu        sync.Mutex
	of        endpick.PerEndpoint[*endpoint]
	known     []*endpoint // those with any history
	lacks     []lack      // oldest first
	counted   int         // endpoints of the router, at countedAt
	countedAt time.Time
}

// New returns the health of a router's endpoints, which all start well. So many checks that fail in
// a row count.
func New(router *endpick.Router, failures int) *Health {
	return &Health{router: router, failures: failures}
}

// Router is the router of the endpoints.
func (h *Health) Router() *endpick.Router { return h.router }

// endpoint is the state of one endpoint, and what is counted to change it. Health.mu guards it.
type endpoint struct {
	h      *Health
	id     string
	ref    endpick.EndpointRef
	listed bool // in Health.known

	state   atomic.Uint32 // a State
	since   time.Time     // zero: since the endpoint became known
	spell   uint32        // how often it was put out
	lastErr error         // of the latest failed request

	// Recent requests that were served and that failed; older ones count for less.
	good, bad float64
	fadedAt   time.Time
	heard     atomic.Uint64 // how often bytes have arrived from it
	asked     silence       // since it was given work
	hung      silence       // since checks have been late, and none has passed
	overdue   tally         // requests that have waited for too long
	elsewhere tally         // failures that other gateways have reported
	reported  time.Time     // of the latest such report
	fullUntil time.Time
	fullKey   uint64 // the client's key that this is about; 0: it is about all
	refusals  int    // since it served a request
	opinions  Budget // for asking another endpoint whether a refusal is right

	// While it is out: when a request may be tried there, how long until the next one, when one
	// was offered to a request, which may go elsewhere, and whether requests would hang there.
	nextTrial time.Time
	backoff   time.Duration
	offeredAt time.Time
	namedAt   time.Time // by neglected
	hangs     bool
	credit    float64 // while it returns: the fraction of a request that it may have before its next one

	checkedAt  time.Time // zero: never
	checkErr   error     // of the latest check; nil: it passed
	failed     int       // checks in a row
	everPassed bool      // a check
}

// tally counts what happens while nothing is heard of an endpoint.
type tally struct {
	n     int
	heard uint64
}

// add adds n, starting from zero if something has been heard.
func (t *tally) add(n int, heard uint64) {
	if t.heard != heard {
		*t = tally{heard: heard}
	}
	t.n += n
}

// lock takes the lock. It returns the time when it was asked to.
func (h *Health) lock() time.Time {
	now := h.router.Now()
	h.mu.Lock()
	return now
}

// endpoint returns an endpoint, creating it if necessary; h.mu is held.
func (h *Health) endpoint(id string, ref endpick.EndpointRef) *endpoint {
	at := h.of.At(ref)
	if at == nil { // it is gone
		at = new(*endpoint)
	}
	if *at == nil {
		*at = &endpoint{h: h, id: id, ref: ref, opinions: Budget{refill: opinionRate, most: opinionBurst, tokens: opinionBurst}}
	}
	return *at
}

// list records that an endpoint has a history; h.mu is held.
func (e *endpoint) list(now time.Time) {
	if e.listed {
		return
	}
	e.listed = true
	e.good, e.bad, e.fadedAt = priorGood, 0, now
	e.h.known = append(e.h.known, e)
	e.h.listed.Store(int32(len(e.h.known)))
}

func (e *endpoint) current() State { return State(e.state.Load()) }

// putOut begins a state that is out. hangs says that requests would hang there.
func (e *endpoint) putOut(s State, now time.Time, hangs bool) {
	e.state.Store(uint32(s))
	e.since, e.hangs = now, hangs
	e.spell++
	e.postpone(now)
}

// silence is a time in which an endpoint sends nothing. Zero: there is none.
type silence struct {
	heard uint64 // one more than that of the endpoint
	from  time.Time
}

// begin begins it, unless it lasts.
func (s *silence) begin(e *endpoint, now time.Time) {
	if heard := e.heard.Load(); s.heard != heard+1 {
		*s = silence{heard + 1, now}
	}
}

// lasts is how long it lasts; 0: the endpoint has sent something since.
func (s silence) lasts(e *endpoint, now time.Time) time.Duration {
	if s.heard != e.heard.Load()+1 {
		return 0
	}
	return max(now.Sub(s.from), 1)
}

// comeBack lets the endpoint return: what put it out no longer counts.
func (e *endpoint) comeBack(now time.Time) {
	e.state.Store(uint32(Returning))
	e.since, e.credit, e.failed = now, 0, 0
	e.good, e.bad, e.refusals, e.lastErr = 1, 0, 0, nil
}

// recover ends what put the endpoint out, as if it were new.
func (e *endpoint) recover(now time.Time) {
	e.state.Store(uint32(Well))
	e.since, e.backoff = now, 0
}

func (e *endpoint) postpone(now time.Time) {
	e.backoff = max(e.backoff, firstBackoff)
	e.nextTrial = now.Add(e.backoff)
	e.backoff = min(2*e.backoff, maxBackoff)
}

// unfit reports whether checks keep the endpoint out, whatever has put it out. If they have stopped,
// old ones say nothing.
func (e *endpoint) unfit(now time.Time) bool {
	return e.everPassed && e.failed >= e.h.failures && now.Before(e.checkedAt.Add(checksCount))
}

// share is the share of its traffic that the endpoint gets.
func (e *endpoint) share(now time.Time) float64 {
	switch s := e.current(); {
	case s.Out():
		return 0
	case s == Returning:
		return rampFrom + float64(now.Sub(e.since))/float64(rampTime)
	}
	return 1
}

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
	// neglect is how long a trial may be due before a request is sent there that would go elsewhere.
	neglect = 15 * time.Second
	// offerFor is how long a trial is reserved for the request it was offered to.
	offerFor = 20 * time.Millisecond
	// rampTime is how long it takes from a successful trial to the full share,
	// beginning with rampFrom.
	rampTime = 15 * time.Second
	rampFrom = 0.1

	// fullFor is how long an endpoint is avoided that is full and does not say for how
	// long, maxFull the longest time that it may ask for.
	fullFor = 250 * time.Millisecond
	maxFull = 30 * time.Second
	// How often per second a refusal is checked by asking another endpoint, and
	// how often at once.
	opinionRate  = 1
	opinionBurst = 4
)
