package endpick

import "time"

// A mirrored request is one that another router in front of the same fleet has
// sent. It is matched and predicted on all candidates like any other, so that
// observers see what they would have seen. Then it gets the endpoint that the other
// router chose, whatever the scores. Its lease counts like any other; marks,
// reports and reaping don't distinguish it.

// mirror opens the lease of a mirrored request.
func (r *Router) mirror(d *decision, p *pipeline) (Lease, error) {
	for {
		m, chosen, err := r.mirrored(d)
		if err != nil {
			r.counts.noEndpoint.Add(1)
			return Lease{}, err
		}
		if p.Matcher != nil {
			r.match(p.Matcher, d)
		}
		c := &d.candidates[chosen]
		c.PrefixTokens, c.EvictedTokens = min(max(d.req.MirrorPrefix, 0), max(d.req.InputTokens-1, 0)), 0
		if p.Predictor != nil {
			d.rows.predicted = len(d.candidates)
			r.predict(p.Predictor, d, d.candidates)
		}
		if !r.enter(m.state) {
			continue // removed since
		}
		r.counts.routed.Add(1)
		r.counts.mirrored.Add(1)
		return r.leases.open(d, p, m, c), nil
	}
}

// mirrored fills the candidates of a mirrored request and finds its endpoint among
// them. If that endpoint takes no requests here, because it is drained or listed
// for another model, it is the only candidate.
func (r *Router) mirrored(d *decision) (m member, chosen int, err error) {
	d.req.Exclude, d.req.Avoid = nil, nil
	if r.gather(d) == nil {
		for i := range d.candidates {
			if d.candidates[i].Endpoint.ID == d.req.MirrorOf {
				return d.pool[i], i, nil
			}
		}
	}
	m, ok := r.member(d.req.MirrorOf)
	if !ok {
		return member{}, 0, unknownEndpoint(d.req.MirrorOf)
	}
	d.pool = []member{m}
	reported := r.refresh(d)
	d.candidates = d.rows.all[:1]
	if reported != allSignals {
		fillAbsent(d.candidates)
	}
	return m, 0, nil
}

// retime replaces the times of a mirrored request by those that its own router
// has measured, from which observers learn; s.mu is held.
func (s *leaseSlot) retime(now time.Time, o *Outcome) {
	if o.Took <= 0 || o.TTFT < 0 || o.TTFT > o.Took {
		return
	}
	s.timed = true
	s.routedAt = now.Add(-o.Took)
	s.firstTokenAt, s.lastTokenAt = time.Time{}, now
	if o.TTFT > 0 {
		s.firstTokenAt = s.routedAt.Add(o.TTFT)
	}
}
