package modelserver

import (
	"sync"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// driver runs an engine in real time: one goroutine sleeps until the current
// step ends and then reports progress to the sequences.
type driver struct {
	speed float64
	epoch time.Time
	wake  chan struct{} // capacity one: there is new work for the goroutine
	ended chan struct{} // closed when the goroutine has ended

	mu        sync.Mutex // guards the fields below, and those of sequences
	engine    *engine.Engine
	sequences map[uint64]*sequence
	lastID    uint64
	events    []engine.Event
	stopped   bool
}

// generation is the work of one HTTP request: one or more sequences.
type generation struct {
	sequences []*sequence
	changed   chan struct{} // capacity one: some sequence has progressed
}

// sequence is one prompt with its output.
type sequence struct {
	id       uint64
	prompt   int      // its length in tokens
	blocks   []uint64 // of prompt and output
	expected int      // tokens to generate
	owner    *generation

	spoken
	progress
}

// progress is the progress of a sequence.
type progress struct {
	produced int  // tokens generated so far
	cached   int  // prompt tokens found in the cache; known with the first token
	done     bool // nothing more will come
	lost     bool // done, but incomplete
}

func newDriver(config engine.Config, speed float64) (*driver, error) {
	e, err := engine.New(config)
	if err != nil {
		return nil, err
	}
	d := &driver{
		speed:     speed,
		epoch:     time.Now(),
		wake:      make(chan struct{}, 1),
		ended:     make(chan struct{}),
		engine:    e,
		sequences: map[uint64]*sequence{},
	}
	go d.run()
	return d, nil
}

// now is the engine's time.
func (d *driver) now() time.Duration {
	return time.Duration(min(float64(time.Since(d.epoch))*d.speed, float64(engine.MaxTime)))
}

// run is the goroutine. It ends with stop, or at the end of the engine's time,
// after 106 days.
func (d *driver) run() {
	defer close(d.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-d.wake:
		}
		next, busy, alive := d.advance()
		if !alive {
			return
		}
		if busy {
			timer.Reset(time.Duration(float64(next) / d.speed))
		} else {
			timer.Stop()
		}
	}
}

// advance advances the engine to the present, and returns when there is more to
// do, in its time.
func (d *driver) advance() (next time.Duration, busy, alive bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return 0, false, false
	}
	now := d.now()
	if now >= engine.MaxTime {
		d.halt(now)
		return 0, false, false
	}
	d.events = d.engine.Advance(now, d.events[:0])
	for _, e := range d.events {
		if s := d.sequences[e.ID]; s != nil {
			s.cached = e.CachedTokens
			s.produced = max(s.produced, e.OutputTokens)
			if e.Kind == engine.Completed {
				d.end(s)
			}
			s.owner.signal()
		}
	}
	d.engine.Running(func(id uint64, produced int) {
		if s := d.sequences[id]; produced > s.produced {
			s.produced = produced
			s.owner.signal()
		}
	})
	end, busy := d.engine.StepEnd()
	return max(end-now, 0), busy, true
}

func (d *driver) end(s *sequence) {
	s.done = true
	delete(d.sequences, s.id)
}

// submit submits a generation to the engine, completely or not at all. The
// error is that of [engine.Engine.Submit], or errStopped.
func (d *driver) submit(g *generation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return errStopped
	}
	now := d.now()
	for i, s := range g.sequences {
		d.lastID++
		s.id, s.owner = d.lastID, g
		err := d.engine.Submit(now, engine.Request{
			ID: s.id, PromptTokens: s.prompt, OutputTokens: s.expected, Blocks: s.blocks,
		})
		if err != nil {
			d.drop(g.sequences[:i], now)
			return err
		}
		d.sequences[s.id] = s
	}
	d.poke()
	return nil
}

// abort drops the unfinished part of a generation.
func (d *driver) abort(g *generation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(g.sequences, d.now())
	d.poke()
}

func (d *driver) drop(sequences []*sequence, now time.Duration) {
	for _, s := range sequences {
		if d.sequences[s.id] == s {
			d.engine.Abort(now, s.id) // unless it has just ended
			d.end(s)
		}
	}
}

// read appends the progress of each sequence to dst.
func (d *driver) read(g *generation, dst []progress) []progress {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range g.sequences {
		dst = append(dst, s.progress)
	}
	return dst
}

// stop loses every sequence, like a crash, and ends the goroutine.
func (d *driver) stop() {
	d.mu.Lock()
	d.halt(d.now())
	d.mu.Unlock()
	d.poke()
	<-d.ended
}

func (d *driver) halt(now time.Duration) {
	if d.stopped {
		return
	}
	d.stopped = true
	for _, s := range d.sequences {
		s.lost = true
		d.drop([]*sequence{s}, now)
		s.owner.signal()
	}
}

// state is what there is to say about the engine at a moment.
type state struct {
	engine.Totals
	now     engine.Load
	stopped bool
}

func (d *driver) state() state {
	d.mu.Lock()
	defer d.mu.Unlock()
	return state{now: d.engine.Load(d.now()), Totals: d.engine.Totals(), stopped: d.stopped}
}

func (d *driver) poke() { signal(d.wake) }

func (g *generation) signal() { signal(g.changed) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
