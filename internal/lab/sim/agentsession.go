package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// agentSession is one session of a coding agent, from its first human message to the
// last answer. It does not know the load: the driver says when a step has ended.
type agentSession struct {
	*agentKind
	name    string
	tenant  string
	project uint64   // identifies the developer's instructions
	common  int      // tokens shared with the developer's other sessions of this kind
	agents  []*agent // its own first; none: the session has ended

	plan  rand.PCG // of human messages: their number, their steps, the pauses before them
	habit float64  // of the pauses
	past  rand.PCG // of times of generation that nobody else determines
}

// agent is a loop of steps over one context: the session's own, or a sub-agent's.
// Each has its own random numbers, so that they don't depend on the order of answers.
type agent struct {
	session  *agentSession
	parent   *agent // nil: the session's own
	random   rand.PCG
	requests int           // human messages to come
	steps    int           // left in this request, including the current one
	tasks    int           // sub-agents it waits for
	due      time.Duration // of its next step
	busy     bool          // no step is due: one is running, or sub-agents are

	tokens  int // of its context, including the current step
	window  int
	reach   int
	segment uint64   // identifies the content since the context was last cut
	blocks  []uint64 // of the context when it was last sent
	stable  int      // tokens at its head that have not changed since
	handle  int      // the source's handle; −1: none yet
}

// step is a request as it is sent: the previous context, what is appended, and the answer.
type step struct{ prefix, appended, output int }

// newAgentSession returns a session whose first human message is due at this time.
func newAgentSession(seed, number uint64, developers int, at time.Duration) *agentSession {
	content := engine.Mix(seed ^ engine.Mix(number))
	s := &agentSession{
		name: "session-" + strconv.FormatUint(number, 10),
		plan: *rand.NewPCG(content, 1), past: *rand.NewPCG(content, 2),
	}
	s.agentKind = &agentKinds[s.plan.Uint64()%uint64(len(agentKinds))]
	developer := s.plan.Uint64() % uint64(developers)
	s.tenant = "developer-" + strconv.FormatUint(developer, 10)
	s.project = engine.Mix(engine.Mix(seed+1) ^ developer)
	s.common = s.shared + int(agentProject.draw(rand.NewPCG(s.project, 0)))
	s.habit = normal(&s.plan)
	a := s.newAgent(nil, rand.NewPCG(content, 3))
	a.due, a.busy = at, false
	a.requests = int(agentRequests.draw(&s.plan)) - 1
	a.steps = s.drawSteps()
	if a.requests == 0 {
		a.steps = int(agentAlone.draw(&s.plan))
	}
	return s
}

func (s *agentSession) newAgent(parent *agent, random *rand.PCG) *agent {
	a := &agent{session: s, parent: parent, random: *rand.NewPCG(random.Uint64(), random.Uint64()), busy: true, handle: -1}
	a.window = int(s.window.draw(&a.random))
	a.reach = int(s.reach.draw(&a.random))
	a.cut(s.common, 0)
	s.agents = append(s.agents, a)
	return a
}

// over reports whether the session has ended.
func (s *agentSession) over() bool { return len(s.agents) == 0 }

// drawSteps draws the steps of a request.
func (s *agentSession) drawSteps() int { return int(agentSteps.draw(&s.plan)) }

// drawPause draws the seconds before the next human message.
func (s *agentSession) drawPause() float64 {
	s.habit = agentHabit*s.habit + math.Sqrt(1-agentHabit*agentHabit)*normal(&s.plan)
	return agentHuman.at(math.Erfc(-s.habit/math.Sqrt2) / 2) // at its share of the normal distribution
}

// send makes the step that is due. A context that would outgrow its window is
// compacted first.
func (a *agent) send() step {
	s := a.session
	t := step{appended: int(s.appended.draw(&a.random)), output: int(s.output.draw(&a.random))}
	if a.tokens+t.appended+t.output > a.window {
		a.cut(s.common, int(s.summary.draw(&a.random)))
	}
	t.prefix = a.tokens
	a.tokens += t.appended + t.output
	a.busy = true
	return t
}

// cut cuts the context after keep tokens, and continues it with more others.
func (a *agent) cut(keep, more int) {
	a.tokens = keep + more
	a.segment = a.random.Uint64()
	a.stable = min(a.stable, keep)
}

// answered says that the current step has ended now. It appends to woken the
// agents that have a step due afterwards.
func (a *agent) answered(now time.Duration, woken []*agent) []*agent {
	a.steps--
	switch {
	case a.steps > 0:
		pause := agentTool.draw(&a.random)
		if a.parent == nil && pause > agentTask && unit(&a.random) < agentTaskChance {
			return a.delegate(now, pause, woken)
		}
		return append(woken, a.wake(now, pause))
	case a.parent != nil:
		return a.report(now, woken)
	case a.requests > 0:
		return append(woken, a.wake(now, a.listen()))
	}
	a.session.agents = nil
	return woken
}

// listen makes the next human message and returns the seconds before it.
func (a *agent) listen() float64 {
	s := a.session
	a.requests--
	a.steps = s.drawSteps()
	if a.tokens > a.reach {
		a.cut(s.common, 0)
		a.reach = int(s.reach.draw(&a.random))
	} else if unit(&a.random) < s.rewrites {
		a.cut(max(s.common, a.tokens-int(agentRewrite.draw(&a.random))), 0)
	}
	return s.drawPause()
}

// wake makes a step due some seconds after now.
func (a *agent) wake(now time.Duration, pause float64) *agent {
	a.due, a.busy = now+seconds(pause), false
	return a
}

// delegate splits a task of so many seconds among one to three sub-agents.
func (a *agent) delegate(now time.Duration, pause float64, woken []*agent) []*agent {
	a.due = now
	a.tasks = 1 + int(3*unit(&a.random)*unit(&a.random))
	for range a.tasks {
		sub := a.session.newAgent(a, &a.random)
		sub.steps = max(1, int(math.Round(pause/agentStep)))
		woken = append(woken, sub.wake(now, agentTool[0].value))
	}
	return woken
}

// report ends a sub-agent. After the last one, its parent continues.
func (a *agent) report(now time.Duration, woken []*agent) []*agent {
	s, p := a.session, a.parent
	s.agents = slices.DeleteFunc(s.agents, func(other *agent) bool { return other == a })
	p.due = max(p.due, now)
	if p.tasks--; p.tasks > 0 {
		return woken
	}
	return append(woken, p.wake(p.due, agentTool[0].value))
}

// play plays the session until no step is due before that time. Answers take as
// long as the published ones.
func (s *agentSession) play(until time.Duration) {
	var woken []*agent
	for !s.over() {
		var next *agent
		for _, a := range s.agents {
			if !a.busy && (next == nil || a.due < next.due) {
				next = a
			}
		}
		if next.due >= until {
			return
		}
		next.send()
		end := next.due + seconds(agentGenerate.draw(&s.past))
		woken = next.answered(end, woken[:0])
	}
}

// mayLast reports whether the session can last so long from its beginning. It may
// be wrong if true, which playing shows.
func (s *agentSession) mayLast(d time.Duration) bool {
	ahead := *s // plays the plan on a copy
	steps, pauses := s.agents[0].steps, 0.0
	for range s.agents[0].requests {
		steps += ahead.drawSteps()
		pauses += ahead.drawPause()
	}
	return seconds(pauses+3*agentStep*float64(steps))+time.Hour > d
}
