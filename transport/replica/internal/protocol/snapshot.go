package protocol

import (
	"cmp"
	"maps"
	"slices"
)

// snapshot returns the state of the log after its last batch, with nothing pending, as
// operations on an empty log: what ended requests have left on endpoints, oldest first,
// as many of the newest as there is room for; the requests in flight; and the names that
// the log continues with. It begins with the number of the next request.
func (n *Node) snapshot() []byte {
	l := n.log
	flying := slices.SortedFunc(maps.Values(l.open), func(a, b *own) int { return cmp.Compare(a.number, b.number) })
	room := room{chains: n.chains, within: map[uint64]bool{}, left: blockBudget, whole: maxWhole}
	chained := make([]bool, len(flying)) // there is room for its blocks
	for i, o := range slices.Backward(flying) {
		chained[i] = room.take(o.leaf, o.depth)
	}
	var ended []*held // newest first
	for i := range l.recent {
		h := &l.recent[(l.oldest+len(l.recent)-1-i)%len(l.recent)]
		if !room.take(h.leaf, h.depth) {
			break
		}
		ended = append(ended, h)
	}

	// Ended requests may have names that no longer have a number in the log.
	names := newLog(l.shareBlocks)
	written := map[uint64]bool{}
	var w writer
	w.uint(l.next)
	for _, h := range slices.Backward(ended) {
		n.writeOne(&w, names, opHolds, &h.facts, h.number, h.leaf, h.depth, written)
	}
	for i, o := range flying {
		op, depth := byte(opOpen), 0
		if o.answered {
			op |= hasFirstToken
		}
		if chained[i] {
			depth = o.depth
		}
		n.writeOne(&w, names, op, &o.facts, o.number, o.leaf, depth, written)
	}
	for i, id := range l.endpoints.names {
		writeEndpoint(&w, i, id)
	}
	for i := range l.classes.names {
		writeClass(&w, i, &l.classes.names[i])
	}
	return w.b
}

// writeOne writes a request for a reader who knows only what precedes it in the snapshot.
func (n *Node) writeOne(w *writer, names *log, op byte, f *facts, number, leaf uint64, depth int, written map[uint64]bool) {
	blocks, known, _ := n.chains.tail(leaf, depth, written) // room has checked that they are known
	for _, hash := range blocks {
		written[hash] = true
	}
	names.writeFacts(w, op, f, depth, known)
	w.uint(number)
	writeChain(w, blocks, min(known, 1))
}

// room limits the blocks of a snapshot.
type room struct {
	chains *chains
	within map[uint64]bool
	left   int // bytes
	whole  int // blocks of all requests, with those that they share
}

// take reserves room for the blocks that end with a leaf, if they are known and
// fit.
func (r *room) take(leaf uint64, depth int) bool {
	if depth == 0 {
		return true
	}
	blocks, known, ok := r.chains.tail(leaf, depth, r.within)
	cost := 8 * (depth - known)
	if !ok || cost > r.left || depth > r.whole {
		return false
	}
	r.left -= cost
	r.whole -= depth
	for _, hash := range blocks {
		r.within[hash] = true
	}
	return true
}
