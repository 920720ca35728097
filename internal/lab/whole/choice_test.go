package whole

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/slo"
	"pgregory.net/rapid"
)

// Each remaining candidate gets one score, which is finite, and within [0, 1], times its
// weight, where several are combined; the chosen one is among them.
func TestInvariantScores(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// Some scorers break their contract.
		broken := rapid.SampledFrom([]float64{0.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300}).Draw(rt, "broken score")
		w := newWorld(rt, options{policy: func(p *endpick.Policy) {
			p.Scorers = append(p.Scorers, endpick.Weighted{Weight: 1e300, Scorer: brokenScorer{broken}})
		}})
		for _, s := range draw(rt) {
			d := w.apply(s)
			if d == nil || d.err != nil {
				continue
			}
			r := &d.receipt
			if r.Chosen < 0 || r.Verdicts[r.Chosen].RemovedBy != "" || r.Verdicts[r.Chosen].Candidate.Endpoint.ID != d.id {
				w.failf("the receipt says that %d was chosen: %v", r.Chosen, d)
			}
			for i := range r.Verdicts {
				if s.request.Adopted != nil {
					break // nobody is scored
				}
				v := &r.Verdicts[i]
				if v.RemovedBy == "" && (len(v.Scores) != len(r.Scorers) || slices.ContainsFunc(v.Scores, notFinite)) {
					w.failf("%s has the scores %v of %v", v.Candidate.Endpoint.ID, v.Scores, r.Scorers)
				}
				if v.RemovedBy == "" && !(v.Score >= 0 && v.Score <= cmp.Or(v.Candidate.Endpoint.Weight, 1)) {
					w.failf("%s has the combined score %v", v.Candidate.Endpoint.ID, v.Score)
				}
			}
		}
	})
}

func notFinite(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// brokenScorer breaks its contract for every third endpoint.
type brokenScorer struct{ score float64 }

func (s brokenScorer) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		if dst[i] = 0.25; candidates[i].Ref.Slot%3 == 0 {
			dst[i] = s.score
		}
	}
}

// The same seed and calls give the same choices, scores, predictions and counts, and the
// order in which endpoints were added changes none of them: not in a tie, not in a random draw, and not after hours.
func TestInvariantOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		key := rapid.Uint64Min(1).Draw(rt, "order")
		seed := rapid.Uint64Range(1, 100).Draw(rt, "seed")
		one := newWorld(rt, options{seed: seed, healthy: true}) // stages that panic do so by slot
		other := newWorld(rt, options{seed: seed, healthy: true, order: func(all []endpick.Endpoint) []endpick.Endpoint {
			slices.SortFunc(all, func(a, b endpick.Endpoint) int {
				return cmp.Compare(engine.Mix(key^endpick.Salt(a.ID)), engine.Mix(key^endpick.Salt(b.ID)))
			})
			return all
		}})
		for _, s := range draw(rt) {
			if s.kind == "set" {
				slices.Reverse(s.endpoints)
			}
			a := one.apply(s)
			if s.kind == "set" {
				slices.Reverse(s.endpoints)
			}
			same(one, a, other.apply(s), "with the endpoints in another order")
		}
		if a, b := one.router.Stats(), other.router.Stats(); a != b {
			one.failf("%+v and, with the endpoints in another order, %+v", a, b)
		}
	})
}

// same fails if two worlds decided differently.
func same(w *world, a, b *decision, where string) {
	if (a == nil) != (b == nil) {
		w.failf("one world routed, the other, %s, did not", where)
	}
	if a != nil && a.String() != b.String() {
		w.failf("one decision:\n  %v\n%s:\n  %v", a, where, b)
	}
}

