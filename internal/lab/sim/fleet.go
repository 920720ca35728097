package sim

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

func (r *run) load(s *server) endpick.Load {
	l := s.engine.Load(r.now)
	return endpick.Load{Waiting: float64(l.Waiting), Running: float64(l.Running), KVUsage: l.KVUsage}
}

// report takes the loads of all servers for all routers.
func (r *run) report() {
	b := batch{due: r.now + r.cfg.ReportDelay}
	for i := range r.servers {
		s := &r.servers[i]
		if !s.up {
			continue
		}
		load := r.load(s)
		for router := range r.routers {
			load.Mark = r.routers[router].Mark(s.Endpoint.ID)
			if load.Mark != (endpick.Mark{}) {
				b.loads = append(b.loads, report{router, s.Endpoint.ID, load})
			}
		}
	}
	r.reports = append(r.reports, b)
	r.timers.set(onReport, r.now+r.cfg.ReportInterval, true)
	if r.cfg.ReportDelay == 0 {
		r.deliver()
		return
	}
	r.timers.set(onDelivery, r.reports[0].due, true)
}

// deliver delivers the oldest batch of reports to the routers. A report about a
// server that is gone is dropped, as in production.
func (r *run) deliver() {
	for _, l := range r.reports[0].loads {
		r.routers[l.router].Report(l.id, l.load)
	}
	r.reports = r.reports[1:]
	if len(r.reports) > 0 {
		r.timers.set(onDelivery, r.reports[0].due, true)
	} else {
		r.timers.set(onDelivery, 0, false)
	}
}

// meter reports streamed tokens to the routers.
func (r *run) meter() {
	r.timers.set(onMeter, r.now+r.cfg.MeterInterval, true)
	for i := range r.servers {
		s := &r.servers[i]
		s.engine.Load(r.now) // advances it to now
		s.engine.Running(func(id uint64, tokens int) {
			f := &r.flights[id]
			if f.started && tokens > f.metered {
				f.lease.Tokens(tokens - f.metered)
				f.metered = tokens
			}
		})
	}
}

// window closes a window of the imbalance series.
func (r *run) window() {
	seconds := make([]float64, len(r.servers))
	for i := range r.servers {
		s := &r.servers[i]
		s.engine.Load(r.now)
		busy := s.engine.Totals().PrefillBusy
		seconds[i] = (busy - s.prefill).Seconds()
		s.prefill = busy
	}
	r.tally.windows = append(r.tally.windows, Window{Start: r.now - r.cfg.Window, PrefillSeconds: seconds})
	r.timers.set(onWindow, r.now+r.cfg.Window, true)
}

func (r *run) armChange() {
	if len(r.changes) > 0 {
		r.timers.set(onChange, r.changes[0].At, true)
	} else {
		r.timers.set(onChange, 0, false)
	}
}

// noticed is a change that the simulator adds after a Crash: the routers remove
// the server.
const noticed = Slow + 1

// change applies the next change of the fleet.
func (r *run) change() {
	ch := r.changes[0]
	r.changes = r.changes[1:]
	i := r.byID[ch.Endpoint]
	s := &r.servers[i]
	switch ch.Kind {
	case Crash:
		if !s.up {
			break
		}
		s.up = false
		if ch.Unnoticed > 0 {
			r.later(Change{At: r.now + ch.Unnoticed, Endpoint: ch.Endpoint, Kind: noticed})
		} else {
			r.eachRouter(func(router *endpick.Router) { router.Remove(ch.Endpoint) })
		}
		r.events = s.engine.Reset(r.now, r.events[:0])
		r.handle(i)
	case noticed:
		if !s.up {
			r.eachRouter(func(router *endpick.Router) { router.Remove(ch.Endpoint) })
		}
	case Join:
		if s.up {
			break
		}
		s.up = true
		r.touched(i)
		r.eachRouter(func(router *endpick.Router) {
			router.Remove(ch.Endpoint) // the crash may not have been noticed
			router.Add(s.Endpoint)
		})
		r.news.joined(r, i)
	case Drain:
		r.eachRouter(func(router *endpick.Router) { router.Drain(ch.Endpoint) })
	case Slow:
		s.engine.SetSlowness(r.now, ch.Factor)
		r.touched(i)
		r.armEngine(i)
	case Resume:
		r.eachRouter(func(router *endpick.Router) { router.Resume(ch.Endpoint) })
	}
	r.armChange()
}

// later schedules a change.
func (r *run) later(ch Change) {
	at := 0
	for at < len(r.changes) && r.changes[at].At <= ch.At {
		at++
	}
	r.changes = append(r.changes[:at:at], append([]Change{ch}, r.changes[at:]...)...)
}

func (r *run) eachRouter(do func(*endpick.Router)) {
	for _, router := range r.routers {
		do(router)
	}
}

// totals sums the engines' counts.
func (r *run) totals() (sum engine.Totals) {
	for i := range r.servers {
		t := r.servers[i].engine.Totals()
		sum.PrefixQueryTokens += t.PrefixQueryTokens
		sum.PrefixHitTokens += t.PrefixHitTokens
		sum.PrefillTokens += t.PrefillTokens
		sum.OutputTokens += t.OutputTokens
		sum.Preemptions += t.Preemptions
		sum.EvictedSystem += t.EvictedSystem
		sum.EvictedUser += t.EvictedUser
		sum.EvictedOther += t.EvictedOther
		sum.Steps += t.Steps
		sum.Busy += t.Busy
	}
	return sum
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *run) clock() time.Time { return epoch.Add(r.now) }
