package learn

import (
	"sync"
	"time"
)

const (
	defaultShare   = 0.2
	defaultPending = 8192
)

// TrainerConfig says how learners are trained. The zero value is a usable default.
type TrainerConfig struct {
	// Synchronous makes Label take in the sample, and refit when it is time, before it returns: what happens then depends
	// on the order of the calls alone. It is for simulators and tests. There is no goroutine.
	Synchronous bool
	// ManualRefit leaves refits to calls of Learner.Refit.
	ManualRefit bool
	// Share is how much of one core training may take, in (0, 1]; 0 means 0.2.
	Share float64
	// Pending bounds the labels of each learner that wait for the background; more are dropped and counted. 0 means 8,192.
	Pending int
}

func (c *TrainerConfig) validate() error {
	switch {
	case !(c.Share >= 0 && c.Share <= 1):
		return badConfig("TrainerConfig.Share", "is %v, want 0 to 1", c.Share)
	case c.Pending < 0:
		return badConfig("TrainerConfig.Pending", "is %d, want 0 or more", c.Pending)
	}
	if c.Share == 0 {
		c.Share = defaultShare
	}
	if c.Pending == 0 {
		c.Pending = defaultPending
	}
	return nil
}

// A Trainer trains any number of learners in one background goroutine, or in the callers' if it is synchronous. It is
// safe for concurrent use.
type Trainer struct {
	config TrainerConfig
	wake   chan struct{}
	closed chan struct{}
	done   chan struct{}
	once   sync.Once

	mu       sync.Mutex
	learners []*Learner
}

// NewTrainer starts a trainer. Close it when it is no longer needed.
func NewTrainer(config TrainerConfig) (*Trainer, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	t := &Trainer{config: config, wake: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{})}
	if config.Synchronous {
		close(t.done)
	} else {
		go t.run()
	}
	return t, nil
}

// Learner adds a learner.
func (t *Trainer) Learner(config Config) (*Learner, error) {
	l, err := New(t, config)
	if err != nil {
		return nil, err
	}
	t.Add(l)
	return l, nil
}

// Add makes the trainer train a learner of its own.
func (t *Trainer) Add(l *Learner) {
	t.mu.Lock()
	t.learners = append(t.learners, l)
	t.mu.Unlock()
}

// Close stops training and waits for a refit that is going on. Learners go on predicting; labels are no longer taken.
// It may be called more than once.
func (t *Trainer) Close() error {
	t.once.Do(func() { close(t.closed) })
	<-t.done
	return nil
}

func (t *Trainer) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// clock is read around refits only, for their duration and the share of a core; a synchronous trainer has none.
func (t *Trainer) clock() time.Time {
	if t.config.Synchronous {
		return time.Time{}
	}
	return time.Now()
}

func (t *Trainer) run() {
	defer close(t.done)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-t.closed:
			return
		case <-t.wake:
		}
		t.mu.Lock()
		learners := t.learners[:len(t.learners):len(t.learners)]
		t.mu.Unlock()
		for _, l := range learners {
			began := time.Now()
			l.step()
			worked := time.Since(began)
			// Rest in proportion, a millisecond at least, so that labels come in batches.
			pause.Reset(max(time.Duration(float64(worked)*(1-t.config.Share)/t.config.Share), time.Millisecond))
			select {
			case <-t.closed:
				return
			case <-pause.C:
			}
		}
	}
}

// step takes in what is pending and refits if that is due.
func (l *Learner) step() {
	l.mu.Lock()
	defer l.mu.Unlock()
	samples, rows := l.queue.takeAll()
	if len(samples) == 0 {
		return
	}
	k := l.config.Boost.Features
	for i, s := range samples {
		l.take(rows[i*k:(i+1)*k], s)
	}
	if l.due() {
		_ = l.refit() // Health tells what went wrong, and the old model stays
	}
}

// A queue holds labels until the background takes them.
type queue struct {
	mu             sync.Mutex
	samples, spare []sample
	rows, spareRow []float64
}

// put copies a sample into the queue; false if it is full.
func (q *queue) put(row []float64, s sample, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.samples) >= limit {
		return false
	}
	q.samples = append(q.samples, s)
	q.rows = append(q.rows, row...)
	return true
}

// takeAll empties the queue. What it returns is valid until the next call.
func (q *queue) takeAll() ([]sample, []float64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	samples, rows := q.samples, q.rows
	q.samples, q.rows = q.spare[:0], q.spareRow[:0]
	q.spare, q.spareRow = samples, rows
	return samples, rows
}
