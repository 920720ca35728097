package endpick

import (
	"math"
	"sync/atomic"
	"time"
)

// endpointState is one generation of an endpoint in a router. Its counters are
// atomic; a request is counted before it becomes visible as routed. It is one
// cache line, because a decision reads those of all candidates.
type endpointState struct {
	ref    EndpointRef
	idHash uint64

	report atomic.Pointer[report]

	requests      atomic.Int32
	prefilling    atomic.Int32
	prefillTokens atomic.Int64
	contextTokens atomic.Int64
	outputTokens  atomic.Int64
	flags         atomic.Uint32 // changed under fleet.mu
	answered      atomic.Uint32 // the last request, by its number, that has had its first token
}

const (
	draining  uint32 = 1 << iota
	removed          // set before the last check of requests
	forgotten        // by the policy, which has been notified
)

func (s *endpointState) is(flag uint32) bool { return s.flags.Load()&flag != 0 }

// open returns how many leases are open, and how many of them wait for their
// first token: never more, although the two are not read atomically.
func (s *endpointState) open() (requests, prefilling int32) {
	requests = s.requests.Load()
	return requests, min(s.prefilling.Load(), requests)
}

func (s *endpointState) snapshot(now time.Time) Snapshot {
	requests, prefilling := s.open()
	return Snapshot{ref: s.ref, at: now, requests: requests, prefilling: prefilling}
}

// report is a Load prepared for fast reading, on one cache line. It is immutable.
type report struct {
	at time.Duration // when the engine was asked, since the router's epoch
	signals
	requests   int32 // in flight when the engine counted
	prefilling int32
	load       *Load // as reported
}

// signals are those of a report; what is absent is 0.
type signals struct {
	reported                  Signals
	asleep                    bool
	waiting, running, kvUsage float64
}

// prepare returns the report of a clean load. The engine counted at some time
// between the snapshots asked (the question) and now (the answer). Requests
// that arrived in between may or may not be in its count: prepare assumes as
// many in it as the count has room for, so that none is counted twice.
func (l Load) prepare(at time.Duration, asked, now Snapshot) report {
	rep := report{at: at, signals: signals{allSignals &^ l.Absent, l.Asleep, l.Waiting, l.Running, l.KVUsage}, load: &l}
	rep.requests, rep.prefilling = asked.requests, asked.prefilling
	if came := now.requests - asked.requests; came != 0 {
		fewest, most := min(asked.requests, now.requests), max(asked.requests, now.requests)
		rep.requests = int32(min(max(rep.waiting+rep.running, float64(fewest)), float64(most)))
		prefilling := float64(now.prefilling-asked.prefilling) * float64(rep.requests-asked.requests) / float64(came)
		rep.prefilling += int32(math.Round(prefilling))
	}
	return rep
}

// accept makes a report the current one. It is ignored if it was requested before that one.
// If it repeats that one, what came and went since the first of them counts.
func (s *endpointState) accept(rep report) {
	for {
		current, next := s.report.Load(), rep
		if current != nil && current.at > rep.at {
			return
		}
		if current != nil && current.signals == rep.signals {
			next.requests, next.prefilling = current.requests, current.prefilling
		}
		if s.report.CompareAndSwap(current, &next) {
			return
		}
	}
}

