package sim

import (
	"time"

	"github.com/endpick/endpick"
)

func (r *run) load(s *server) endpick.Load {
	l := s.engine.Load(r.now)
	return endpick.Load{Waiting: float64(l.Waiting), Running: float64(l.Running), KVUsage: l.KVUsage}
}

// refresh reports the current load of every server to a router.
func (r *run) refresh(router int) {
	for i := range r.servers {
		s := &r.servers[i]
		r.routers[router].Report(s.Endpoint.ID, r.load(s))
	}
}

// report reports the loads of all servers to all routers.
func (r *run) report() {
	for i := range r.routers {
		r.refresh(i)
	}
	r.timers.set(onReport, r.now+r.cfg.ReportInterval, true)
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
	mean, deviation := meanAndDeviation(seconds)
	r.tally.windows = append(r.tally.windows, window{r.now, mean, deviation})
	r.timers.set(onWindow, r.now+imbalanceWindow, true)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *run) clock() time.Time { return epoch.Add(r.now) }
