package whole

import (
	"math"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

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
			for _, v := range told {
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

// A match is a prefix of the prompt without gaps, at least one token shorter, of
// something sent to this very endpoint.
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