// fill sets the candidate's fields from the endpoint's own report and the
// router's counts. Without a report, the counts alone remain, and a KVUsage of 0:
// see fillAbsent. A report that was requested before oldest, since the router's epoch, is
// ignored. It reports whether the engine is asleep.
//
// It assigns field by field, because a literal would be built on the stack and
// copied.
func (s *endpointState) fill(c *Candidate, e *Endpoint, oldest time.Duration) (asleep bool) {
	requests, prefilling := s.open()
	c.Endpoint = e
	c.Ref = s.ref
	c.ChanceKey = s.idHash
	c.InFlight.Requests = int(requests)
	c.InFlight.Prefilling = int(prefilling)
	c.InFlight.PrefillTokens = int(s.prefillTokens.Load())
	c.InFlight.ContextTokens = int(s.contextTokens.Load())
	c.InFlight.OutputTokens = int(s.outputTokens.Load())
	c.PrefixTokens = 0
	c.Prediction = Prediction{}
	c.Waiting, c.Running = float64(prefilling), float64(requests-prefilling)

	rep := s.report.Load()
	if rep == nil || rep.at < oldest {
		c.Report, c.Reported, c.KVUsage = nil, 0, 0
		return false
	}
	c.Report, c.Reported = rep.load, rep.reported
	c.KVUsage = rep.kvUsage
	opened := float64(requests - rep.requests)
	queued := float64(prefilling - rep.prefilling)
	switch rep.reported & (WaitingSignal | RunningSignal) {
	case WaitingSignal | RunningSignal:
		// How the difference is split between waiting and running is a guess; the sum
		// is not.
		batch := max(rep.waiting+rep.running+opened, 0)
		c.Waiting = min(max(rep.waiting+queued, 0), batch)
		c.Running = batch - c.Waiting
	case WaitingSignal:
		c.Waiting = max(rep.waiting+queued, 0)
	case RunningSignal:
		c.Running = max(rep.running+opened-queued, 0)
	}
	return rep.asleep
}

// fillAbsent completes the candidates that do not report a signal, so that silence
// never looks idle. For requests it adds to the router's own count, which is known,
// what the other candidates report beyond theirs, on average. KV usage is their mean,
// 0.5 if nobody reports.
//
// The mean of whole queues and batches would count this router's own requests twice:
// where servers report only while they work, the idle ones would look as busy as the
// rest, get no requests, and stay silent.
func fillAbsent(candidates []Candidate) {
	var waiting, running, kv mean
	for i := range candidates {
		c := &candidates[i]
		w, r := c.elsewhere()
		if c.Reported&WaitingSignal != 0 {
			waiting.add(w)
		}
		if c.Reported&RunningSignal != 0 {
			running.add(r)
		}
		if c.Reported&KVUsageSignal != 0 {
			kv.add(c.KVUsage)
		}
	}
	for i := range candidates {
		c := &candidates[i]
		if c.Reported&WaitingSignal == 0 {
			c.Waiting += waiting.or(0)
		}
		if c.Reported&RunningSignal == 0 {
			c.Running += running.or(0)
		}
		if c.Reported&KVUsageSignal == 0 {
			c.KVUsage = kv.or(0.5)
		}
	}
}

// elsewhere returns how many requests wait and run on an endpoint besides this router's
// own, by its report. Which of its own wait is a guess, but the total is not: neither
// value exceeds it.
func (c *Candidate) elsewhere() (waiting, running float64) {
	waiting = max(c.Waiting-float64(c.InFlight.Prefilling), 0)
	running = max(c.Running-float64(c.InFlight.Requests-c.InFlight.Prefilling), 0)
	most := max(c.BatchSize()-float64(c.InFlight.Requests), 0)
	return min(waiting, most), min(running, most)
}

// CapOutlier is what the largest of n counts, such as the batch sizes of candidates, counts as in a mean of all, beside
// the next one: at most four times that, or 64 shared by the others. For stages: one endpoint may report anything.
func CapOutlier(n int, largest, next float64) float64 {
	if n < 2 {
		return largest
	}
	return min(largest, max(4*next, 64/float64(n-1)))
}

// mean is a mean of non-negative values without outliers. It carries the rounding error of each
// addition (Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation
// endlicher Summen, 1974), so that it does not depend on the order of values.
type mean struct {
	sum, lost  float64 // of all but the largest
	most, next float64
	count      int
}

func (m *mean) add(v float64) {
	less := min(v, m.most)
	m.most, m.next = max(v, m.most), max(less, m.next)
	sum := m.sum + less
	m.lost += min(m.sum, less) - (sum - max(m.sum, less))
	m.sum = sum
	m.count++
}

func (m *mean) or(none float64) float64 {
	if m.count == 0 {
		return none
	}
	return (m.sum + m.lost + CapOutlier(m.count, m.most, m.next)) / float64(m.count)
}
