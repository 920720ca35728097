package kvevents

import (
	"errors"
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// errMalformed says that a message is no batch of events. Oddities of single events
// are counted instead; see [Counts].
var errMalformed = errors.New("kvevents: malformed batch")

// batch is what an engine process publishes after a step.
type batch struct {
	events []precise.Event // in order, and valid until the next message is decoded
	counts Counts
	// pass takes the events so far, before there are more than manyEvents. Nil: all are in events.
	pass func([]precise.Event)
}

// manyEvents are more than a step of an engine has.
const manyEvents = 1024

// Counts counts oddities in messages. None is fatal: engines add to their events from
// release to release.
type Counts struct {
	UnknownEvents uint64 // unknown kinds of event
	UnknownFields uint64 // of known events
	UnknownMedia  uint64 // events dropped because the location of their blocks is unknown
	Malformed     uint64 // events dropped because a field has the wrong type
}

func (c *Counts) add(d Counts) {
	c.UnknownEvents += d.UnknownEvents
	c.UnknownFields += d.UnknownFields
	c.UnknownMedia += d.UnknownMedia
	c.Malformed += d.Malformed
}

// decoder reads messages. It shortens block names of more than 64 bits with a random
// hash, so one decoder has to read all messages of an engine process. Make it with
// newDecoder. It is not safe for concurrent use.
type decoder struct {
	reader
	seed   maphash.Seed
	hashes []precise.Hash
	tokens []uint32
	others []bool
}

func newDecoder() *decoder { return &decoder{seed: maphash.MakeSeed()} }

// decode reads a message into a batch, whose memory it reuses unless that is much. The error matches
// errMalformed, and what was passed on before is of no use then. If a batch passes events on, what they
// take at a time is at most sixteen times the length of the message.
func (d *decoder) decode(message []byte, b *batch) error {
	*b = batch{events: b.events[:0], pass: b.pass}
	if max(cap(d.hashes), cap(d.tokens), cap(d.others)) > 1<<20 {
		d.hashes, d.tokens, d.others = nil, nil, nil
	}
	d.reuse()
	d.reset(message)
	found := false
	field := func(name string) {
		switch name {
		case "events":
			found = true
			d.events(b)
		case "ts", "data_parallel_rank", "attn_dp_rank":
			d.skip()
		default:
			b.counts.UnknownFields++
			d.skip()
		}
	}
	if d.kind() == kindMap {
		for range d.mapping() {
			field(string(d.text()))
		}
	} else {
		for i := range d.array() {
			field([...]string{"ts", "events", "data_parallel_rank", ""}[min(i, 3)])
		}
	}
	if d.bad || !found {
		return errMalformed
	}
	return nil
}

// reuse is called when the events so far have been passed on.
func (d *decoder) reuse() {
	d.hashes, d.tokens, d.others = d.hashes[:0], d.tokens[:0], d.others[:0]
}

func (d *decoder) events(b *batch) {
	if d.null() {
		return
	}
	for range d.array() {
		if len(b.events) >= manyEvents && b.pass != nil {
			b.pass(b.events)
			b.events = b.events[:0]
			d.reuse()
		}
		start := d.at()
		if d.event(b); d.bad {
			b.counts.Malformed++
			d.bad = false
			d.seek(start)
			if d.skip(); d.bad {
				return // it ends within the event
			}
		}
	}
}