// More load never makes an endpoint look better to scorers of load: an endpoint that
// was not chosen is not chosen for being busier. A longer match never makes one look
// worse to scorers of matches: the chosen endpoint is still chosen with a longer
// match. And without targets, no candidate ranks behind another of its weight with an equal or longer predicted latency.
func TestInvariantMonotone(t *testing.T) {
	byLoad := []endpick.Scorer{scorer.QueueDepth(), scorer.KVUsage(), scorer.LeastLoaded(), scorer.LMetric(), scorer.Linear(0)}
	byMatch := []endpick.Scorer{scorer.PrefixAffinity(), scorer.LMetric(), scorer.Linear(0), scorer.Dynamo(0)}
	// pair returns two worlds with one history, in which this scorer alone decides.
	pair := func(rt *rapid.T, s endpick.Scorer) (one, other *world) {
		o := options{seed: rapid.Uint64Range(1, 100).Draw(rt, "seed"), healthy: true, policy: func(p *endpick.Policy) {
			p.Admitters, p.Filters, p.Picker = nil, nil, nil
			p.Scorers = []endpick.Weighted{{Scorer: s, Weight: 1}}
		}}
		one, other = newWorld(rt, o), newWorld(rt, o)
		for _, s := range draw(rt) {
			same(one, one.apply(s), other.apply(s), "the second time")
		}
		return one, other
	}
	t.Run("load", rapid.MakeCheck(func(rt *rapid.T) {
		one, other := pair(rt, rapid.SampledFrom(byLoad).Draw(rt, "scorer"))
		id := rapid.SampledFrom(ids).Draw(rt, "endpoint")
		load := endpick.Load{
			Waiting: float64(rapid.IntRange(0, 9).Draw(rt, "waiting")), Running: float64(rapid.IntRange(0, 9).Draw(rt, "running")),
			KVUsage: rapid.Float64Range(0, 0.5).Draw(rt, "KV usage"),
		}
		more := load
		more.Waiting += float64(rapid.IntRange(0, 9).Draw(rt, "more waiting"))
		more.Running += float64(rapid.IntRange(0, 9).Draw(rt, "more running"))
		more.KVUsage += rapid.Float64Range(0, 0.5).Draw(rt, "more KV usage")
		for _, other := range ids { // all report, or the busier one changes the mean assumed for those that don't
			one.router.Report(other, load)
		}
		for _, same := range ids {
			other.router.Report(same, load)
		}
		other.router.Report(id, more)
		req := endpick.Request{Model: "model-0", Blocks: prompt(1, rapid.IntRange(0, 40).Draw(rt, "blocks")), Stream: true}
		a, b := one.route(req), other.route(req)
		if a.err == nil && b.err == nil && a.id != id && b.id == id && reports(a) {
			one.failf("%s is chosen when it is busier, and was not before:\n  %v\n  %v", id, a, b)
		}
	}))
	t.Run("match", rapid.MakeCheck(func(rt *rapid.T) {
		one, other := pair(rt, rapid.SampledFrom(byMatch).Draw(rt, "scorer"))
		to := rapid.IntRange(0, len(ids)-1).Draw(rt, "endpoint")
		n := rapid.IntRange(0, 40).Draw(rt, "blocks")
		for _, x := range []struct {
			w      *world
			blocks []uint64
		}{{one, fresh(1, n)}, {other, prompt(1, n)}} {
			if d := x.w.route(endpick.Request{Model: "model-0", Blocks: x.blocks, Stream: true, Exclude: others(to)}); d.lease != nil {
				d.lease.FirstToken()
				d.lease.Done(endpick.Outcome{})
				d.lease.closed = true
			}
		}
		req := endpick.Request{Model: "model-0", Blocks: prompt(1, 40), Stream: true}
		a, b := one.route(req), other.route(req)
		if a.err == nil && b.err == nil && a.id == ids[to] && b.id != ids[to] {
			one.failf("%s is not chosen when it holds more, and was before:\n  %v\n  %v", ids[to], a, b)
		}
	}))
	t.Run("latency", rapid.MakeCheck(func(rt *rapid.T) {
		fit := rig.Must(slo.NewBestFit(slo.BestFitConfig{DisableExploration: true}))
		w := newWorld(rt, options{healthy: true, policy: func(p *endpick.Policy) { p.Scorers = []endpick.Weighted{{Scorer: fit, Weight: 1}} }})
		for _, s := range draw(rt) {
			s.request.SLO, s.request.Stream = endpick.SLO{}, true
			d := w.apply(s)
			if d == nil || d.err != nil {
				continue
			}
			for i := range d.receipt.Verdicts {
				for j := range d.receipt.Verdicts {
					x, y := &d.receipt.Verdicts[i], &d.receipt.Verdicts[j]
					p, q := &x.Candidate.Prediction, &y.Candidate.Prediction
					both, weighted := endpick.TTFT|endpick.TPOT, x.Candidate.Endpoint.Weight != y.Candidate.Endpoint.Weight // which multiplies the score
					if p.Has&q.Has&both != both || x.RemovedBy+y.RemovedBy != "" || weighted {
						continue
					}
					if p.TTFT <= q.TTFT && p.TPOT <= q.TPOT && x.Score < y.Score {
						w.failf("%s is behind %s, and is no slower: %v", x.Candidate.Endpoint.ID, y.Candidate.Endpoint.ID, d)
					}
				}
			}
		}
	}))
}

// reports tells whether all candidates report: one that does not is assumed to be
// at the mean of those that do, which grows when one of them does.
func reports(d *decision) bool {
	return !slices.ContainsFunc(d.receipt.Verdicts, func(v endpick.Verdict) bool {
		return v.Candidate.Reported != endpick.WaitingSignal|endpick.RunningSignal|endpick.KVUsageSignal
	})
}

// A broken part loses its say and does no other harm: a report with impossible
// signals counts as one without them, and an endpoint without a prediction, or
// whose scorer, filter or observer panics, does not stop the others.
func TestInvariantFailOpen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := options{seed: rapid.Uint64Range(1, 100).Draw(rt, "seed")}
		one, other := newWorld(rt, o), newWorld(rt, o)
		for _, s := range draw(rt) {
			a := one.apply(s) // fails if a request is dropped
			absent(&s.load)
			same(one, a, other.apply(s), "with what is impossible left out of reports")
		}
		one.closeAll()
	})
}

