package protocol

import (
	"strings"

	"github.com/endpick/endpick"
)

// log is this replica's log: what it has sent to the others.
type log struct {
	shareBlocks bool
	batches     uint64 // sent so far
	pending     writer // the next batch

	next      uint64 // number of the next request
	open      map[endpick.LeaseRef]*own
	byNumber  map[uint64]*own
	recent    []held // ring of ended requests
	oldest    int
	endpoints *numbers[string]
	classes   *numbers[Class]
}

// own is a request of this replica that is in flight.
type own struct {
	facts
	number   uint64
	answered bool
	leaf     uint64 // last of its shared blocks
	depth    int
}

// held is the blocks of a request that has ended.
type held struct {
	facts
	number uint64
	leaf   uint64
	depth  int
}

func newLog(shareBlocks bool) *log {
	return &log{
		shareBlocks: shareBlocks,
		open:        map[endpick.LeaseRef]*own{}, byNumber: map[uint64]*own{},
		endpoints: newNumbers(maxEndpoints, strings.Clone), classes: newNumbers(maxClasses, cloneClass),
	}
}

// Routed records that this replica has routed a request. It keeps neither argument.
func (n *Node) Routed(ref endpick.LeaseRef, endpoint string, req *endpick.Request, prefix int, blocks []uint64) {
	l := n.log
	o := &own{facts: facts{
		endpoint: endpoint,
		class: Class{
			Model: req.Model, Adapter: req.Adapter, Tenant: req.Tenant, TTFT: req.SLO.TTFT, TPOT: req.SLO.TPOT,
			Stream: req.Stream, Exact: req.Exact,
		},
		input: bounded(req.InputTokens), prefix: bounded(prefix), output: bounded(req.ExpectedOutputTokens), block: parts(req.TokensPerBlock()),
	}, number: l.next}
	if req.Responses > 1 {
		o.class.Responses = bounded(req.Responses)
	}
	if len(l.open) >= maxOpen || len(endpoint) > maxName || !o.class.fits() {
		n.counts.Unshared++
		return
	}
	n.counts.Shared++
	if !l.shareBlocks {
		blocks = nil
	}
	blocks = blocks[:min(len(blocks), maxChain)]
	if o.depth = len(blocks); o.depth > 0 {
		o.leaf = blocks[o.depth-1]
	}
	known := n.chains.add(blocks)
	l.next++
	if old := l.open[ref]; old != nil { // can't happen
		delete(l.byNumber, old.number)
	}
	l.open[ref], l.byNumber[o.number] = o, o
	w := &l.pending
	l.writeFacts(w, opRouted, &o.facts, o.depth, known)
	o.class = l.classes.names[l.classes.of[o.class]] // this copy's memory is its own
	writeChain(w, blocks, known)
	n.counts.Blocks += uint64(len(blocks) - known)
}

func bounded(tokens int) int { return min(max(tokens, 0), maxTokens) }

// writeChain writes the blocks of a prompt, of which the first known need not be sent.
func writeChain(w *writer, blocks []uint64, known int) {
	if len(blocks) == 0 {
		return
	}
	if known > 0 {
		w.hash(blocks[known-1])
	}
	w.hashes(blocks[known:])
}

// FirstToken records the first token of a request.
func (n *Node) FirstToken(ref endpick.LeaseRef) {
	o := n.log.open[ref]
	if o == nil || o.answered {
		return
	}
	o.answered = true
	n.log.pending.byte(opFirst)
	n.log.pending.uint(n.log.next - o.number)
}

// Done records how a request has ended. The outcome's times are measured ones, its
// blocks those of prompt and response. It keeps neither argument.
func (n *Node) Done(ref endpick.LeaseRef, outcome *Outcome) {
	l := n.log
	o := l.open[ref]
	if o == nil {
		return
	}
	delete(l.open, ref)
	delete(l.byNumber, o.number)
	status := min(outcome.Status, endpick.Lost)
	if outcome.Status == endpick.Refused {
		status = endpick.Failed // equivalent for a mirrored request, and fits in two bits
	}
	op := byte(opDone) | byte(status)<<kindBits
	if outcome.HasCachedTokens {
		op |= hasCached
	}
	var more []uint64
	whole := outcome.Blocks[:min(len(outcome.Blocks), maxChain)]
	if o.depth > 0 && len(whole) > o.depth && whole[o.depth-1] == o.leaf && outcome.Status == endpick.Completed {
		more = whole[o.depth:]
		op |= hasMore
	}
	w := &l.pending
	w.byte(op)
	w.uint(l.next - o.number)
	w.int(min(outcome.InputTokens, maxTokens) - o.input)
	w.count(min(outcome.OutputTokens, maxTokens))
	w.uint(ticks(outcome.Took))
	w.uint(ticks(outcome.TTFT))
	if outcome.HasCachedTokens {
		w.int(min(outcome.CachedTokens, maxTokens) - o.prefix)
	}
	if more != nil {
		n.chains.add(whole)
		n.counts.Blocks += uint64(len(more))
		w.hashes(more)
		o.leaf, o.depth = whole[len(whole)-1], len(whole)
	}
	if o.depth > 0 && (o.answered || outcome.Status == endpick.Completed) {
		l.remember(held{o.facts, o.number, o.leaf, o.depth})
	}
}

// remember keeps the blocks of a request that has ended, for snapshots.
func (l *log) remember(h held) {
	if len(l.recent) < maxRecent {
		l.recent = append(l.recent, h)
		return
	}
	l.recent[l.oldest] = h
	l.oldest = (l.oldest + 1) % maxRecent
}

// Outcomes records how many requests an endpoint has failed and served, as health sees
// it.
func (n *Node) Outcomes(endpoint string, failed, served int) {
	if len(endpoint) > maxName {
		return
	}
	w := &n.log.pending
	number := n.log.endpoint(w, endpoint)
	w.byte(opOutcomes)
	w.count(number)
	w.count(min(failed, maxOutcomes))
	w.count(min(served, maxOutcomes))
}

// Bye records that this replica leaves.
func (n *Node) Bye() { n.log.pending.byte(opBye) }

// repair sends all blocks of a request again.
func (n *Node) repair(number uint64) {
	l := n.log
	h := held{}
	if o := l.byNumber[number]; o != nil {
		h = held{o.facts, o.number, o.leaf, o.depth}
	} else {
		for i := range l.recent {
			if l.recent[i].number == number {
				h = l.recent[i]
			}
		}
	}
	blocks, ok := n.chains.head(nil, h.leaf, h.depth)
	if !ok || len(blocks) == 0 {
		return
	}
	n.counts.Repairs++
	l.writeFacts(&l.pending, opHolds, &h.facts, h.depth, 0)
	l.pending.uint(h.number)
	writeChain(&l.pending, blocks, 0)
	n.counts.Blocks += uint64(len(blocks))
}

// flush ends the batch.
func (n *Node) flush() {
	l := n.log
	l.batches++
	if len(l.pending.b) > maxPending {
		// Nobody gets it: all see that it is missing, and request a snapshot.
		l.pending.b = nil
		n.counts.Overflows++
		return
	}
	w := n.begin(kindBatch)
	w.uint(l.batches)
	w.b = append(w.b, l.pending.b...)
	l.pending.b = l.pending.b[:0]
	n.send(0, w)
}
