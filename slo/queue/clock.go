package queue

import "time"

// leap is how far the holder's time may lie before the last call, or after it
// and after the moment for which a call was due, to be taken as it is.
const leap = time.Minute

// clock turns the holder's time into one that does not leap, by which waiting
// is measured. All times in the queue are by this clock.
type clock struct {
	shift time.Duration // to be added to the holder's time
	last  time.Time     // the latest moment so far
}

// at is the queue's time of a call. A holder that is set ahead, or was asleep
// for long, does not time out everybody, and one that is set back lets nobody
// wait for as long as it had been wrong.
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
