package protocol

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Peer describes another replica.
type Peer struct {
	Instance uint32
	Name     string
	// Live says that its log is known, from a snapshot.
	Live bool
	// Behind says that something of the log is missing.
	Behind bool
	Heard  time.Time // when something new of it arrived
	Open   int       // its requests in flight
}

func (n *Node) sorted() []*peer {
	return slices.SortedFunc(maps.Values(n.peers), func(a, b *peer) int { return cmp.Compare(a.instance, b.instance) })
}

// Peers returns the others, sorted by instance.
func (n *Node) Peers() []Peer {
	var all []Peer
	for _, p := range n.sorted() {
		all = append(all, Peer{p.instance, p.name, p.live, !p.missedAt.IsZero(), p.heardAt, len(p.open)})
	}
	return all
}

// Counts returns the counts so far.
func (n *Node) Counts() Counts { return n.counts }

// Each calls yield for each request in flight of the others.
func (n *Node) Each(yield func(*Lease)) {
	for _, p := range n.peers {
		for _, l := range p.open {
			yield(l)
		}
	}
}
