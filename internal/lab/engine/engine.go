package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/btree"
)

// Engine is one model server. Make it with [New]; see the package comment for
// the driver's duties. Not safe for concurrent use.
//
// A time before the latest one passed to the engine counts as that, and one
// after [MaxTime] as MaxTime.
type Engine struct {
	cfg   Config
	costs costs
	cache cache

	sequences map[uint64]*sequence
	waiting   []*sequence
	running   []*sequence              // in order of admission; at most the last one is between two chunks
	decoding  *btree.BTreeG[*sequence] // by their end
	events    []Event                  // not yet returned

	phase  phase
	latest picos // latest time passed
	at     picos // start of the step in flight, or of the next one

	// The batch in flight: a number of steps, of which the first takes first, and
	// each further one slope more than the one before.
	steps    int64
	first    picos
	slope    picos
	prefills []*sequence // sequences with a prompt chunk in it
	partial  *sequence   // the running sequence that is between two chunks of its prompt
	stalled  bool        // it only has prompt chunks, while others wait to decode

	// All decoding sequences together.
	step      int64   // decode steps since the beginning
	allocated int64   // blocks are allocated for decode steps before this one
	context   int64   // Σ tokens in the cache
	residues  []int64 // sequences that need a new block in steps ≡ i (mod block size)

	admitted int64 // order of the next admission
	totals   Totals
}

type phase uint8

const (
	idle  phase = iota // nothing to do
	ready              // the next step begins at e.at
	busy               // a batch is in flight
)

// EventKind is the kind of an Event.
type EventKind uint8

const (
	FirstToken EventKind = iota // the prefill is complete and the first token is there
	Completed                   // the last token is there; for a request of one token, right after FirstToken
	Preempted                   // lost its blocks, and waits at the head of the queue
)

// Event is something that happens to a request.
type Event struct {
	Kind         EventKind
	ID           uint64
	At           time.Duration
	CachedTokens int // prompt tokens found in the cache when it was first in a batch
	OutputTokens int // tokens generated so far
}

// New returns an idle engine with an empty cache.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:       cfg,
		costs:     newCosts(cfg.Profile),
		cache:     newCache(int64(cfg.Blocks)),
		sequences: map[uint64]*sequence{},
		decoding:  btree.NewG(8, endsBefore),
		residues:  make([]int64, cfg.BlockTokens),
	}
	e.cache.log.on = cfg.CacheEvents
	return e, nil
}

// Config returns the configuration with defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Submit queues a request at the time now. It joins the first step that starts
// at now or later and has room for it, but not a step that [Engine.Advance] has
// already started at now. Errors, such as a [*TooLongError], change nothing.
func (e *Engine) Submit(now time.Duration, r Request) error {
	if err := e.cfg.check(&r); err != nil {
		return err
	}
	if e.sequences[r.ID] != nil {
		return fmt.Errorf("engine: request %d: ID is already with the engine", r.ID)
	}
	until := e.catchUp(now, false)

	s := &sequence{
		id: r.ID, prompt: int64(r.PromptTokens), output: int64(r.OutputTokens), target: int64(r.PromptTokens),
		hashes: r.Blocks,
	}
	e.sequences[r.ID] = s
	e.waiting = append(e.waiting, s)
	if e.phase == idle {
		e.phase, e.at = ready, until
	}
	if len(e.waiting) == 1 && len(e.running) < e.cfg.MaxSequences {
		e.steps = min(e.steps, 1) // it may join after the current step
	}
	return nil
}

// Advance runs all steps that end by now, starts the one that is due, and appends
// events to dst, in order of time and, within a step, of admission.
func (e *Engine) Advance(now time.Duration, dst []Event) []Event {
	e.catchUp(now, true)
	dst = append(dst, e.events...)
	e.events = e.events[:0]
	return dst
}

// NextEvent is the next time at which [Engine.Advance] has something to do: a
// step to start, a prompt chunk, a completion or a preemption; false if the
// engine is idle. Calls before then find nothing new but generated tokens.
func (e *Engine) NextEvent() (time.Duration, bool) {
	switch {
	case len(e.events) > 0:
		return e.events[0].At, true
	case e.phase == idle:
		return 0, false
	case e.phase == ready:
		return e.at.up(), true
	}
	return (e.at + e.span(e.steps)).up(), true
}

// StepEnd is the end of the current step as of the latest call with a time, or the
// time at which the next one can start; false if the engine is idle. Every decoding
// sequence has one more token then, unless the step has only prompts
// ([Config].PrefillFirst).
func (e *Engine) StepEnd() (time.Duration, bool) {
	switch e.phase {
	case idle:
		return 0, false
	case ready:
		return e.at.up(), true
	}
	return (e.at + e.first).up(), true
}

// Running calls visit with every running request, in order of admission, and the
// number of tokens generated for it by the time of the latest call of
// [Engine.Advance]. visit must not call the engine.
func (e *Engine) Running(visit func(id uint64, tokens int)) {
	for _, s := range e.running {
		visit(s.id, int(e.produced(s)))
	}
}

// Abort drops a request whose client has left: its blocks are free (or cached)
// at once, and the current step ends as planned. False if the engine does
// not have the request, or no longer.
func (e *Engine) Abort(now time.Duration, id uint64) bool {
	e.catchUp(now, false)
	s := e.sequences[id]
	if s == nil {
		return false
	}
	if s.state == waiting {
		e.waiting = without(e.waiting, s)
	} else {
		e.leave(s)
		e.running = without(e.running, s)
		e.prefills = slices.DeleteFunc(e.prefills, func(p *sequence) bool { return p == s })
	}
	e.drop(s)
	e.steps = min(e.steps, 1) // a waiting request may fit now
	if e.phase == ready && len(e.sequences) == 0 {
		e.phase = idle
	}
	return true
}

// SetSlowness multiplies the time of steps that start from now on by factor, as on
// a device that is too hot or shared; 1 is the profile's speed. It is clamped to
// [0.01, 100].
func (e *Engine) SetSlowness(now time.Duration, factor float64) {
	e.catchUp(now, false)
	e.costs = newCosts(e.cfg.Profile).times(min(max(factor, 0.01), 100))
	e.steps = min(e.steps, 1) // the current step ends as planned
}

// catchUp runs the engine to now, which it returns in picoseconds. Work due
// exactly at now is done only if inclusive.
func (e *Engine) catchUp(now time.Duration, inclusive bool) picos {
	e.latest = max(e.latest, picos(min(now, MaxTime))*1000)
	e.run(e.latest, inclusive)
	return e.latest
}

// up rounds up to nanoseconds, to a time at which it has happened.
func (p picos) up() time.Duration { return time.Duration((p + 999) / 1000) }

func (e *Engine) emit(kind EventKind, s *sequence, at time.Duration) {
	e.events = append(e.events, Event{
		Kind: kind, ID: s.id, At: at, CachedTokens: int(s.hit), OutputTokens: int(s.produced),
	})
}
