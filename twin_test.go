package endpick_test

import (
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// twin keeps the counts of a router in the simplest way: as a log of what
// happened at each endpoint, from which everything is recounted whenever it is
// needed.
type twin struct {
	now       time.Time
	maxAge    time.Duration
	timeout   time.Duration
	endpoints map[string]*twinEndpoint
	departed  []*twinEndpoint // removed, perhaps with open leases
	leases    []*twinLease    // all leases there ever were
}

type twinEndpoint struct {
	endpick.Endpoint
	draining bool
	leases   []*twinLease
	requests []int // +1 for each lease opened, −1 for each closed
	prefills []int // the same for prefills
	report   *twinReport
	answered []*twinLease // those that have had a first token
}

type twinMark struct {
	endpoint *twinEndpoint
	at       time.Time
	requests int // lengths of the logs
	prefills int
}

type twinReport struct {
	endpick.Load
	mark               twinMark
	requests, prefills int // in flight when the engine counted
}

// counted is the report of a load that was requested at the mark and is
// answered now. The engine counted in between: at the time when most of what it
// counted was the router's.
func (w *twin) counted(load endpick.Load, mark twinMark) *twinReport {
	e := mark.endpoint
	was, is := sum(e.requests[:mark.requests]), sum(e.requests)
	rep := &twinReport{Load: load, mark: mark, requests: was, prefills: sum(e.prefills[:mark.prefills])}
	total := 0.0
	if load.Absent&endpick.WaitingSignal == 0 {
		total += load.Waiting
	}
	if load.Absent&endpick.RunningSignal == 0 {
		total += load.Running
	}
	if was == is || load.Absent&endpick.WaitingSignal != 0 && load.Absent&endpick.RunningSignal != 0 {
		return rep
	}
	for k := min(was, is); k <= max(was, is); k++ {
		if k == min(was, is) || float64(k) <= total {
			rep.requests = k
		}
	}
	share := float64(rep.requests-was) / float64(is-was)
	rep.prefills += int(math.Round(share * float64(sum(e.prefills)-rep.prefills)))
	return rep
}

type twinLease struct {
	lease      endpick.Lease
	spy        *spy
	endpoint   *twinEndpoint
	input      int
	matched    int
	stream     bool
	output     int
	closed     bool
	prefilling bool
	first      bool
	heard      time.Time
	prefillEnd time.Time     // zero: not predicted
	again      time.Duration // after that it is asked again whether the prefill of a stream has ended
}

func sum(log []int) (n int) {
	for _, v := range log {
		n += v
	}
	return n
}

func (w *twin) mark(id string) twinMark {
	e := w.endpoints[id]
	if e == nil {
		return twinMark{at: w.now}
	}
	return twinMark{endpoint: e, at: w.now, requests: len(e.requests), prefills: len(e.prefills)}
}

// serves: an endpoint without names serves everything.
func (e *twinEndpoint) serves(model string) bool {
	return model == "" || len(e.Models)+len(e.Adapters) == 0 || slices.Contains(e.Models, model) || slices.Contains(e.Adapters, model)
}

// candidates are the endpoints that a request may go to, and how many could if they were not full; or
// the longest context, if the prompt fits none that would serve it.
func (w *twin) candidates(req *endpick.Request) (found map[string]*twinEndpoint, full, longest int) {
	found = map[string]*twinEndpoint{}
	barred := false // one is drained or excluded
	for id, e := range w.endpoints {
		if !e.serves(req.Model) {
			continue
		}
		if e.draining || slices.Contains(req.Exclude, id) {
			barred = true
		} else {
			found[id] = e
		}
	}
	keep := func(is func(e *twinEndpoint) bool) bool {
		left := maps.Clone(found)
		maps.DeleteFunc(left, func(_ string, e *twinEndpoint) bool { return !is(e) })
		if len(left) > 0 {
			found = left
		}
		return len(left) > 0
	}
	for _, e := range found {
		longest = max(longest, e.MaxContext)
	}
	switch {
	case len(found) == 0 || keep(func(e *twinEndpoint) bool { return e.MaxContext == 0 || req.InputTokens <= e.MaxContext }):
	case 4*req.InputTokens <= 5*longest:
		keep(func(e *twinEndpoint) bool { return e.MaxContext == longest })
	case barred:
		return nil, 0, 0
	default:
		return nil, 0, longest
	}
	keep(func(e *twinEndpoint) bool {
		return e.report == nil || !e.report.Asleep || w.now.Sub(e.report.mark.at) > w.maxAge
	})
	keep(func(e *twinEndpoint) bool { return !slices.Contains(req.Avoid, e.ID) })
	for id, e := range found {
		if e.MaxInFlight > 0 && sum(e.requests) >= e.MaxInFlight {
			delete(found, id)
			full++
		}
	}
	for tier := 1; tier <= 2 && !keep(func(e *twinEndpoint) bool { return e.Tier <= tier }); tier++ {
	}
	return found, full, 0
}

func (l *twinLease) endPrefill() {
	if l.prefilling {
		l.prefilling = false
		l.endpoint.prefills = append(l.endpoint.prefills, -1)
	}
}

func (l *twinLease) close() {
	l.endPrefill()
	l.closed = true
	l.endpoint.requests = append(l.endpoint.requests, -1)
}

func (l *twinLease) firstToken() {
	if !l.first {
		l.endpoint.answered = append(l.endpoint.answered, l)
	}
	l.first = true
	l.endPrefill()
}

// says is what a report says.
func (r *twinReport) says() (said [5]float64) {
	for i, v := range []float64{r.Waiting, r.Running, r.KVUsage} {
		if r.Absent&(1<<i) == 0 {
			said[i] = v
		}
	}
	said[3] = float64(r.Absent & 7)
	if r.Asleep {
		said[4] = 1
	}
	return said
}

// tick ends the prefills whose predicted time has come.
func (w *twin) tick() {
	for i, l := range w.leases {
		switch {
		case l.closed || l.prefillEnd.IsZero() || l.prefillEnd.After(w.now):
		case l.stream && !slices.ContainsFunc(l.endpoint.answered, func(o *twinLease) bool { return slices.Index(w.leases, o) > i }): // it waits
			l.prefillEnd = w.now.Add(l.again)
		default:
			l.endPrefill()
		}
	}
}

func (w *twin) lost(l *twinLease) bool { return !l.closed && w.now.Sub(l.heard) > w.timeout }

func (w *twin) hear(l *twinLease) { l.heard = w.now }

func (e *twinEndpoint) inFlight() (f endpick.InFlight) {
	for _, l := range e.leases {
		if l.closed {
			continue
		}
		f.Requests++
		f.ContextTokens += l.input
		f.OutputTokens += l.output
		if l.prefilling {
			f.Prefilling++
			f.PrefillTokens += l.input - l.matched
		}
	}
	return f
}

// view is what a request should see of each of these endpoints.
func (w *twin) view(endpoints map[string]*twinEndpoint) map[string]endpick.Candidate {
	seen := map[string]endpick.Candidate{}
	for id, e := range endpoints {
		f := e.inFlight()
		c := endpick.Candidate{InFlight: f, Waiting: float64(f.Prefilling), Running: float64(f.Requests - f.Prefilling)}
		if rep := e.report; rep != nil && w.now.Sub(rep.mark.at) <= w.maxAge {
			c.Reported = (endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal) &^ rep.Absent
			requests := float64(sum(e.requests) - rep.requests)
			prefills := float64(sum(e.prefills) - rep.prefills)
			waiting := c.Reported&endpick.WaitingSignal != 0
			running := c.Reported&endpick.RunningSignal != 0
			if waiting {
				c.Waiting = max(rep.Waiting+prefills, 0)
			}
			if running {
				c.Running = max(rep.Running+requests-prefills, 0)
			}
			if waiting && running {
				batch := max(rep.Waiting+rep.Running+requests, 0)
				c.Waiting = min(c.Waiting, batch)
				c.Running = batch - c.Waiting
			}
			if c.Reported&endpick.KVUsageSignal != 0 {
				c.KVUsage = rep.KVUsage
			}
		}
		seen[id] = c
	}
	mean := func(signal endpick.Signals, none float64, value func(endpick.Candidate) float64) float64 {
		all, total := []float64{}, 0.0
		for _, c := range seen {
			if c.Reported&signal != 0 {
				all = append(all, value(c))
			}
		}
		slices.Sort(all)
		for i, v := range all {
			if i > 0 && i == len(all)-1 {
				v = min(v, max(4*all[i-1], 64/float64(i)))
			}
			total += v
		}
		if len(all) == 0 {
			return none
		}
		return total / float64(len(all))
	}
	// What others have there: of what is reported, more than this router has there itself.
	others := func(c endpick.Candidate, reported, own int, v float64) float64 {
		if reported == 2 {
			return max(min(v-float64(own), c.Waiting+c.Running-float64(c.InFlight.Requests)), 0)
		}
		return max(v-float64(own), 0)
	}
	both := func(c endpick.Candidate) int {
		return int(c.Reported&endpick.WaitingSignal/endpick.WaitingSignal + c.Reported&endpick.RunningSignal/endpick.RunningSignal)
	}
	waiting := mean(endpick.WaitingSignal, 0, func(c endpick.Candidate) float64 { return others(c, both(c), c.InFlight.Prefilling, c.Waiting) })
	running := mean(endpick.RunningSignal, 0, func(c endpick.Candidate) float64 {
		return others(c, both(c), c.InFlight.Requests-c.InFlight.Prefilling, c.Running)
	})
	kv := mean(endpick.KVUsageSignal, 0.5, func(c endpick.Candidate) float64 { return c.KVUsage })
	for id, c := range seen {
		if c.Reported&endpick.WaitingSignal == 0 {
			c.Waiting += waiting
		}
		if c.Reported&endpick.RunningSignal == 0 {
			c.Running += running
		}
		if c.Reported&endpick.KVUsageSignal == 0 {
			c.KVUsage = kv
		}
		seen[id] = c
	}
	return seen
}

// held is how much of a request's prompt an endpoint holds in these tests: an
// arbitrary function.
func held(req *endpick.Request, id string) int {
	if req.InputTokens == 0 {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(id + "/" + req.Session))
	return int(h.Sum32()>>8) % req.InputTokens
}
