package sim

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// imbalanceWindow is the length of the windows over which imbalance is measured, as in
// LMetric (figure 10).
const imbalanceWindow = 10 * time.Second

// tally counts what happens in a run.
type tally struct {
	policy       string
	requests     int
	outcomes     [tooLong + 1]int
	retried      int
	good         int // completed, and met their SLO or had none
	outputTokens int64

	indexed                bool  // the policy has a prefix index
	prefilled, coldYetWarm int64 // prompts with a first token, and how many of these only the engine knew

	ttft, tpot, e2e []float64 // milliseconds, by completion
	windows         []window

	firstArrival, lastArrival, lastCompletion time.Duration

	tenants map[string]float64 // output tokens of completed requests
	classes map[string]*Class

	input, output moments
}

// window is the prefill work of servers, in seconds, in one window of time.
type window struct {
	end             time.Duration
	mean, deviation float64
}

// moments are running sums for a mean and a standard deviation.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(x float64) { m.n++; m.sum += x; m.squares += x * x }

func (m *moments) meanStd() (mean, std float64) {
	if m.n == 0 {
		return 0, 0
	}
	mean = m.sum / m.n
	return mean, math.Sqrt(max(0, m.squares/m.n-mean*mean))
}

func (t *tally) arrived(r *Request) {
	if t.requests == 0 {
		t.firstArrival = r.Arrival
	}
	t.requests++
	t.lastArrival = r.Arrival
	t.input.add(float64(r.InputTokens))
	t.output.add(float64(r.OutputTokens))
	t.tenants[r.Tenant] += 0 // who gets nothing counts, too
	if name := r.class(); name != "" {
		c := t.classes[name]
		if c == nil {
			c = &Class{Name: name}
			t.classes[name] = c
		}
		c.Requests++
	}
}

// firstToken compares what the engine found of a prompt with the index's match.
func (t *tally) firstToken(f *flight) {
	t.prefilled++
	if chosen, ok := f.lease.Candidate(); ok && coldYetWarm(f.request.InputTokens, chosen.PrefixTokens, f.cached) {
		t.coldYetWarm++
	}
}

// warmShare is the share of a prompt from which on it counts as warm, for the index as
// for an engine: that of the predicted-latency paper's affinity gate.
const warmShare = 0.8

// coldYetWarm reports whether the engine held a prompt that the index took for cold.
func coldYetWarm(input, matched, cached int) bool {
	warm := warmShare * float64(input)
	return float64(matched) < warm && float64(cached) >= warm
}

func (t *tally) completed(f *flight, now time.Duration) {
	r := &f.request
	ttft := f.first - r.Arrival
	t.ttft = append(t.ttft, millis(ttft))
	t.e2e = append(t.e2e, millis(now-r.Arrival))
	var tpot time.Duration
	if r.OutputTokens > 1 {
		tpot = (now - f.first) / time.Duration(r.OutputTokens-1)
		t.tpot = append(t.tpot, millis(tpot))
	}
	t.outputTokens += int64(r.OutputTokens)
	t.lastCompletion = now
	t.tenants[r.Tenant] += float64(r.OutputTokens)
	if r.Whole { // as package slo sees it
		ttft, tpot = now-r.Arrival, 0
	}
	if (r.SLO.TTFT > 0 && ttft > r.SLO.TTFT) || (r.SLO.TPOT > 0 && tpot > r.SLO.TPOT) {
		return
	}
	t.good++
	if c := t.classes[r.class()]; c != nil {
		c.Met++
	}
}

func (t *tally) jain() float64 {
	var got []float64
	for _, name := range slices.Sorted(maps.Keys(t.tenants)) { // in a fixed order, because float sums depend on it
		got = append(got, t.tenants[name])
	}
	return jain(got)
}

// imbalance uses the whole run, of which the prefill seconds by server are given,
// if that is shorter than a window.
func (t *tally) imbalance(whole []float64) float64 {
	var deviations, means float64
	if t.lastArrival < imbalanceWindow {
		means, deviations = meanAndDeviation(whole)
	}
	for _, w := range t.windows {
		if w.end > t.lastArrival {
			break
		}
		means += w.mean
		deviations += w.deviation
	}
	if means == 0 {
		return 0
	}
	return deviations / means
}

// classReports sets attainment and goodput.
func (t *tally) classReports(rep *Report) {
	asked, met := 0, 0
	for _, c := range t.classes {
		c.Attainment = float64(c.Met) / float64(c.Requests)
		if rep.Seconds > 0 {
			c.GoodputRPS = float64(c.Met) / rep.Seconds
		}
		asked += c.Requests
		met += c.Met
		rep.Classes = append(rep.Classes, *c)
	}
	slices.SortFunc(rep.Classes, func(a, b Class) int { return cmp.Compare(a.Name, b.Name) })
	if asked > 0 {
		share := float64(met) / float64(asked)
		rep.SLOAttainment = &share
	}
	if rep.Seconds > 0 {
		rep.GoodputRPS = float64(t.good) / rep.Seconds
	}
}
