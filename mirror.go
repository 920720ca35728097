package endpick

import "time"

// A mirrored request is one that another router before the same fleet has sent. It
// goes the way of any other through match and predict, over all candidates, so that
// observers hear what they would have heard; then its endpoint is the one that was
// told, whatever its scores. The lease counts like any other: marks, reports and
// reaping need to know nothing of it.

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
		c.PrefixTokens = min(max(d.req.MirrorPrefix, 0), max(d.req.InputTokens-1, 0))
		if p.Predictor != nil {
			left := d.candidates
			if len(p.Shortlist) > 0 { // there may be many, and none is to be chosen
				left = left[chosen : chosen+1]
			}
			d.rows.predicted = len(d.candidates)
			r.predict(p.Predictor, d, left)
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
// them. One that takes no requests here, because it is drained or said to serve
// another model, is its only candidate.
func (r *Router) mirrored(d *decision) (m member, chosen int, err error) {
	d.req.Exclude, d.req.Avoid = nil, nil
	if r.gather(d) == nil {
		for i := range d.candidates {
			if d.candidates[i].Endpoint.ID == d.req.MirrorOf {
				return d.memberOf(i), i, nil
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

// retime makes the times of a mirrored request those that its own router has
// measured, which tells how long things took; s.mu is held.
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
