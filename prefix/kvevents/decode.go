package kvevents

import (
	"errors"
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// errMalformed says that a message is no batch of events. Oddities of single events
// are counted instead; see [Counts].
var errMalformed = errors.New("kvevents: malformed batch")

// Counts counts oddities in messages. None is fatal: engines add to their events from
// release to release.
type Counts struct {
	UnknownEvents uint64 // unknown kinds of event
	UnknownFields uint64 // of known events
	UnknownMedia  uint64 // events dropped because the location of their blocks is unknown
	Malformed     uint64 // events dropped because a field has the wrong type
}

// decoder reads messages. It shortens block names of more than 64 bits with a random
// hash, so one decoder has to read all messages of an engine process. Make it with
// newDecoder. It is not safe for concurrent use.
type decoder struct {
	reader
	seed   maphash.Seed
	counts Counts // so far
	event  [1]precise.Event
	hashes []precise.Hash
	tokens []uint32
	others []bool
}

func newDecoder() *decoder { return &decoder{seed: maphash.MakeSeed()} }

// decode reads a message, which an engine process publishes after a step, and passes its events on
// one by one, each valid until apply returns. The error matches errMalformed, and what was passed
// on before is of no use then.
func (d *decoder) decode(message []byte, apply func([]precise.Event)) error {
	if max(cap(d.hashes), cap(d.tokens), cap(d.others)) > 1<<20 {
		d.hashes, d.tokens, d.others = nil, nil, nil
	}
	d.reset(message)
	found := false
	field := func(name string) {
		switch name {
		case "events":
			found = true
			d.events(apply)
		case "ts", "data_parallel_rank", "attn_dp_rank":
			d.skip()
		default:
			d.counts.UnknownFields++
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

func (d *decoder) events(apply func([]precise.Event)) {
	if d.null() {
		return
	}
	for range d.array() {
		start := d.at()
		ok := d.next()
		if d.bad {
			d.counts.Malformed++
			d.bad = false
			d.seek(start)
			if d.skip(); d.bad {
				return // it ends within the event
			}
		} else if ok {
			apply(d.event[:])
		}
	}
}
