package transport

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// watch bounds how long an exchange waits for its endpoint, tells health of one
// that waits for long, and shows the router that the lease is not lost. One
// timer does all of it: it goes off when something may be due and is not set
// anew at each byte. Only waiting counts, so that a client which does not read
// makes nobody look silent.
type watch struct {
	x    *exchange
	from time.Time // when the request was sent, on the real clock
	beat time.Duration
	// since is when the wait began that goes on, counted from from; idle: none.
	// spent is how long the waits before it took.
	since, spent atomic.Int64

	mu       sync.Mutex // guards what follows
	timer    *time.Timer
	limit    time.Duration // of one wait, or
	whole    bool          // of all together
	patience time.Duration // after which health is told, 0: not, or not any more
	giveUp   time.Duration // after which another endpoint is asked, 0 likewise
	open     bool          // a connection that has left HTTP: silence is its own affair
	stopped  bool
}

const idle = -1

// start begins with the wait for the first byte.
func (w *watch) start(x *exchange, limit, patience, giveUp time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.x, w.from, w.limit, w.whole, w.patience, w.giveUp = x, time.Now(), limit, true, patience, giveUp
	w.beat = max(x.trip.t.config.Router.LeaseTimeout()/3, time.Millisecond)
	first := min(w.beat, w.limit)
	if patience > 0 {
		first = min(first, patience)
	}
	w.timer = time.AfterFunc(first, w.look)
}

// heard says that the first byte is here; false: it comes too late, the exchange
// has been given up.
func (w *watch) heard() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.ended()
	return true
}

// answered says what bounds the rest, after heard.
func (w *watch) answered(limit time.Duration, whole, open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patience, w.giveUp, w.limit, w.whole, w.open = 0, 0, limit, whole, open
	w.set(0)
}

// bound sets another limit for each wait.
func (w *watch) bound(limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if limit < w.limit {
		w.limit = limit
		w.set(0)
	}
}

// stop ends the watch; nobody waits any more.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// set has the watch look after d; w.mu is held.
func (w *watch) set(d time.Duration) {
	if !w.stopped {
		w.timer.Reset(d)
	}
}

// look does what is due. It runs on a goroutine of its own.
func (w *watch) look() {
	x := w.x
	defer x.trip.t.guard(x.trip.in, "watch")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	now, since := time.Since(w.from), time.Duration(w.since.Load())
	next := min(w.beat, w.limit)
	if w.open {
		x.lease.Tokens(0)
		w.set(w.beat)
		return
	}
	if since != idle {
		x.lease.Tokens(0)
		left := w.limit - (now - since)
		if w.whole {
			left -= time.Duration(w.spent.Load())
		}
		if left <= 0 {
			w.stopped = true
			x.cancel(ErrTimeout)
			return
		}
		if w.patience > 0 && now >= w.patience {
			w.patience = 0
			x.trip.t.desk.Health.Overdue(x.visit)
		}
		next = min(next, left)
		if w.giveUp > 0 && now >= w.giveUp {
			w.giveUp = 0
			if x.giveUp() {
				w.stopped = true
				x.cancel(ErrTimeout)
				return
			}
		}
		for _, at := range [...]time.Duration{w.patience, w.giveUp} {
			if at > 0 {
				next = min(next, at-now)
			}
		}
	}
	w.set(next)
}

// ended says that a wait has. The order keeps look from counting it twice.
func (w *watch) ended() {
	since := w.since.Swap(idle)
	w.spent.Add(int64(time.Since(w.from)) - since)
}

// wire is the body of a response as it comes from the endpoint, watched.
type wire struct {
	io.ReadCloser
	w *watch
}

func (r *wire) Read(p []byte) (int, error) {
	r.w.since.Store(int64(time.Since(r.w.from)))
	n, err := r.ReadCloser.Read(p)
	r.w.ended()
	if n > 0 {
		r.w.x.trip.t.desk.Health.Heard(r.w.x.visit)
		r.w.x.lease.Tokens(0) // not lost, even if nothing is counted
	}
	return n, err
}
