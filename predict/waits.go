package predict

import (
	"math"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/pace"
)

const (
	// patience is how long a request waits before its wait counts as evidence, in upper bounds of
	// its prediction.
	patience = 2
	// maxRemembered limits how long a silence counts at an endpoint where nobody waits any more: an
	// hour's silence would exclude it for an hour after its recovery.
	maxRemembered = 15 * time.Second
)

// An endpointState is what the requests on one endpoint reveal besides their labels. Times are in
// nanoseconds since the epoch.
//
// # Waits
//
// A server that has stopped answering gives no labels. But requests wait there: the oldest has been
// waiting for longer than expected, and none has been answered meanwhile. The lesser of these two
// times is the silence of the endpoint, and the next request is expected to wait for that much
// longer than the model says: after a wait of w, the expected remaining wait is about w, whatever w
// is. One stuck request means nothing while others are answered, and an answer ends the silence.
//
// Requests that leave unanswered take their evidence with them, so the silence is remembered when
// they do. It then fades as fast as it grew: a server that was silent for ten seconds is tried
// again, at its usual rank, after ten seconds, and after maxRemembered at most.
type endpointState struct {
	oldest, newest endpick.LeaseRef // first and last of the requests that wait, in order of arrival
	waiting        int64            // when the current wait began
	due            int64            // when the oldest is overdue
	answered       int64            // when a request was last answered
	remembered     int64            // the silence when a request left unanswered, at rememberedAt
	rememberedAt   int64

	pace pace.Pace // relative to the models
}

// silence returns how long the endpoint has been silent, in nanoseconds; 0 if it is not. A clock
// that is set back makes it 0 for a while.
func (s *endpointState) silence(now int64) int64 {
	var v int64
	if s.oldest != (endpick.LeaseRef{}) {
		v = min(now-s.due, now-s.answered)
	}
	if s.remembered > 0 {
		v = max(v, s.remembered-max(0, now-s.rememberedAt))
	}
	return max(0, v)
}

// asked is when the wait for an answer began, or now. The pace does not change while waiting.
func (s *endpointState) asked(now int64) int64 {
	if s.oldest != (endpick.LeaseRef{}) {
		return min(max(s.waiting, s.answered), now)
	}
	return now
}

// answer records that a request was answered.
func (s *endpointState) answer(now int64) {
	s.answered, s.remembered = now, 0
}

// An endpointNow is an endpointState at one moment.
type endpointNow struct {
	silence time.Duration
	pace    float64 // how much longer it takes than the models say
}

// endpoints appends what is known of the candidates' endpoints.
func (l *Latency) endpoints(dst []endpointNow, candidates []endpick.Candidate, now int64) []endpointNow {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i := range candidates {
		e := endpointNow{pace: 1}
		if s := l.states.Find(candidates[i].Ref); s != nil {
			e = endpointNow{time.Duration(s.silence(now)), s.pace.Factor(s.asked(now))}
		}
		dst = append(dst, e)
	}
	return dst
}

// wait appends a request to those waiting on its endpoint, if its expected wait is known. l.mu
// is held.
func (l *Latency) wait(lease endpick.LeaseRef, o *openRequest, s *endpointState, may time.Duration) {
	if may <= 0 {
		return
	}
	o.waits = true
	o.due = nanoseconds(o.routedAt.Add(min(may, maxLatency) * patience))
	o.before, o.after = s.newest, endpick.LeaseRef{}
	if before := l.open.Find(s.newest); before != nil {
		before.after = lease
	} else {
		s.oldest, s.due, s.waiting = lease, o.due, nanoseconds(o.routedAt)
	}
	s.newest = lease
}

// leave removes a request from those that wait, answered or not. l.mu is held.
func (l *Latency) leave(o *openRequest, now int64, answered bool) {
	s := l.states.Find(o.ref)
	if s == nil {
		return
	}
	if silence := s.silence(now); !answered && silence > 0 {
		s.remembered, s.rememberedAt = min(silence, int64(maxRemembered)), now
	}
	if answered {
		s.answer(now)
	}
	if !o.waits {
		return
	}
	o.waits = false
	before, after := l.open.Find(o.before), l.open.Find(o.after)
	if before != nil {
		before.after = o.after
	} else {
		s.oldest = o.after
		if after != nil {
			s.due = after.due
		}
	}
	if after != nil {
		after.before = o.before
	} else {
		s.newest = o.before
	}
}

// mayWait returns the longest expected wait of a request: the prediction for the chosen endpoint,
// or else the longest prediction for any endpoint that answers; 0 if there is none. It leaves out
// the silence in the prediction of a silent endpoint. l.mu is held.
func (l *Latency) mayWait(e *endpick.Event, silence time.Duration) time.Duration {
	upper := func(p *endpick.Prediction) time.Duration {
		switch {
		case e.Request.Stream && p.Has&endpick.TTFT != 0:
			return p.TTFTUpper
		case !e.Request.Stream && p.Has&endpick.E2E != 0:
			return p.E2EUpper
		}
		return 0
	}
	if own := upper(&e.Candidate.Prediction) - silence; own > 0 {
		return own
	}
	longest := time.Duration(0)
	now := nanoseconds(e.RoutedAt)
	for i := range e.Candidates {
		c := &e.Candidates[i]
		if u := upper(&c.Prediction); u > longest {
			if s := l.states.Find(c.Ref); s == nil || s.silence(now) == 0 {
				longest = u
			}
		}
	}
	return longest
}

// nanoseconds is t.UnixNano, clamped so that sums don't overflow.
func nanoseconds(t time.Time) int64 {
	return max(math.MinInt64/4, min(t.UnixNano(), math.MaxInt64/4))
}
