package scorertest

import (
	"cmp"
	"reflect"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// RunPredictor checks what every predictor must do, before it has learned anything and
// after requests on a router. It writes Predictions and nothing else. No latency is
// negative, no bound is below the expected value, and nothing outside of Has is written.
// A candidate's prediction depends neither on the others nor on its position. The same
// input gets the same prediction, whatever a clock says. It keeps nothing of its input.
// It may be called concurrently. newPredictor returns a predictor without history; if it
// learns, it must do so within the router's calls (see
// predict.LatencyConfig.Synchronous). It is called many times.
func RunPredictor(t *testing.T, newPredictor func(*testing.T) endpick.Predictor, labels ...map[string]string) {
	t.Helper()
	checkPredictor(suiteOf(t, labels...), newPredictor)
}

func checkPredictor(s suite, newPredictor func(*testing.T) endpick.Predictor) {
	stage := func(t *testing.T, rt *rapid.T) endpick.Predictor {
		return taught(t, rt, newPredictor, 1)[0]
	}
	hears(s, newPredictor)
	s.property("predictions", func(t *testing.T, rt *rapid.T) {
		p := stage(t, rt)
		c := s.unpredicted(rt)
		_, candidates := c.predicted(p)
		for i := range candidates {
			if fault := wrongPrediction(&candidates[i].Prediction); fault != "" {
				c.failf("Predict says of %s: %s", candidates[i].Endpoint.ID, fault)
			}
		}
	})
	s.property("alone", func(t *testing.T, rt *rapid.T) {
		p := stage(t, rt)
		c := s.unpredicted(rt)
		_, all := c.predicted(p)
		for i := range all {
			one := c
			one.candidates = c.candidates[i : i+1 : i+1]
			if _, alone := one.predicted(p); alone[0].Prediction != all[i].Prediction {
				c.failf("Predict says of %s %v among these candidates, and %v alone: each is predicted independently of the others",
					all[i].Endpoint.ID, all[i].Prediction, alone[0].Prediction)
			}
		}
		other := c.shuffled()
		_, moved := other.predicted(p)
		for i := range moved {
			if want := find(all, moved[i].Endpoint.ID); want.Prediction != moved[i].Prediction {
				c.failf("Predict says of %s %v in this order and %v in the order %v: it must not depend on the order of candidates",
					moved[i].Endpoint.ID, want.Prediction, moved[i].Prediction, names(other.candidates))
			}
		}
	})
	s.property("input", func(t *testing.T, rt *rapid.T) {
		p := stage(t, rt)
		c := s.unpredicted(rt)
		req, candidates := c.predicted(p)
		for i := range candidates {
			candidates[i].Prediction = c.candidates[i].Prediction
		}
		c.unchanged("Predict", &req, candidates, "a predictor writes Predictions alone")
	})
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		both := taught(t, rt, newPredictor, 2)
		c := s.unpredicted(rt)
		_, want := c.predicted(both[0])
		c.scribbled("Predict", predictions(both[1]))
		if _, got := c.predicted(both[1]); !reflect.DeepEqual(want, got) {
			c.failf("Predict says something else after the memory of an earlier call was used again: a stage keeps nothing that it was given, " +
				"and what is learned is learned by observers")
		}
	})
	r := role{method: "Predict", chance: "Request.Chance", fresh: func(t *testing.T) answering { return predictions(newPredictor(t)) }}
	s.once("clock", func(t *testing.T) string {
		learned := role{method: "Predict", chance: "Request.Chance", fresh: func(t *testing.T) answering {
			p := newPredictor(t)
			teach(t, endpick.Policy{Predictor: p}, 60)
			return predictions(p)
		}}
		return cmp.Or(r.dayLater(t, 20), learned.dayLater(t, 1))
	})
	r.runsConcurrently(s)
}

func predictions(p endpick.Predictor) answering {
	return func(req *endpick.Request, candidates []endpick.Candidate, _ []float64) any {
		for i := range candidates {
			candidates[i].Prediction = endpick.Prediction{}
		}
		p.Predict(req, candidates)
		var all []endpick.Prediction
		for i := range candidates {
			all = append(all, candidates[i].Prediction)
		}
		return all
	}
}

// taught returns n predictors that have learned the same, or nothing.
func taught(t *testing.T, rt *rapid.T, newPredictor func(*testing.T) endpick.Predictor, n int) (all []endpick.Predictor) {
	learned := rapid.Bool().Draw(rt, "has learned")
	for range n {
		p := newPredictor(t)
		if learned {
			teach(rt, endpick.Policy{Predictor: p}, 60)
		}
		all = append(all, p)
	}
	return all
}

// unpredicted draws the input of a predictor.
func (s suite) unpredicted(rt *rapid.T) trial {
	c := s.of(rt, 6)
	for i := range c.candidates {
		c.candidates[i].Prediction = endpick.Prediction{}
	}
	return c
}

func (c *trial) predicted(p endpick.Predictor) (endpick.Request, []endpick.Candidate) {
	req, candidates := c.copied()
	c.call("Predict", func() { p.Predict(&req, candidates) })
	return req, candidates
}

// wrongPrediction says what is wrong with a prediction, if anything.
func wrongPrediction(p *endpick.Prediction) string {
	if p.Has&^(endpick.TTFT|endpick.TPOT|endpick.E2E) != 0 {
		return "Has names latencies that there are none of"
	}
	for _, l := range latenciesOf(p) {
		switch {
		case p.Has&l.has == 0 && (l.expected != 0 || l.upper != 0):
			return l.name + " is given and not in Has: what is unknown stays out of both"
		case l.expected < 0:
			return l.name + " is " + l.expected.String() + ": no latency is negative"
		case l.upper < l.expected:
			return l.name + " is " + l.expected.String() + " and at most " + l.upper.String() + ": the bound is never below what is expected"
		}
	}
	return ""
}

// latency is one of those of a prediction.
type latency struct {
	has             endpick.Latencies
	name            string
	expected, upper time.Duration
}

func latenciesOf(p *endpick.Prediction) []latency {
	return []latency{
		{endpick.TTFT, "TTFT", p.TTFT, p.TTFTUpper}, {endpick.TPOT, "TPOT", p.TPOT, p.TPOTUpper}, {endpick.E2E, "E2E", p.E2E, p.E2EUpper},
	}
}

// teach runs successful requests through a router with the policy.
func teach(rt rapid.TB, p endpick.Policy, requests int) {
	now := time.Unix(0, 0)
	r := routerWith(rt, endpick.Config{Policy: p, Clock: func() time.Time { return now }, Endpoints: []endpick.Endpoint{{ID: "server-1", Variant: "a"}}}, "server-0")
	for i := range requests {
		lease, err := r.Route(endpick.Request{Model: "model", InputTokens: 1 + i*37%4000, Stream: i%3 > 0})
		if err != nil {
			rt.Fatalf("Route: %v", err)
		}
		now = now.Add(time.Duration(10+i*13%400) * time.Millisecond)
		if i%3 > 0 {
			lease.FirstToken()
		}
		now = now.Add(time.Second)
		lease.Tokens(50)
		lease.Done(endpick.Outcome{OutputTokens: 50})
	}
	if s := r.Stats(); s.Panics > 0 {
		rt.Fatalf("the stage panicked %d times while it heard of requests", s.Panics)
	}
}
