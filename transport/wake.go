package transport

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
)

// Servers with a WakeTime may sleep. One is known to be asleep when a request does not reach it:
// from then on one request in wakeTrial tries it, until one is answered, and the others wait in the queue,
// if there is no other server for them.

const (
	wakeTrial = time.Second
	// wakeAgain is the least time between two calls of Config.Wake for one endpoint.
	wakeAgain = 30 * time.Second
	// maxSleepers bounds the endpoints of which something is remembered.
	maxSleepers = 1024
)

// sleepers are the endpoints that are asleep. It is safe for concurrent use.
type sleepers struct {
	mu     sync.Mutex
	asleep map[string]time.Time // until when each is not asked, by ID
	called map[string]time.Time // when Config.Wake was last called for it
}

// wakingError says that there is no endpoint but such as are being woken.
type wakingError struct{ error }

func (e *wakingError) Unwrap() error { return e.error }

// sleeps reports whether an endpoint may sleep.
func (d *Dispatcher) sleeps(e *endpick.Endpoint) bool { return d.config.Wake != nil && e.WakeTime > 0 }

// asleep are the IDs of endpoints not to be asked now.
func (d *Dispatcher) asleep(now time.Time) (ids []string) {
	if d.config.Wake == nil {
		return nil
	}
	d.sleepers.mu.Lock()
	defer d.sleepers.mu.Unlock()
	for id, until := range d.sleepers.asleep {
		if now.Before(until) {
			ids = append(ids, id)
		}
	}
	return ids
}

// sent notes that an endpoint is asked: if it is asleep, by this request alone.
func (d *Dispatcher) sent(e *endpick.Endpoint) {
	if !d.sleeps(e) {
		return
	}
	d.sleepers.mu.Lock()
	defer d.sleepers.mu.Unlock()
	if _, ok := d.sleepers.asleep[e.ID]; ok {
		d.sleepers.asleep[e.ID] = d.now().Add(wakeTrial)
	}
}

// answered notes that a request has reached an endpoint, or has not.
func (d *Dispatcher) answered(e *endpick.Endpoint, reached bool) {
	if !d.sleeps(e) {
		return
	}
	d.sleepers.mu.Lock()
	if reached {
		delete(d.sleepers.asleep, e.ID)
	} else {
		remember(d.sleepers.asleep, e.ID, d.now().Add(wakeTrial))
	}
	d.sleepers.mu.Unlock()
}

// remember forgets all others before there are too many: endpoints come and go.
func remember(of map[string]time.Time, id string, at time.Time) {
	if len(of) >= maxSleepers {
		clear(of)
	}
	of[id] = at
}

// sleeping are those of some endpoints that may sleep, serve the model, and have not failed the request.
func (c *Call) sleeping(ids []string) (all []*endpick.Endpoint) {
	if len(ids) == 0 {
		return nil
	}
	for _, e := range c.d.config.Router.Endpoints() {
		to := e.Candidate.Endpoint
		if c.d.sleeps(to) && slices.Contains(ids, to.ID) && !slices.Contains(c.exclude, to.ID) &&
			!e.Draining && !e.Removed && health.Serves(to, c.model()) {
			all = append(all, to)
		}
	}
	return all
}

// wake calls Config.Wake for the sleeping endpoint that serves the model soonest, if that is sooner than
// expected where the request goes; negative: it goes nowhere.
func (c *Call) wake(out []string, expected time.Duration) {
	all := c.sleeping(out)
	if len(all) == 0 {
		return
	}
	d, first := c.d, slices.MinFunc(all, func(a, b *endpick.Endpoint) int { return cmp.Compare(a.WakeTime, b.WakeTime) })
	if expected >= 0 && first.WakeTime >= expected {
		return
	}
	now := d.now()
	d.sleepers.mu.Lock()
	defer d.sleepers.mu.Unlock()
	if now.Sub(d.sleepers.called[first.ID]) >= max(2*first.WakeTime, wakeAgain) {
		remember(d.sleepers.called, first.ID, now)
		go func() {
			defer d.guard(c.in, "Config.Wake")
			d.config.Wake(first)
		}()
	}
}

// waits reports whether err means that there will be an endpoint for the request: it is full, or
// asleep.
func waits(err error) bool {
	var none *endpick.NoEndpointError
	return errors.As(err, &none) && none.Full > 0 || errors.As(err, new(*wakingError))
}