// absent removes impossible values from a report.
func absent(l *endpick.Load) {
	for _, s := range []struct {
		signal endpick.Signals
		value  *float64
		most   float64
	}{{endpick.WaitingSignal, &l.Waiting, math.MaxInt32}, {endpick.RunningSignal, &l.Running, math.MaxInt32}, {endpick.KVUsageSignal, &l.KVUsage, 1}} {
		if !(*s.value >= 0 && *s.value <= s.most) || l.Absent&s.signal != 0 {
			l.Absent |= s.signal
			*s.value = math.NaN() // and is not read
		}
	}
}

// Absent is not zero: without a signal, an endpoint is assumed to have the mean load, beside this
// router's own requests, of those that report it; what an engine has not said of its cache is not "nothing"; and a target
// that is not above zero is none.
func TestInvariantAbsentIsNotZero(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := options{seed: rapid.Uint64Range(1, 100).Draw(rt, "seed")}
		one, other := newWorld(rt, o), newWorld(rt, o)
		for _, s := range draw(rt) {
			a := one.apply(s)
			if !s.outcome.HasCachedTokens {
				s.outcome.CachedTokens = 0
			} else if s.outcome.CachedTokens < 0 {
				s.outcome.HasCachedTokens = false
			}
			s.request.SLO.TTFT, s.request.SLO.TPOT = max(s.request.SLO.TTFT, 0), max(s.request.SLO.TPOT, 0)
			same(one, a, other.apply(s), "with what is absent in another form")
			if a == nil || a.err != nil {
				continue
			}
			means(one, a.receipt.Verdicts)
		}
	})
}

// means checks that a missing signal never looks idle.
func means(w *world, verdicts []endpick.Verdict) {
	for _, s := range []struct {
		signal endpick.Signals
		name   string
		of     func(c *endpick.Candidate) float64
		own    func(f endpick.InFlight) int
		none   float64
	}{
		{endpick.WaitingSignal, "W", func(c *endpick.Candidate) float64 { return c.Waiting }, func(f endpick.InFlight) int { return f.Prefilling }, 0},
		{endpick.RunningSignal, "R", func(c *endpick.Candidate) float64 { return c.Running }, func(f endpick.InFlight) int { return f.Requests - f.Prefilling }, 0},
		{endpick.KVUsageSignal, "K", func(c *endpick.Candidate) float64 { return c.KVUsage }, func(endpick.InFlight) int { return 0 }, 0.5},
	} {
		var told []float64
		for i := range verdicts {
			if c := &verdicts[i].Candidate; c.Reported&s.signal != 0 {
				v := max(s.of(c)-float64(s.own(c.InFlight)), 0)
				if both := endpick.WaitingSignal | endpick.RunningSignal; s.signal&both != 0 && c.Reported&both == both {
					v = min(v, max(c.BatchSize()-float64(c.InFlight.Requests), 0))
				}
				told = append(told, v)
			}
		}
		mean := s.none
		if len(told) > 0 {
			mean = 0
			slices.Sort(told)
			for i, v := range told {
				if i > 0 && i == len(told)-1 { // it may report anything
					v = min(v, max(4*told[i-1], 64/float64(i)))
				}
				mean += v / float64(len(told))
			}
		}
		for i := range verdicts {
			c := &verdicts[i].Candidate
			own := float64(s.own(c.InFlight))
			if v := s.of(c); c.Reported&s.signal == 0 && math.Abs(v-own-mean) > 1e-9*(own+mean) {
				w.failf("%s does not report %s, which counts as %v: %v of this router, and the mean of %v is %v", c.Endpoint.ID, s.name, v, own, told, mean)
			}
		}
	}
}

// A match is a prefix of the prompt without gaps, at least one token shorter, of something sent to this very endpoint.
func TestInvariantMatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, options{})
		sent := map[endpick.EndpointRef][][]uint64{}
		for _, s := range draw(rt) {
			s.request.BlockTokens = 0 // only blocks of one length are compared
			if s.kind == "done" && len(w.leases) > 0 {
				l := w.leaseOf(s.lease)
				sent[l.ref] = append(sent[l.ref], s.outcome.Blocks)
			}
			d := w.apply(s)
			if d == nil || d.err != nil {
				continue
			}
			req := s.request
			if s.kind == "retry" {
				req.Blocks = prompt(1, 10)
			}
			for i := range d.receipt.Verdicts {
				c := &d.receipt.Verdicts[i].Candidate
				most := 0
				for _, p := range sent[c.Ref] {
					n := 0
					for n < min(len(p), len(req.Blocks)) && p[n] == req.Blocks[n] {
						n++
					}
					most = max(most, n)
				}
				if h := c.PrefixTokens; h < 0 || h > max(d.receipt.InputTokens-1, 0) || h > most*endpick.DefaultBlockTokens {
					w.failf("%s is said to hold %d of %d tokens, and what it was sent shares %d blocks", c.Endpoint.ID, h, d.receipt.InputTokens, most)
				}
			}
			sent[d.lease.ref] = append(sent[d.lease.ref], slices.Clone(req.Blocks))
		}
	})
}
