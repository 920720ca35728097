package protocol

import (
	"slices"
	"time"
)

// wanted is a request of another replica whose first blocks are not known here.
type wanted struct {
	number  uint64
	askedAt time.Time
	asked   int
}

// want requests its blocks.
func (n *Node) want(now time.Time, p *peer, number uint64) {
	n.counts.Wanted++
	if len(p.wanted) < maxWanted {
		p.wanted = append(p.wanted, wanted{number: number})
		n.wantAgain(now, p)
	}
}

// wantAgain repeats requests that have not been answered.
func (n *Node) wantAgain(now time.Time, p *peer) {
	p.wanted = slices.DeleteFunc(p.wanted, func(w wanted) bool { return w.asked >= wantTries && now.Sub(w.askedAt) >= wantEvery })
	for i := range p.wanted {
		w := &p.wanted[i]
		if since := now.Sub(w.askedAt); since >= 0 && since < wantEvery || !n.wants.take(now) {
			continue
		}
		w.askedAt = now
		w.asked++
		n.sendWant(p, w.number)
	}
}

func (p *peer) isWanted(number uint64) bool {
	return slices.ContainsFunc(p.wanted, func(w wanted) bool { return w.number == number })
}

// satisfied records that the blocks have arrived.
func (p *peer) satisfied(number uint64) {
	p.wanted = slices.DeleteFunc(p.wanted, func(w wanted) bool { return w.number == number })
}
