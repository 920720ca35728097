package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Agents is a generated workload of coding agents, after the published figures of
// 357,161 steps of Claude Code and Codex (TraceLab, arXiv 2606.30560). A session has
// human messages with pauses between them; a message is answered in a loop of steps
// with tool calls between them; and each step is a request with the whole context so
// far. Contexts are compacted near their limit or started anew. A long tool call may be
// sub-agents, which begin with what their parent shares, while it waits. Prompts begin
// with the program's system prompt, followed by the developer's project instructions,
// which a developer's sessions share.
//
// A run begins in the middle: sessions that began in the ten days before it have
// progressed as far as the published times would have taken them. No server has cached
// any of their contexts.
type Agents struct {
	// Rate is the long-run rate of steps per second, including sub-agents'.
	// Sessions arrive as a Poisson process; their steps wait for one another.
	Rate float64
	// Scale divides all lengths, for small fleets; ratios and times remain. 0 is 1.
	Scale float64

	// Requests ends the work after so many steps, Duration at that time. One of them
	// is required.
	Requests int
	Duration time.Duration

	developers int // who share the sessions; 0: so many that each has ten a day
}

// agentOutputMean is the mean of the answers of both kinds, in tokens.
const agentOutputMean = 680

// agentPast is how long before a run its oldest session began. One session in a hundred
// lasts longer than 8.6 days.
const agentPast = 10 * 24 * time.Hour

// sessions is the rate at which sessions begin, per second.
func (g *Agents) sessions() float64 { return g.Rate / agentSessionSteps }

// Start implements [Workload].
func (g Agents) Start(seed uint64) (Source, error) {
	if g.Requests == 0 && g.Duration == 0 {
		return nil, &ConfigError{"Agents", "does not end: Requests or Duration is needed"}
	}
	g.Scale = cmp.Or(g.Scale, 1)
	g.developers = cmp.Or(g.developers, max(1, int(g.sessions()*24*3600/10)))
	s := &agentSource{
		Agents: g, seed: engine.Mix(seed), timers: newTimers(0),
		clock: newClock(ConstantRate(g.sessions()), rand.New(rand.NewPCG(seed, 8))),
	}
	for s.arrive(); s.arrival < 0; s.arrive() {
		session := newAgentSession(s.seed, s.begun, s.developers, s.arrival)
		s.begun++
		if !session.mayLast(-s.arrival) {
			continue
		}
		session.play(0)
		for _, a := range session.agents {
			if !a.busy {
				s.wake(a)
			}
		}
	}
	return s, nil
}

// At implements [Paced].
func (g Agents) At(p Pace) (Workload, error) {
	if err := p.check(false); err != nil {
		return nil, err
	}
	g.Rate, g.Requests, g.Duration = p.Rate, p.Requests, p.Duration
	return g, nil
}

// HasArrivals implements [Paced].
func (g Agents) HasArrivals() bool { return false }

type agentSource struct {
	Agents
	seed    uint64
	clock   *clock
	arrival time.Duration // of the next session
	begun   uint64        // number of sessions before it
	timers  *timers       // by handle: when an agent's next step is due
	agents  []*agent      // by handle; nil: free
	free    []int         // handles
	woken   []*agent
	taken   int
}

// arrive draws the arrival of the next session.
func (s *agentSource) arrive() {
	at, _ := s.clock.next()
	s.arrival = at - agentPast
}

// Next implements [Source].
func (s *agentSource) Next() (time.Duration, bool) {
	at := s.arrival
	if _, due, ok := s.timers.first(); ok {
		at = min(at, due)
	}
	return at, !(s.Requests > 0 && s.taken >= s.Requests || s.Duration > 0 && at > s.Duration)
}

// Take implements [Source].
func (s *agentSource) Take() Request {
	s.taken++
	handle, due, ok := s.timers.first()
	if !ok || s.arrival < due {
		session := newAgentSession(s.seed, s.begun, s.developers, s.arrival)
		s.begun++
		s.arrive()
		handle = s.wake(session.agents[0])
	}
	s.timers.set(handle, 0, false)
	return s.request(s.agents[handle])
}

// wake sets the timer of an agent's step.
func (s *agentSource) wake(a *agent) (handle int) {
	if a.handle < 0 {
		if n := len(s.free); n > 0 {
			a.handle, s.free = s.free[n-1], s.free[:n-1]
		} else {
			a.handle, s.agents = s.timers.add(), append(s.agents, nil)
		}
		s.agents[a.handle] = a
	}
	s.timers.set(a.handle, a.due, true)
	return a.handle
}

// request makes the request of the step that is due.
func (s *agentSource) request(a *agent) Request {
	t, session := a.send(), a.session
	input := max(1, s.scaled(t.prefix+t.appended))
	total := max(input+1, s.scaled(a.tokens))
	return Request{
		InputTokens: input, OutputTokens: total - input, Blocks: s.blocks(a),
		SystemTokens:         min(s.scaled(session.common), input),
		ExpectedOutputTokens: max(1, s.scaled(agentOutputMean)),
		Tenant:               session.tenant, Session: session.name,
		Handle: a.handle,
	}
}

func (s *agentSource) scaled(tokens int) int { return int(float64(tokens) / s.Scale) }

// blocks updates the blocks of an agent's context. Steps share an array as long as
// the context only grows.
func (s *agentSource) blocks(a *agent) []uint64 {
	if stable := s.scaled(a.stable) / BlockTokens; stable < len(a.blocks) {
		a.blocks = slices.Clip(a.blocks[:stable]) // what follows is in earlier requests
	}
	session := a.session
	n := s.scaled(a.tokens) / BlockTokens
	if cap(a.blocks) < n {
		a.blocks = slices.Grow(a.blocks, n) // room to double
	}
	for _, part := range [...]struct {
		tokens  int
		content uint64
	}{
		{session.shared, engine.Mix(s.seed ^ uint64(session.shared))}, {session.common, session.project}, {a.tokens, a.segment},
	} {
		a.blocks = extend(a.blocks, s.scaled(part.tokens)/BlockTokens, part.content)
	}
	a.stable = a.tokens
	return a.blocks
}

// Done implements [Source].
func (s *agentSource) Done(r *Request, now time.Duration) {
	a := s.agents[r.Handle]
	s.woken = a.answered(now, s.woken[:0])
	if a.steps == 0 { // not even for the next message: the agent has ended
		s.agents[r.Handle] = nil
		s.free = append(s.free, r.Handle)
	}
	for _, woken := range s.woken {
		s.wake(woken)
	}
}
