package protocol

import (
	"math"
	"time"

	"github.com/endpick/endpick"
)

// The operations of a log. An operation begins with a byte: its kind in the lower bits, flags
// in the upper.
const (
	opEndpoint = iota // a number and what it stands for
	opClass           // likewise
	opRouted          // a request, with the next number
	opFirst           // its first token has arrived
	opDone            // it has ended
	opHolds           // an endpoint holds blocks
	opOutcomes        // how many requests an endpoint has failed and served
	opOpen            // in a snapshot: a request in flight
	opBye             // the replica leaves

	kindBits = 4
	kindMask = 1<<kindBits - 1
)

// Flags of opRouted, opOpen and opHolds.
const (
	hasBlocks     = 1 << (kindBits + iota)
	hasBlockSize  // other than endpick.DefaultBlockTokens
	hasFirstToken // of opOpen
	hasParent     // its blocks follow others, whose last one is named
)

// Flags of opDone, above two bits for its status.
const (
	hasCached = 1 << (kindBits + 2 + iota)
	hasMore   // blocks of the response follow
)

// Flags of opClass.
const (
	streams = 1 << (kindBits + iota)
	exact
	hasTargets
	several // responses
)

// facts are what a log says about a request when it is routed.
type facts struct {
	endpoint string
	class    Class
	input    int
	prefix   int
	output   int // expected tokens
	block    int // tokens per block, in units of 1/blockParts
}

const usualBlock = endpick.DefaultBlockTokens * blockParts

func parts(blockTokens float64) int {
	return int(min(max(math.Round(blockTokens*blockParts), 1), maxTokens))
}

// writeFacts writes a request with so many blocks, of which some are known.
func (l *log) writeFacts(w *writer, op byte, f *facts, blocks, known int) {
	endpoint, class := l.endpoint(w, f.endpoint), l.class(w, f.class)
	if blocks > 0 {
		op |= hasBlocks
		if known > 0 {
			op |= hasParent
		}
		if f.block != usualBlock {
			op |= hasBlockSize
		}
	}
	w.byte(op)
	w.count(endpoint)
	w.count(class)
	w.count(f.input)
	w.count(f.prefix)
	w.count(f.output)
	if op&hasBlockSize != 0 {
		w.count(f.block)
	}
}

// endpoint returns the number of an endpoint, and writes its ID first if it is new.
func (l *log) endpoint(w *writer, id string) int {
	number, isNew := l.endpoints.number(id)
	if isNew {
		writeEndpoint(w, number, id)
	}
	return number
}

func writeEndpoint(w *writer, number int, id string) {
	w.byte(opEndpoint)
	w.count(number)
	w.text(id)
}

func (l *log) class(w *writer, c Class) int {
	number, isNew := l.classes.number(c)
	if isNew {
		writeClass(w, number, &c)
	}
	return number
}

func writeClass(w *writer, number int, c *Class) {
	op := byte(opClass)
	if c.Stream {
		op |= streams
	}
	if c.Exact {
		op |= exact
	}
	if c.TTFT > 0 || c.TPOT > 0 {
		op |= hasTargets
	}
	if c.Responses > 0 {
		op |= several
	}
	w.byte(op)
	w.count(number)
	w.text(c.Model)
	w.text(c.Adapter)
	w.text(c.Tenant)
	if op&hasTargets != 0 {
		w.uint(ticks(c.TTFT))
		w.uint(ticks(c.TPOT))
	}
	if op&several != 0 {
		w.count(c.Responses)
	}
}

// readName reads what a number stands for from now on.
func (p *peer) readName(r *reader, op byte) {
	ok := false
	if op&kindMask == opEndpoint {
		number, id := int(r.within(maxEndpoints-1)), r.text()
		ok = p.endpoints.set(number, id)
	} else {
		ok = p.classes.set(readClass(r, op))
	}
	r.bad = r.bad || !ok
}

func readClass(r *reader, op byte) (number int, c Class) {
	number = int(r.within(maxClasses - 1))
	c = Class{Model: r.text(), Adapter: r.text(), Tenant: r.text(), Stream: op&streams != 0, Exact: op&exact != 0}
	if op&hasTargets != 0 {
		c.TTFT, c.TPOT = r.duration(), r.duration()
	}
	if op&several != 0 {
		c.Responses = int(r.within(maxTokens))
	}
	return number, c
}

// readFacts reads what follows the first byte.
func (p *peer) readFacts(r *reader, op byte) (f facts) {
	var ok1, ok2 bool
	f.endpoint, ok1 = p.endpoints.get(int(r.within(maxEndpoints)))
	f.class, ok2 = p.classes.get(int(r.within(maxClasses)))
	r.bad = r.bad || !ok1 || !ok2
	f.input, f.prefix, f.output = int(r.within(maxTokens)), int(r.within(maxTokens)), int(r.within(maxTokens))
	f.block = usualBlock
	if op&hasBlockSize != 0 {
		f.block = max(int(r.within(maxTokens)), 1)
	}
	return f
}

// ticks is a duration on the wire. A known duration is never zero.
func ticks(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64(max((min(d, maxDuration)+tick/2)/tick, 1))
}

func (r *reader) duration() time.Duration {
	return time.Duration(r.within(uint64(maxDuration/tick))) * tick
}

// request converts the facts to a request.
func (f *facts) request(blocks []uint64) endpick.Request {
	return endpick.Request{
		Model: f.class.Model, Adapter: f.class.Adapter, Tenant: f.class.Tenant,
		SLO:    endpick.SLO{TTFT: f.class.TTFT, TPOT: f.class.TPOT},
		Stream: f.class.Stream, Exact: f.class.Exact, Responses: f.class.Responses,
		InputTokens: f.input, ExpectedOutputTokens: f.output,
		Blocks: blocks, BlockTokens: float64(f.block) / blockParts,
		Adopted: &endpick.Adopted{Endpoint: f.endpoint, Mirrored: true, ExpectedCached: f.prefix},
	}
}
