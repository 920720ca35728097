package scorertest

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// RunAdmitter checks what holds for every admitter: a refusal has a reason in
// words; the same request meets the same answer, in whatever order the candidates
// come; request and candidates stay as they were, and nothing is kept of them; an
// admitter that keeps account of what it lets in takes back what is withdrawn, and
// survives requests that are under way, which it is told of without having been
// asked; it may be called concurrently. newAdmitter returns an admitter without
// history; it is called many times.
func RunAdmitter(t *testing.T, newAdmitter func(*testing.T) endpick.Admitter) {
	t.Helper()
	checkAdmitter(suiteOf(t), newAdmitter)
}

func checkAdmitter(s suite, newAdmitter func(*testing.T) endpick.Admitter) {
	s.property("reason", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		if err := c.admitted(newAdmitter(t)); err != nil && err.Error() == "" {
			c.failf("Admit refuses without a word: who is refused is told why")
		}
	})
	s.property("order", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		other := c.shuffled()
		if one, two := c.admitted(newAdmitter(t)), other.admitted(newAdmitter(t)); (one == nil) != (two == nil) {
			c.failf("Admit says %v of candidates in this order and %v in the order %v: a candidate's place says nothing about it",
				answer(one), answer(two), names(other.candidates))
		}
	})
	s.property("repeated", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		if one, two := c.admitted(newAdmitter(t)), c.admitted(newAdmitter(t)); (one == nil) != (two == nil) {
			c.failf("Admit says %v, and another admitter without history %v: the same input has the same answer, with chance from Request.Chance",
				answer(one), answer(two))
		}
	})
	s.property("input", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		req, candidates := c.copied()
		stage := newAdmitter(t)
		c.call("Admit", func() { _ = stage.Admit(&req, candidates) })
		c.unchanged("Admit", &req, candidates, "an admitter answers and no more")
	})
	s.property("withdrawn", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		stage := newAdmitter(t)
		w, ok := stage.(interface{ Withdrawn(*endpick.Request) })
		if !ok {
			return
		}
		for i := range 200 {
			switch err := c.admitted(stage); {
			case err == nil:
				req, _ := c.copied()
				c.call("Withdrawn", func() { w.Withdrawn(&req) })
			case i == 0:
				return
			default:
				c.failf("Admit says yes, and after %d such requests were let in and withdrawn at the same moment %s: Withdrawn gives back what Admit took",
					i, answer(err))
			}
		}
	})
	s.property("under way", func(t *testing.T, rt *rapid.T) {
		stage := newAdmitter(t)
		panicked := error(nil)
		r, err := endpick.New(endpick.Config{
			Policy: endpick.Policy{Admitters: []endpick.Admitter{stage}}, Seed: 1, Endpoints: []endpick.Endpoint{{ID: "server-0"}},
			Warn: func(err error) { panicked = err },
		})
		if err != nil {
			rt.Fatalf("a router with this stage alone: %v", err)
		}
		for range rapid.IntRange(1, 20).Draw(rt, "requests") {
			req := Requests().Draw(rt, "request")
			req.Adapter, req.UnderWay = "", rapid.Bool().Draw(rt, "under way")
			lease, err := r.Route(req)
			if err != nil && (req.UnderWay || !errors.Is(err, endpick.ErrRejected)) {
				rt.Fatalf("Route: %v\nThe smallest case:\n  %s", err, showRequest(&req))
			}
			if rapid.Bool().Draw(rt, "ends") {
				lease.Done(endpick.Outcome{})
			}
			if panicked != nil {
				rt.Fatalf("%v: requests that are under way are counted without Admit\nThe smallest case:\n  %s", panicked, showRequest(&req))
			}
		}
	})
	s.once("concurrency", func(t *testing.T) string {
		stage := newAdmitter(t)
		return concurrently(func(i int) {
			req, candidates := example(i)
			for range 100 {
				if err := stage.Admit(&req, candidates); err == nil {
					if w, ok := stage.(interface{ Withdrawn(*endpick.Request) }); ok {
						w.Withdrawn(&req)
					}
				}
			}
		})
	})
}

func (c *trial) admitted(a endpick.Admitter) (err error) {
	req, candidates := c.copied()
	c.call("Admit", func() { err = a.Admit(&req, candidates) })
	return err
}

func answer(err error) string {
	if err == nil {
		return "yes"
	}
	return "no (" + err.Error() + ")"
}
