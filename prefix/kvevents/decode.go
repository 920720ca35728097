package kvevents

import (
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// ErrMalformed says that a message is no batch of events. Oddities of single events
// are counted instead; see [Counts].
var ErrMalformed = errors.New("kvevents: malformed batch")

// Batch is what an engine process publishes after a step.
type Batch struct {
	// Time is when the engine made it, in seconds since 1970 by its clock.
	Time float64
	// Rank is the data-parallel rank if HasRank is set; old releases don't send it.
	Rank    int
	HasRank bool
	// Events are in order, and valid until the next message is decoded.
	Events []precise.Event
	Counts Counts
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

// Decoder reads messages. It shortens block names of more than 64 bits with a random
// hash, so one Decoder has to read all messages of an engine process. Make it with
// [NewDecoder]. It is not safe for concurrent use.
type Decoder struct {
	seed   maphash.Seed
	r      reader
	hashes []precise.Hash
	tokens []uint32
	others []bool
}

// NewDecoder returns a decoder.
func NewDecoder() *Decoder { return &Decoder{seed: maphash.MakeSeed()} }

// Decode reads a message into a batch, whose memory it reuses. The error matches
// ErrMalformed. A message makes it allocate at most sixteen times its length.
func (d *Decoder) Decode(message []byte, b *Batch) error {
	*b = Batch{Events: b.Events[:0]}
	d.hashes, d.tokens, d.others = d.hashes[:0], d.tokens[:0], d.others[:0]
	r := &d.r
	r.reset(message)
	if r.kind() == kindMap {
		return d.mapBatch(b)
	}
	n, ok := r.array()
	if !ok || n < 2 {
		return fmt.Errorf("%w: neither a pair nor a map", ErrMalformed)
	}
	if b.Time, ok = r.float(); !ok {
		return fmt.Errorf("%w: its time is not a number", ErrMalformed)
	}
	if err := d.events(b); err != nil {
		return err
	}
	for i := 2; i < n; i++ {
		if i == 2 {
			if b.Rank, b.HasRank = r.small(); b.HasRank || r.null() {
				continue
			}
		}
		b.Counts.UnknownFields++
		if !r.skip() {
			return fmt.Errorf("%w: it ends too early", ErrMalformed)
		}
	}
	return nil
}

func (d *Decoder) mapBatch(b *Batch) error {
	r := &d.r
	n, ok := r.mapping()
	if !ok {
		return fmt.Errorf("%w: neither a pair nor a map", ErrMalformed)
	}
	found := false
	for range n {
		key, ok := r.text()
		if !ok {
			return fmt.Errorf("%w: a key is not a string", ErrMalformed)
		}
		switch string(key) {
		case "ts":
			b.Time, ok = r.float()
		case "events":
			if err := d.events(b); err != nil {
				return err
			}
			found = true
		case "data_parallel_rank", "attn_dp_rank":
			if !r.null() {
				b.Rank, ok = r.small()
				b.HasRank = ok
			}
		default:
			b.Counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return fmt.Errorf("%w: %.40q is of another type", ErrMalformed, key)
		}
	}
	if !found {
		return fmt.Errorf("%w: a map without events", ErrMalformed)
	}
	return nil
}

func (d *Decoder) events(b *Batch) error {
	if d.r.null() {
		return nil
	}
	n, ok := d.r.array()
	if !ok {
		return fmt.Errorf("%w: its events are not an array", ErrMalformed)
	}
	for range n {
		start := d.r.at()
		if d.event(b) {
			continue
		}
		b.Counts.Malformed++
		if d.r.seek(start); !d.r.skip() {
			return fmt.Errorf("%w: it ends within an event", ErrMalformed)
		}
	}
	return nil
}
