package protocol

import "time"

// batch handles a batch of a log. Batches may arrive in any order, and more than once.
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

// keep holds an early batch back. If there is no room it is dropped, and will be missing.
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

// next applies the next batch.
func (n *Node) next(now time.Time, p *peer, b []byte) {
	p.applied++
	p.heardAt = now
	n.counts.Applied++
	if !n.apply(now, p, b) {
		// Nothing after this can be trusted. A replica that keeps sending this is asked rarely.
		n.counts.Malformed++
		p.live = false
		p.wait = askMost
		p.askedAt = now
	}
}

// drain applies the batches that were waiting.
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

// ask requests a snapshot, unless it has just done so.
func (n *Node) ask(now time.Time, p *peer) {
	if now.Sub(p.askedAt) < p.wait {
		return
	}
	p.question = n.config.Draw() | 1
	p.parts, p.got = nil, 0
	p.askedAt = now
	p.wait = min(max(2*p.wait, askEvery), askMost)
	n.counts.Asked++
	n.sendAsk(p)
}

// part handles a part of a snapshot; the last one completes it.
func (n *Node) part(now time.Time, p *peer, r *reader) {
	question, asOf := r.hash(), r.uint()
	part, parts := r.within(maxParts-1), r.within(maxParts)
	name := r.text()
	switch {
	case r.bad || part >= parts || len(r.b) > partBytes:
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
		return // the missing batches have arrived meanwhile
	}
	n.load(now, p, state)
}
