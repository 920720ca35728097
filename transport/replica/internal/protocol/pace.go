package protocol

import "time"

// pace limits how often something happens per second.
type pace struct {
	most  int
	done  int
	since time.Time
}

func (p *pace) take(now time.Time) bool {
	if now.Sub(p.since) >= time.Second {
		p.since, p.done = now, 0
	}
	p.done++
	return p.done <= p.most
}
