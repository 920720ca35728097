package replica

import (
	"bytes"
	"reflect"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/replica/internal/protocol"
)

// receive receives a message, in the bus's goroutine.
func (s *session) receive(message []byte) {
	if protocol.Instance(message) == s.counts.Instance {
		return // our own
	}
	// The sender is not verified yet: anybody on the bus can send this.
	size := int64(len(message))
	if size > maxMessage || s.waiting.Add(size) > maxInboxBytes {
		if size <= maxMessage {
			s.waiting.Add(-size)
		}
		s.missed.Add(1) // the protocol will notice the gap
		return
	}
	select {
	case s.inbox <- bytes.Clone(message):
	default:
		s.waiting.Add(-size)
		s.missed.Add(1)
	}
}

// takeIn handles a message that has waited.
func (s *session) takeIn(message []byte) {
	s.waiting.Add(-int64(len(message)))
	s.counts.Received++
	s.counts.ReceivedBytes += uint64(len(message))
	s.node.Receive(s.router.Now(), message)
	s.pass()
}

// tell sends what has happened here since the last call. It reports whether some of it was
// lost, so that others can't continue this instance's log.
func (s *session) tell() (lost bool) {
	s.events, s.blocks, lost = s.replica.queue.take(s.events, s.blocks)
	if lost {
		s.counts.Restarts++
		return true
	}
	for i := range s.events {
		e := &s.events[i]
		blocks := s.blocks[e.from:e.end]
		switch e.kind {
		case routed:
			s.node.Routed(e.lease, e.endpoint, &e.request, e.prefix, blocks)
		case firstToken:
			s.node.FirstToken(e.lease)
		case done:
			e.outcome.Blocks = blocks
			s.node.Done(e.lease, &e.outcome)
		case outcome:
			n := s.outcomes[e.endpoint]
			if n == nil {
				n = new([2]int)
				s.outcomes[e.endpoint] = n
			}
			if e.failed {
				n[0]++
			} else {
				n[1]++
			}
		}
	}
	for endpoint, n := range s.outcomes {
		s.node.Outcomes(endpoint, n[0], n[1])
	}
	clear(s.outcomes)
	s.node.Flush(s.router.Now())
	s.pass()
	return false
}

// pass sends the protocol's messages, and applies its effects.
func (s *session) pass() {
	out, effects := s.node.Drain()
	for _, m := range out {
		s.counts.Sent++
		s.counts.SentBytes += uint64(len(m.Payload))
		if protocol.IsSnapshot(m.Payload) {
			s.counts.SnapshotBytes += uint64(len(m.Payload))
		}
		_ = s.line.Publish(m.To, m.Payload) // lost messages will be requested
	}
	for i := range effects {
		s.do(&effects[i])
	}
}

// do applies what another replica has reported.
func (s *session) do(e *protocol.Effect) {
	switch e.Kind {
	case protocol.Opened:
		lease, err := s.router.Route(e.Request)
		if err != nil {
			s.counts.Unmirrored++ // the other knows endpoints that this router does not, or not yet
			return
		}
		s.counts.Mirrored++
		e.Lease.Mirror, e.Lease.Adopted = lease, e.Request.Adopted
	case protocol.Answered:
		e.Lease.Mirror.FirstToken()
	case protocol.Ended:
		if a := e.Lease.Adopted; a != nil {
			a.Took, a.TTFT = e.Outcome.Took, e.Outcome.TTFT
		}
		e.Lease.Mirror.Done(e.Outcome.Outcome)
	case protocol.Holds:
		// A past request, for stages that remember what endpoints hold. Its prompt was
		// computed, and charged, then.
		if lease, err := s.router.Route(e.Request); err == nil {
			lease.FirstToken()
			lease.Done(endpick.Outcome{InputTokens: 1})
		}
	case protocol.Outcomes:
		if h := s.replica.config.Health; h != nil {
			h.Core().Elsewhere(e.Endpoint, e.Failed, e.Served)
		}
	}
}

// keepAlive keeps the leases of others' requests alive: their replicas would report it
// if they were lost.
func (s *session) keepAlive() {
	now := s.router.Now()
	if now.Sub(s.keptAlive) < s.router.LeaseTimeout()/4 {
		return
	}
	s.keptAlive = now
	s.node.Each(func(l *protocol.Lease) { l.Mirror.Tokens(0) })
}

func (s *session) publish() {
	c, now := s.node.Counts(), s.router.Now()
	st := s.counts
	st.Running, st.Connected = true, s.line.Connected()
	st.Missed = s.missed.Load()
	st.Shared, st.Blocks, st.Unshared, st.Snapshots = c.Shared, c.Blocks, c.Unshared, c.Snapshots
	st.UnknownBlocks, st.Refused, st.Malformed, st.TooMany = c.Wanted, c.Refused, c.Malformed, c.Crowded
	st.Unmirrored += c.Unmirrored
	st.add(&s.before)
	for _, p := range s.node.Peers() {
		st.Peers = append(st.Peers, Peer{
			Name: p.Name, Instance: p.Instance, Live: p.Live, Behind: p.Behind, Age: now.Sub(p.Heard), InFlight: p.Open,
		})
	}
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	s.replica.status = st
}

// add adds the counts of earlier sessions.
func (st *Status) add(o *Status) {
	to, from := reflect.ValueOf(st).Elem(), reflect.ValueOf(o).Elem()
	for i := range to.NumField() {
		if n := to.Field(i); n.Kind() == reflect.Uint64 {
			n.SetUint(n.Uint() + from.Field(i).Uint())
		}
	}
}

// leave ends the session: requests of others no longer count here.
func (s *session) leave() {
	s.node.Bye()
	s.node.Flush(s.router.Now())
	s.node.Forget()
	s.pass()
	s.publish()
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	s.replica.status.Running, s.replica.status.Connected = false, false
	s.replica.status.Instance = 0
}
