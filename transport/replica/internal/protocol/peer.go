package protocol

import (
	"cmp"
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// peer is another replica, as its log describes it.
type peer struct {
	instance uint32
	name     string
	live     bool      // a snapshot was loaded
	heardAt  time.Time // when its newest batch arrived
	left     bool

	// How much of its log is applied here.
	applied   uint64            // batches
	early     map[uint64][]byte // batches that wait for one before them
	heldBytes int
	missedAt  time.Time // when the first missing one was noticed; zero: none

	// The snapshot that was requested.
	question uint64 // 0: none
	askedAt  time.Time
	wait     time.Duration // until the next request
	parts    [][]byte
	got      int
	asOf     uint64 // batches in it

	// The content of the log.
	next      uint64
	endpoints named[string]
	classes   named[Class]
	open      map[uint64]*Lease
	wanted    []wanted
}

// apply applies a batch; false if it is invalid.
func (n *Node) apply(now time.Time, p *peer, batch []byte) bool {
	r := &reader{b: batch}
	for r.more() {
		op := r.byte()
		switch op & kindMask {
		case opEndpoint, opClass:
			p.readName(r, op)
		case opRouted:
			f := p.readFacts(r, op)
			number := p.next
			p.next++
			n.opened(now, p, &Lease{facts: f, number: number}, r, op)
		case opFirst:
			if l := p.lease(r); l != nil && !r.bad && !l.answered {
				l.answered = true
				n.effect(Effect{Kind: Answered, Lease: l})
			}
		case opDone:
			n.done(p, r, op)
		case opHolds:
			if e, number, ok := n.readHeld(p, r, op); ok {
				p.satisfied(number)
				n.effect(e)
			}
		case opOutcomes:
			endpoint, ok := p.endpoints.get(int(r.within(maxEndpoints)))
			failed, served := int(r.within(maxOutcomes)), int(r.within(maxOutcomes))
			if r.bad = r.bad || !ok; !r.bad {
				n.effect(Effect{Kind: Outcomes, Endpoint: endpoint, Failed: failed, Served: served})
			}
		case opBye:
			p.left = true
		default: // of another version, or opOpen, which is for snapshots
			r.bad = true
		}
	}
	return !r.bad
}

// lease reads which request an operation is about; nil: it is not mirrored.
func (p *peer) lease(r *reader) *Lease { return p.open[p.next-r.uint()] }

// opened mirrors a request whose blocks have yet to be read.
func (n *Node) opened(now time.Time, p *peer, l *Lease, r *reader, op byte) {
	blocks, known := n.readChain(r, op)
	if !r.bad {
		n.mirror(now, p, l, blocks, known)
	}
}

// mirror counts a request, unless there are too many. known says whether its blocks
// are known, which its endpoint will then hold.
func (n *Node) mirror(now time.Time, p *peer, l *Lease, blocks []uint64, known bool) {
	if len(p.open) >= maxOpen || n.mirrored >= maxMirrored {
		n.counts.Unmirrored++
		return
	}
	if !known {
		n.want(now, p, l.number)
	}
	if l.depth = len(blocks); l.depth > 0 {
		l.leaf = blocks[l.depth-1]
	}
	p.open[l.number] = l
	n.mirrored++
	n.effect(Effect{Kind: Opened, Lease: l, Request: l.request(blocks)})
	if l.answered {
		n.effect(Effect{Kind: Answered, Lease: l})
	}
}

// readChain reads the blocks of a prompt; false if what precedes them is not known. Beyond maxWhole it
// reads none: a few bytes stand for a long head.
func (n *Node) readChain(r *reader, op byte) (blocks []uint64, known bool) {
	if op&hasBlocks == 0 {
		return nil, true
	}
	known = true
	if op&hasParent != 0 {
		parent := r.hash()
		l, ok := n.chains.find(parent)
		if r.whole += int(l.depth); r.whole <= maxWhole {
			if known = ok || !n.log.shareBlocks; ok {
				blocks, known = n.chains.head(nil, parent, int(l.depth))
			}
		}
	}
	blocks = r.hashes(blocks)
	if !known || r.bad || len(blocks) > maxChain {
		return nil, known
	}
	if !n.log.shareBlocks || r.whole > maxWhole {
		return nil, true
	}
	n.chains.add(blocks)
	return blocks, true
}

func (n *Node) done(p *peer, r *reader, op byte) {
	l := p.lease(r)
	var f facts // of a request that is not mirrored
	if l != nil {
		f = l.facts
	}
	o := Outcome{Outcome: endpick.Outcome{
		Status:      endpick.Status(op >> kindBits & 3),
		InputTokens: r.near(f.input), OutputTokens: int(r.within(maxTokens)),
		HasCachedTokens: op&hasCached != 0,
	}}
	o.Took, o.TTFT = r.duration(), r.duration()
	if o.HasCachedTokens {
		o.CachedTokens = r.near(f.prefix)
	}
	var more []uint64
	if op&hasMore != 0 {
		more = r.hashes(nil)
	}
	if r.bad || l == nil {
		return
	}
	if l.late {
		o.Took, o.TTFT = 0, 0
	}
	if len(more) > 0 && l.depth > 0 && l.depth+len(more) <= maxChain {
		if whole, ok := n.chains.head(nil, l.leaf, l.depth); ok {
			o.Blocks = append(whole, more...)
			n.chains.add(o.Blocks)
		}
	}
	n.close(p, l, o)
}

func (n *Node) close(p *peer, l *Lease, o Outcome) {
	delete(p.open, l.number)
	n.mirrored--
	n.effect(Effect{Kind: Ended, Lease: l, Outcome: o})
}

// readHeld reads what an endpoint holds since an earlier request, which may have ended;
// false if its blocks are not known.
func (n *Node) readHeld(p *peer, r *reader, op byte) (e Effect, number uint64, ok bool) {
	f := p.readFacts(r, op)
	number = r.uint()
	blocks, known := n.readChain(r, op)
	f.prefix = f.input
	return Effect{Kind: Holds, Request: f.request(blocks)}, number, known && len(blocks) > 0 && !r.bad
}

// forget ends all requests of a replica that is gone.
func (n *Node) forget(p *peer) {
	n.lose(p, func(*Lease) bool { return true })
	delete(n.peers, p.instance)
}

// lose ends requests whose real end is not known.
func (n *Node) lose(p *peer, which func(*Lease) bool) {
	var lost []*Lease
	for _, l := range p.open {
		if which(l) {
			lost = append(lost, l)
		}
	}
	slices.SortFunc(lost, func(a, b *Lease) int { return cmp.Compare(a.number, b.number) })
	for _, l := range lost {
		n.close(p, l, Outcome{Outcome: endpick.Outcome{Status: endpick.Lost}})
	}
}
