package queue

import "time"

// leap is how far the holder's time may be before the last call, or after both
// it and the next expiry, without counting as a jump.
const leap = time.Minute

// clock turns the holder's time into one without jumps, which all times in the
// queue use.
type clock struct {
	shift time.Duration // added to the holder's time
	last  time.Time     // the latest time so far
}

// at is the queue's time of a call. A clock that is set ahead, or a holder that
// was suspended, does not time out everybody, and a clock that is set back does
// not make requests wait for as long.
func (q *Queue[T]) at(now time.Time) time.Time {
	c := &q.clock
	first, waiting := q.times.Min()
	if !waiting {
		*c = clock{last: now}
		return now
	}
	t := now.Add(c.shift)
	switch {
	case t.Before(c.last.Add(-leap)), t.After(c.last.Add(leap)) && t.After(first.expires.Add(leap)):
		c.shift += c.last.Sub(t)
		t = c.last
	case t.After(c.last):
		c.last = t
	}
	return t
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
