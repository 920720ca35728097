package transport

import (
	"cmp"
	"context"
	"io"
	"math"
	"time"

	"github.com/endpick/endpick"
)

// deadline limits how long an attempt of a Transport waits for its endpoint, reports a long wait
// to health, and keeps the lease alive. A single timer does all of it; it fires
// when something may be due, and is not reset at each byte. Only waiting
// counts, so that a client that does not read does not make its endpoint look
// silent. Of a Dispatcher's attempts, it only reports long waits. Times are real, whatever the
// host's clock says. Call.mu guards it.
type deadline struct {
	ctx    context.Context // of the outgoing request
	cancel context.CancelFunc
	from   time.Time // when the request was sent
	timer  *time.Timer
	beat   time.Duration
	// since is when the current wait began, from then on; idle: none. spent is the total of
	// earlier waits.
	since, spent time.Duration

	limit    time.Duration // of each wait; 0: none
	whole    bool          // limit is for all waits together
	patience time.Duration // when the wait for the first byte is reported to health; 0: never, or not again
	giveUp   time.Duration // when another endpoint is asked; 0 likewise
	conn     io.Closer     // that has left HTTP: limit is for silence in both directions; nil: none
	stopped  bool          // nobody waits any more
	late     bool          // because it took too long
}

const idle = -1

// minStuck is how long a request waits for its first byte at least, at an
// endpoint that sends nothing to anybody.
const minStuck = 10 * time.Second

// tokenTime is how long each token of a response that does not stream may take, of the first 1,200.
const tokenTime = 50 * time.Millisecond

// startWaiting begins the wait for the first byte.
func (a *Attempt) startWaiting() {
	c := &a.call.d.config
	stream := a.call.Request.Stream
	a.wait = deadline{from: time.Now()}
	w := &a.wait
	a.expect(0)
	if a.call.in != nil {
		w.ctx, w.cancel = context.WithCancel(a.ctx)
		w.beat = max(c.Router.LeaseTimeout()/3, time.Millisecond)
		w.limit, w.whole = c.ResponseTimeout, true
		if stream {
			w.limit = c.FirstByteTimeout
		}
		if a.loads() { // which is neither silent nor stuck
			w.patience, w.giveUp, w.limit = 0, 0, max(w.limit, c.LoadTimeout)
		}
	}
	if next := w.next(0); next < math.MaxInt64 {
		w.timer = time.AfterFunc(next, a.look)
	}
}

// expect sets for how long the endpoint may send nothing to anybody from now on: for as long as it
// has let the request wait already, if that is more than usual.
func (a *Attempt) expect(now time.Duration) {
	patience := a.call.d.health.Patience(a.call.Request.Stream)
	if patience == 0 {
		return
	}
	patience = max(patience, now)
	if r := &a.call.Request; !r.Stream { // after many short responses, a long one is no silence
		n := cmp.Or(float64(a.call.parsed.MaxTokens()), r.ExpectedPerResponse())
		patience = max(patience, time.Duration(min(n, 1200))*tokenTime)
	}
	a.wait.patience = now + patience
	if a.call.in != nil {
		a.wait.giveUp = now + max(2*patience, minStuck)
	}
}

// loads reports whether the model is not in the endpoint's memory, as far as is known.
func (a *Attempt) loads() bool {
	r := a.lease.Endpoint().Resident(a.call.model())
	asked := a.call.Request.Context
	return r != nil && (r.State != endpick.InMemory || asked > 0 && r.Context > 0 && asked != r.Context)
}

// left is what is left of the current wait.
func (w *deadline) left(now time.Duration) time.Duration {
	left := w.limit - (now - w.since)
	if w.whole {
		left -= w.spent
	}
	return left
}

// next is when something may be due.
func (w *deadline) next(now time.Duration) time.Duration {
	next := time.Duration(math.MaxInt64)
	if w.limit > 0 {
		switch next = min(w.beat, w.limit); {
		case w.since != idle:
			next = min(next, w.left(now))
		case w.whole: // something comes at this moment, and the last wait is about to begin
			next = min(next, max(w.limit-w.spent, time.Second))
		}
	}
	for _, at := range [...]time.Duration{w.patience, w.giveUp} {
		if at > 0 {
			next = min(next, at-now)
		}
	}
	return next
}

// set changes the limit.
func (w *deadline) set(limit time.Duration, whole bool) {
	w.limit, w.whole = limit, whole
	if !w.stopped {
		w.timer.Reset(w.next(time.Since(w.from)))
	}
}

// resume goes on waiting.
func (w *deadline) resume() { w.since = time.Since(w.from) }

// pause records that something has come. What comes first ends the wait for it.
func (w *deadline) pause() {
	w.spent += time.Since(w.from) - w.since
	w.since, w.patience, w.giveUp = idle, 0, 0
}

func (w *deadline) stop() {
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// look does what is due. It runs on a goroutine of its own.
func (a *Attempt) look() {
	c, w := a.call, &a.wait
	defer c.d.guard(c.in, "Attempt")
	c.mu.Lock()
	defer c.unlock()
	if w.stopped {
		return
	}
	now := time.Since(w.from)
	if w.since != idle {
		if w.limit > 0 {
			a.lease.Tokens(0)
			if w.left(now) <= 0 {
				a.tooLate()
				return
			}
		}
		if w.patience+w.giveUp > 0 && !a.health.Stuck() { // it may hang from now on
			a.health = a.health.Anew()
			a.expect(now)
		}
		if w.patience > 0 && now >= w.patience {
			w.patience = 0
			a.health.Overdue()
		}
		if w.giveUp > 0 && now >= w.giveUp {
			w.giveUp = 0
			if a.stuck() {
				a.tooLate()
				return
			}
		}
	}
	if next := w.next(now); next < math.MaxInt64 {
		w.timer.Reset(next)
	}
}

// tooLate gives the endpoint up.
func (a *Attempt) tooLate() {
	w := &a.wait
	w.stopped, w.late = true, true
	w.cancel()
	if w.conn != nil { // its proxy may wait for a client that does not read
		go w.conn.Close() // which the context does not
		a.end(endpick.Completed)
	}
}
