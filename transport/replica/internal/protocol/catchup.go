package protocol

import "time"

// batch takes in a batch of a log, in whatever order batches come, and however often.
func (n *Node) batch(now time.Time, p *peer, number uint64, b []byte) {
	switch {
	case number <= p.applied:
		n.counts.Repeated++
		return
	case p.live && number == p.applied+1:
		n.next(now, p, b)
		n.drain(now, p)
	default:
		if _, ok := p.early[number]; ok {
			n.counts.Repeated++
			return
		}
		if p.live {
			p.heardAt = now
		}
		p.keep(number, b)
	}
	switch {
	case len(p.early) == 0:
		p.missedAt = time.Time{}
	case p.missedAt.IsZero():
		p.missedAt = now
	}
	if !p.live {
		n.ask(now, p)
	}
}

// keep holds an early batch back. What is too much is let go: it will be missing.
func (p *peer) keep(number uint64, b []byte) {
	if len(p.early) >= maxHeldCount || p.heldBytes+len(b) > maxHeld {
		return
	}
	p.early[number] = append([]byte(nil), b...)
	p.heldBytes += len(b)
}

func (p *peer) release(number uint64) {
	p.heldBytes -= len(p.early[number])
	delete(p.early, number)
}

// next applies the batch that comes next.
func (n *Node) next(now time.Time, p *peer, b []byte) {
	p.applied++
	p.heardAt = now
	n.counts.Applied++
	if !n.apply(now, p, b) {
		// It can't be right from here on. A replica that goes on like this is asked seldom.
		n.counts.Malformed++
		p.live = false
		p.wait = askMost
		p.askedAt = now
	}
}

// drain applies what has waited.
func (n *Node) drain(now time.Time, p *peer) {
	for number := range p.early {
		if number <= p.applied {
			p.release(number)
		}
	}
	for p.live && !p.left {
		b, ok := p.early[p.applied+1]
		if !ok {
			break
		}
		p.release(p.applied + 1)
		n.next(now, p, b)
	}
	if p.missedAt = (time.Time{}); len(p.early) > 0 {
		p.missedAt = now
	}
	if p.left {
		n.forget(p)
	}
}

// ask asks for a snapshot, unless it has just done so.
func (n *Node) ask(now time.Time, p *peer) {
	if since := now.Sub(p.askedAt); since >= 0 && since < p.wait {
		return
	}
	p.question = n.draw() | 1
	p.parts, p.got = nil, 0
	p.askedAt = now
	p.wait = min(max(2*p.wait, askEvery), askMost)
	n.counts.Asked++
	n.sendAsk(p)
}

// part takes in a part of a snapshot, and the snapshot with the last of them.
func (n *Node) part(now time.Time, p *peer, r *reader) {
	question, asOf := r.hash(), r.uint()
	part, parts := r.within(maxParts-1), r.within(maxParts)
	name := r.text()
	switch {
	case r.bad || part >= parts:
		n.counts.Malformed++
		return
	case p.question == 0 || question != p.question:
		n.counts.Repeated++
		return
	case p.parts == nil:
		p.parts, p.asOf = make([][]byte, parts), asOf
	case uint64(len(p.parts)) != parts || asOf != p.asOf:
		n.counts.Malformed++
		return
	}
	if p.parts[part] == nil {
		p.parts[part] = append([]byte{}, r.b...)
		p.got++
	}
	if p.got < len(p.parts) {
		return
	}
	var state []byte
	for _, b := range p.parts {
		state = append(state, b...)
	}
	p.question, p.parts, p.name = 0, nil, name
	if p.live && asOf <= p.applied {
		return // what was missing has come meanwhile
	}
	n.load(now, p, state)
}
