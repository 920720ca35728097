package protocol

import "time"

// pace limits how often something happens per second.
type pace struct {
	most  int
	done  int
	since time.Time
}

func (p *pace) take(now time.Time) bool {
	if passed := now.Sub(p.since); passed >= time.Second || passed < 0 {
		p.since, p.done = now, 0
	}
	p.done++
	return p.done <= p.most
}
