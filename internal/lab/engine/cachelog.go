package engine

import "time"

// CacheEvent is a change of the cache, as engines publish it.
type CacheEvent struct {
	// At is when it is published: at the end of the step in which it happened.
	At      time.Duration
	Removed bool     // otherwise they were stored
	Hashes  []uint64 // of the blocks, in the order of the prompt; must not be written to
	// Parent is the block before the first stored one.
	Parent    uint64
	HasParent bool
}

// cacheLog has the events that [Engine.CacheEvents] has not returned yet.
type cacheLog struct {
	on     bool
	events []CacheEvent
	dated  int // number of events with a known time
}

func (l *cacheLog) came(hashes []uint64, from, to int) {
	if !l.on || from == to {
		return
	}
	e := CacheEvent{Hashes: hashes[from:to:to]}
	if from > 0 {
		e.Parent, e.HasParent = hashes[from-1], true
	}
	l.events = append(l.events, e)
}

func (l *cacheLog) went(hashes []uint64) {
	if l.on {
		l.events = append(l.events, CacheEvent{Removed: true, Hashes: hashes[:len(hashes):len(hashes)]})
	}
}

// date sets the time of the events since the last call.
func (l *cacheLog) date(at picos) {
	for ; l.dated < len(l.events); l.dated++ {
		t := at.up()
		if l.dated > 0 {
			t = max(t, l.events[l.dated-1].At)
		}
		l.events[l.dated].At = t
	}
}

// CacheEvents appends to dst the changes of the cache that were published by the time
// by, as of the latest call with a time, and forgets them. Nothing is recorded without
// [Config].CacheEvents.
func (e *Engine) CacheEvents(by time.Duration, dst []CacheEvent) []CacheEvent {
	l := &e.cache.log
	l.date(e.latest)
	n := 0
	for n < len(l.events) && l.events[n].At <= by {
		n++
	}
	if n == 0 {
		return dst
	}
	dst = append(dst, l.events[:n]...)
	rest := copy(l.events, l.events[n:])
	clear(l.events[rest:])
	l.events, l.dated = l.events[:rest], l.dated-n
	return dst
}
