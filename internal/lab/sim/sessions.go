package sim

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Sessions is a generated workload of programs that send one request after another, each
// with the context so far: questions about a document, an editor's completions, a
// conversation by voice, an agent with sub-agents. A session's steps wait for their
// answers; sessions arrive as a Poisson process, and a run begins in the middle: with as many
// of them under way as there usually are, none of which a server has cached.
type Sessions struct {
	// Groups of sessions begin with the same System tokens. A session is of the group of
	// rank r with a probability that falls as r^-Skew.
	Groups int
	Skew   float64
	System Length
	// Own is what a session continues that with, and each step Adds tokens before its
	// Output, after replacing the context's last part, of up to Edits tokens.
	Own, Adds, Edits, Output Length
	// Turns is how many steps a session has, Pause the milliseconds between them.
	Turns, Pause Length
	// After every FanEvery steps, a session starts Fan branches. Each has BranchTurns
	// steps with a copy of its context and Part tokens of its own; the session goes on
	// after the last of them. FanEvery 0: none.
	FanEvery, BranchTurns int
	Fan, Part             Length

	// Rate is requests per second in the long run, and Requests where the work ends.
	Rate     float64
	Requests int
}

// perSession is about how many requests a session has.
func (w *Sessions) perSession() float64 {
	n := max(w.Turns.Mean, 1)
	if w.FanEvery > 0 {
		n += math.Floor((n-1)/float64(w.FanEvery)) * w.Fan.Mean * float64(w.BranchTurns)
	}
	return n
}

// Start implements [Workload].
func (w Sessions) Start(seed uint64) (Source, error) {
	if w.Groups < 1 || w.Rate <= 0 || w.Requests < 1 {
		return nil, &ConfigError{"Sessions", "have no Groups, no Rate or no Requests"}
	}
	s := &sessionSource{
		Sessions: w, seed: engine.Mix(seed), timers: newTimers(1), threads: []*thread{nil},
		clock: newClock(ConstantRate(w.Rate/w.perSession()), rand.New(rand.NewPCG(seed, 5))),
	}
	sum := 0.0
	for g := range w.Groups {
		sum += math.Pow(float64(g+1), -w.Skew)
		s.shares = append(s.shares, sum)
	}
	s.arrive()
	steps := max(w.Turns.Mean, 1)
	lasts := steps * (w.Pause.Mean + w.Output.Mean*sessionToken) / 1000
	for range int(w.Rate / w.perSession() * lasts) {
		t := s.begin()
		t.steps = t.random.IntN(t.left)
		t.left -= t.steps
		for range t.steps {
			t.tokens += w.Adds.draw(t.random) + w.Output.draw(t.random)
		}
		s.timers.set(t.handle, seconds(t.random.Float64()*lasts/steps), true)
	}
	return s, nil
}

// sessionToken is how long a token of a response takes, in milliseconds, as far as it
// determines how many sessions are under way when a run begins.
const sessionToken = 20

type sessionSource struct {
	Sessions
	seed    uint64
	clock   *clock
	timers  *timers   // by handle; 0: the next session's arrival
	threads []*thread // by handle
	shares  []float64 // of the groups, summed
	begun   uint64
	taken   int
}

// thread is a session or one of its branches: a loop of steps over one context.
type thread struct {
	parent   *thread
	handle   int
	name     string
	random   *rand.Rand // its own, so that it does not depend on others' answers
	system   int
	tokens   int // of its context
	blocks   []uint64
	left     int // steps
	steps    int // done
	branches int // under way
}

func (s *sessionSource) arrive() {
	at, _ := s.clock.next()
	s.timers.set(0, at, true)
}

// Next implements [Source].
func (s *sessionSource) Next() (time.Duration, bool) {
	_, at, ok := s.timers.first()
	return at, ok && s.taken < s.Requests
}

// Take implements [Source].
func (s *sessionSource) Take() Request {
	s.taken++
	handle, _, _ := s.timers.first()
	if handle == 0 {
		handle = s.begin().handle
		s.arrive()
	} else {
		s.timers.set(handle, 0, false)
	}
	t := s.threads[handle]
	if over := s.Edits.draw(t.random); over > 0 && t.steps > 0 {
		t.tokens = max(t.system, t.tokens-over)
	}
	if n := t.tokens / BlockTokens; n < len(t.blocks) {
		t.blocks = t.blocks[:n:n] // what follows is in earlier requests
	}
	t.blocks = extend(t.blocks, t.tokens/BlockTokens, t.random.Uint64())
	input := max(1, t.tokens+s.Adds.draw(t.random))
	output := max(1, s.Output.draw(t.random))
	t.tokens = input + output
	t.blocks = extend(t.blocks, t.tokens/BlockTokens, t.random.Uint64())
	return Request{
		InputTokens: input, OutputTokens: output, Blocks: t.blocks, SystemTokens: t.system,
		ExpectedOutputTokens: int(s.Output.Mean), Tenant: t.name[:1], Session: t.name, Handle: handle,
	}
}

// start gives a thread a handle.
func (s *sessionSource) start(t *thread) *thread {
	t.handle = s.timers.add()
	s.threads = append(s.threads, t)
	return t
}

// begin begins a session.
func (s *sessionSource) begin() *thread {
	s.begun++
	random := rand.New(rand.NewPCG(s.seed, s.begun))
	group, at := 0, random.Float64()*s.shares[len(s.shares)-1]
	for s.shares[group] < at {
		group++
	}
	content := engine.Mix(s.seed ^ engine.Mix(uint64(group)))
	system := s.System.draw(rand.New(rand.NewPCG(content, 0)))
	t := s.start(&thread{name: strconv.FormatUint(s.begun, 10), random: random, system: system, left: s.Turns.draw(random)})
	t.blocks = extend(nil, system/BlockTokens, content)
	t.tokens = system + s.Own.draw(random)
	return t
}

// Done implements [Source].
func (s *sessionSource) Done(r *Request, now time.Duration) {
	t := s.threads[r.Handle]
	t.steps++
	t.left--
	switch {
	case t.left <= 0:
		s.threads[t.handle] = nil
		if p := t.parent; p != nil {
			if p.branches--; p.branches == 0 {
				s.wait(p, now)
			}
		}
	case t.parent == nil && s.FanEvery > 0 && t.steps%s.FanEvery == 0:
		for range s.Fan.draw(t.random) {
			t.branches++
			b := s.start(&thread{
				parent: t, name: t.name, random: rand.New(rand.NewPCG(t.random.Uint64(), 1)), system: t.tokens, tokens: t.tokens, left: s.BranchTurns,
				blocks: t.blocks[:len(t.blocks):len(t.blocks)],
			})
			b.tokens += s.Part.draw(b.random)
			s.wait(b, now)
		}
	default:
		s.wait(t, now)
	}
}

// wait makes a thread's next step due after a pause.
func (s *sessionSource) wait(t *thread, now time.Duration) {
	s.timers.set(t.handle, now+seconds(float64(s.Pause.draw(t.random))/1000), true)
}
