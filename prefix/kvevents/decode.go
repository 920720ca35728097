package kvevents

import (
	"errors"
	"fmt"
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
}

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
	seed   maphash.Seed
	r      reader
	hashes []precise.Hash
	tokens []uint32
	others []bool
}

func newDecoder() *decoder { return &decoder{seed: maphash.MakeSeed()} }

// decode reads a message into a batch, whose memory it reuses. The error matches
// errMalformed. A message makes it allocate at most sixteen times its length.
func (d *decoder) decode(message []byte, b *batch) error {
	*b = batch{events: b.events[:0]}
	d.hashes, d.tokens, d.others = d.hashes[:0], d.tokens[:0], d.others[:0]
	r := &d.r
	r.reset(message)
	if r.kind() == kindMap {
		return d.mapBatch(b)
	}
	n, ok := r.array()
	if !ok || n < 2 {
		return fmt.Errorf("%w: neither a pair nor a map", errMalformed)
	}
	if !r.number() { // when the engine made it
		return fmt.Errorf("%w: its time is not a number", errMalformed)
	}
	if err := d.events(b); err != nil {
		return err
	}
	for i := 2; i < n; i++ {
		if k := r.kind(); i > 2 || k != kindNumber && k != kindNil { // the data-parallel rank is third
			b.counts.UnknownFields++
		}
		if !r.skip() {
			return fmt.Errorf("%w: it ends too early", errMalformed)
		}
	}
	return nil
}

func (d *decoder) mapBatch(b *batch) error {
	r := &d.r
	n, ok := r.mapping()
	if !ok {
		return fmt.Errorf("%w: neither a pair nor a map", errMalformed)
	}
	found := false
	for range n {
		key, ok := r.text()
		if !ok {
			return fmt.Errorf("%w: a key is not a string", errMalformed)
		}
		switch string(key) {
		case "ts":
			ok = r.number()
		case "events":
			if err := d.events(b); err != nil {
				return err
			}
			found = true
		case "data_parallel_rank", "attn_dp_rank":
			ok = r.skip()
		default:
			b.counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return fmt.Errorf("%w: %.40q is of another type", errMalformed, key)
		}
	}
	if !found {
		return fmt.Errorf("%w: a map without events", errMalformed)
	}
	return nil
}

func (d *decoder) events(b *batch) error {
	if d.r.null() {
		return nil
	}
	n, ok := d.r.array()
	if !ok {
		return fmt.Errorf("%w: its events are not an array", errMalformed)
	}
	for range n {
		start := d.r.at()
		if d.event(b) {
			continue
		}
		b.counts.Malformed++
		if d.r.seek(start); !d.r.skip() {
			return fmt.Errorf("%w: it ends within an event", errMalformed)
		}
	}
	return nil
}
