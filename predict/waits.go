package predict

import (
	"math"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/pace"
)

const (
	// patience is how many times the upper bound of its prediction a request waits before its wait is evidence.
	patience = 2
	// maxRemembered bounds how long a silence is held against an endpoint that nobody waits at any more: an hour's would
	// keep it out for an hour after it has come back.
	maxRemembered = 15 * time.Second
)

// An endpointState is what the requests that went to one endpoint tell of it besides their labels. Times are in
// nanoseconds since the epoch.
//
// # Waits
//
// A server that has stopped answering gives no labels. What tells of it are the requests that wait there: the oldest of
// them has been waiting for longer than it may, and nobody has been answered since. The lesser of these two times is the
// silence of the endpoint, and what comes next is expected to wait for that much longer than the model says: a wait of w
// says that it is about w too short, whatever w is. One stuck request says nothing as long as others are answered, and
// an answer ends the silence.
//
// Requests that leave unanswered take their evidence with them, so the silence is remembered when they do. It then fades
// as fast as it grew: a server that was silent for ten seconds is tried again, with its place in the order, after ten,
// and after maxRemembered however long it was.
type endpointState struct {
	oldest, newest endpick.LeaseRef // of the requests that wait, in the order in which they came
	waiting        int64            // since when somebody has been waiting
	due            int64            // until when the oldest may wait
	answered       int64            // when somebody was answered
	remembered     int64            // the silence when somebody left unanswered, at rememberedAt
	rememberedAt   int64

	pace pace.Pace // of the endpoint, against what the models say
}

// silence returns for how long the endpoint has been silent, in nanoseconds; 0 if it is not. A clock that is set back
// makes it 0 for a while.
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

// asked is since when an answer is awaited; now if none is. Until it has come the pace is what it was.
func (s *endpointState) asked(now int64) int64 {
	if s.oldest != (endpick.LeaseRef{}) {
		return min(max(s.waiting, s.answered), now)
	}
	return now
}

// answer notes that somebody was answered.
func (s *endpointState) answer(now int64) {
	s.answered, s.remembered = now, 0
}

// An endpointNow is what an endpointState says at a moment.
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

// wait puts a request at the end of those that wait on its endpoint, if it is known how long it may. l.mu is held.
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

// leave takes a request out of those that wait, answered or not. l.mu is held.
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

// mayWait returns how long a request is expected to wait at most: what was predicted of the chosen endpoint, or else the
// longest that was predicted of any which answers; 0 if nothing is known. Of what a silent endpoint was predicted, its
// silence is no part. l.mu is held.
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

// nanoseconds is t.UnixNano within what can be added to.
func nanoseconds(t time.Time) int64 {
	return max(math.MinInt64/4, min(t.UnixNano(), math.MaxInt64/4))
}
