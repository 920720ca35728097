package transport

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// watch limits how long an exchange waits for its endpoint, reports a long wait
// to health, and keeps the lease alive. A single timer does all of it; it fires
// when something may be due, and is not reset at each byte. Only waiting
// counts, so that a client that does not read does not make its endpoint look
// silent.
type watch struct {
	x    *exchange
	from time.Time // when the request was sent, in real time
	beat time.Duration
	// since is when the current wait began, relative to from; idle: none. spent is
	// the total of earlier waits.
	since, spent atomic.Int64

	mu       sync.Mutex // guards the fields below
	timer    *time.Timer
	limit    time.Duration // of each wait
	whole    bool          // limit is for all waits together
	patience time.Duration // wait after which it is reported to health; 0: never, or not again
	giveUp   time.Duration // wait after which another endpoint is asked; 0 likewise
	conn     io.Closer     // that has left HTTP: limit is for silence in both directions; nil: none
	stopped  bool
}

const idle = -1

// start begins the wait for the first byte.
func (w *watch) start(x *exchange, limit, patience, giveUp time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.x, w.from, w.limit, w.whole, w.patience, w.giveUp = x, time.Now(), limit, true, patience, giveUp
	w.beat = max(x.rt.t.config.Router.LeaseTimeout()/3, time.Millisecond)
	first := min(w.beat, w.limit)
	if patience > 0 {
		first = min(first, patience)
	}
	w.timer = time.AfterFunc(first, w.look)
}

// heard records the first byte. It returns false if that is too late, because
// the exchange has been given up.
func (w *watch) heard() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.ended()
	return true
}

// answered sets the limits of the rest, after heard.
func (w *watch) answered(limit time.Duration, whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patience, w.giveUp, w.limit, w.whole = 0, 0, limit, whole
	w.set(0)
}

// left is answered for a connection that has left HTTP.
func (w *watch) left(limit time.Duration, conn io.Closer) {
	w.moved()
	w.mu.Lock()
	w.conn = conn
	w.mu.Unlock()
	w.answered(limit, false)
}

// moved records that something has passed a connection that has left HTTP.
func (w *watch) moved() { w.since.Store(int64(time.Since(w.from))) }

// bound changes the limit of each wait.
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

// set makes the timer fire after d; w.mu is held.
func (w *watch) set(d time.Duration) {
	if !w.stopped {
		w.timer.Reset(d)
	}
}

// look does what is due. It runs on a goroutine of its own.
func (w *watch) look() {
	x := w.x
	defer x.rt.t.d.guard(x.rt.in, "watch")
	silent := false // a connection that has left HTTP
	defer func() {
		if silent { // its proxy may wait for a client that does not read
			x.end(endpick.Completed)
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	now, since := time.Since(w.from), time.Duration(w.since.Load())
	next := min(w.beat, w.limit)
	if since != idle {
		x.lease.Tokens(0)
		left := w.limit - (now - since)
		if w.whole {
			left -= time.Duration(w.spent.Load())
		}
		if left <= 0 {
			w.stopped = true
			x.cancel(ErrTimeout)
			if silent = w.conn != nil; silent {
				w.conn.Close() // which the context does not
			}
			return
		}
		if w.patience > 0 && now >= w.patience {
			w.patience = 0
			x.rt.t.d.health.Overdue(x.health)
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

// ended records the end of a wait. The order prevents look from counting it twice.
func (w *watch) ended() {
	since := w.since.Swap(idle)
	w.spent.Add(int64(time.Since(w.from)) - since)
}

// wire is the body of a response from the endpoint, watched.
type wire struct {
	io.ReadCloser
	w *watch
}

func (r *wire) Read(p []byte) (int, error) {
	r.w.since.Store(int64(time.Since(r.w.from)))
	n, err := r.ReadCloser.Read(p)
	r.w.ended()
	if n > 0 {
		r.w.x.rt.t.d.health.Heard(r.w.x.health)
		r.w.x.lease.Tokens(0) // keeps the lease alive, even if nothing is counted
	}
	return n, err
}
