package scorertest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// RunAdmitter checks what every admitter must do. A refusal has a reason in words. The same
// request gets the same answer, whatever the order of candidates. Request and candidates
// are not changed, and nothing of them is kept. No clock is read. An admitter that counts
// what it admits gives it back, at once or in time, however requests end, and at once
// if they are withdrawn; it counts requests that have been adopted, for which Admit is not called, and
// admits no more because of them. It may be called concurrently. newAdmitter returns an
// admitter without history; it is called many times.
func RunAdmitter(t *testing.T, newAdmitter func(*testing.T) endpick.Admitter, labels ...map[string]string) {
	t.Helper()
	checkAdmitter(suiteOf(t, labels...), newAdmitter)
}

// admission is an admitter's answer, and its reason.
type admission struct{ err error }

func (a admission) String() string { return answer(a.err) }

func checkAdmitter(s suite, newAdmitter func(*testing.T) endpick.Admitter) {
	r := role{
		kind: "admitter", method: "Admit", says: "Admit says", chance: "Request.Chance", draw: s.trial,
		fresh: func(t *testing.T) answering { return admits(newAdmitter(t)) },
	}
	ask := func(c *trial, stage answering) admission { return c.ask(r, stage).(admission) }
	hears(s, newAdmitter)
	s.property("reason", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		a := ask(&c, r.fresh(t))
		if v := reflect.ValueOf(a.err); v.Kind() == reflect.Pointer && v.IsNil() {
			c.failf("Admit refuses with a nil %T, which is no reason: it returns nil to admit", a.err)
		} else if a.err != nil && a.err.Error() == "" {
			c.failf("Admit refuses without a word: who is refused is told why")
		}
	})
	s.property("repeated", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		if one, two := ask(&c, r.fresh(t)), ask(&c, r.fresh(t)); !alike(one, two) {
			c.failf("Admit says %v, and another admitter without history %v: the same input has the same answer, with chance from Request.Chance",
				one, two)
		}
	})
	r.inAnyOrder(s)
	r.changesNothing(s, "an admitter answers and no more")
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		one, other := r.fresh(t), r.fresh(t)
		_ = ask(&c, one)
		c.scribbled("Admit", other)
		if a, b := ask(&c, one), ask(&c, other); !alike(a, b) {
			c.failf("Admit says %v the second time, and %v after the memory of the first call was used again: a stage keeps nothing that it was given", a, b)
		}
	})
	s.property("given back", func(t *testing.T, rt *rapid.T) { givenBack(t, rt, newAdmitter) })
	s.property("under way", func(t *testing.T, rt *rapid.T) { adopted(rt, newAdmitter(t)) })
	s.property("not asked", func(t *testing.T, rt *rapid.T) {
		notAsked(t, rt, func(t *testing.T) endpick.Policy {
			return endpick.Policy{Admitters: []endpick.Admitter{newAdmitter(t)}}
		})
	})
	r.needsNoClock(s)
	s.once("concurrency", func(t *testing.T) string {
		stage := newAdmitter(t)
		return concurrently(func(i int) {
			req, candidates := example(i)
			for range 100 {
				if w, ok := stage.(interface{ Withdrawn(*endpick.Request) }); stage.Admit(&req, candidates) == nil && ok {
					w.Withdrawn(&req)
				}
			}
		})
	})
}

func admits(a endpick.Admitter) answering {
	return func(req *endpick.Request, candidates []endpick.Candidate, _ []float64) any {
		return admission{a.Admit(req, candidates)}
	}
}

// adopted routes requests, some of which have been sent already and are not refused.
func adopted(rt *rapid.T, stage endpick.Admitter) {
	panicked := error(nil)
	r := routerWith(rt, endpick.Config{
		Policy: endpick.Policy{Admitters: []endpick.Admitter{stage}}, Warn: func(err error) { panicked = err },
	}, "server-0")
	for range rapid.IntRange(1, 20).Draw(rt, "requests") {
		req := drawRequest(rt, "request")
		req.Adapter = ""
		if rapid.Bool().Draw(rt, "adopted") {
			req.Adopted = &endpick.Adopted{Endpoint: "server-0"}
		}
		lease, err := r.Route(req)
		if err != nil && (req.Adopted != nil || !errors.As(err, new(*endpick.RejectedError))) {
			rt.Fatalf("Route: %v\nThe smallest case:\n  %s", err, showRequest(&req))
		}
		if rapid.Bool().Draw(rt, "ends") {
			lease.Done(endpick.Outcome{})
		}
		if panicked != nil {
			rt.Fatalf("%v: adopted requests are counted without Admit\nThe smallest case:\n  %s", panicked, showRequest(&req))
		}
	}
}

// gate is an admitter that refuses while it is shut.
type gate struct{ shut bool }

func (g *gate) Admit(*endpick.Request, []endpick.Candidate) error {
	if g.shut {
		return errors.New("it is shut")
	}
	return nil
}

// givenBack sends requests that end in one way, and one more, long after them or if they were not
// routed at once, which is to be let in as it would have been before them.
func givenBack(t *testing.T, rt *rapid.T, newAdmitter func(*testing.T) endpick.Admitter) {
	req := drawRequest(rt, "request")
	req.Adapter = ""
	ends := rapid.SampledFrom([]string{"were answered", "clients gave up", "nothing was heard any more of", "another admitter refused"}).Draw(rt, "end")
	now, another := time.Unix(1e6, 0), &gate{shut: ends == "another admitter refused"}
	fresh := func() *endpick.Router {
		return routerWith(rt, endpick.Config{
			Policy: endpick.Policy{Admitters: []endpick.Admitter{newAdmitter(t), another}}, Clock: func() time.Time { return now },
		}, "server-0")
	}
	r, n := fresh(), rapid.IntRange(1, 200).Draw(rt, "requests")
	for range n {
		lease, err := r.Route(req)
		switch {
		case err == nil && ends == "were answered":
			lease.Tokens(10)
			lease.Done(endpick.Outcome{OutputTokens: 10})
		case err == nil && ends == "clients gave up":
			lease.Done(endpick.Outcome{Status: endpick.Canceled})
		}
	}
	when := "right after"
	if !another.shut {
		when, now = "ten years after", now.AddDate(10, 0, 0)
	}
	another.shut = false
	r.Sweep(now)
	_, err := r.Route(req)
	if _, never := fresh().Route(req); never == nil && err != nil {
		rt.Fatalf("Admit says yes to the first request, and %s %d that %s %s: what was taken for them is never given back (see endpick.Admitter)\nThe smallest case:\n  %s",
			when, n, ends, answer(err), showRequest(&req))
	}
}

// notAsked sends the same requests to two routers, each with a policy of its own. One
// had other requests before, of which its admitters were notified without being asked,
// and which have ended: they must not leave more room behind than there was.
func notAsked(t *testing.T, rt *rapid.T, newPolicy func(*testing.T) endpick.Policy) {
	req := drawRequest(rt, "request")
	req.Model, req.Adapter = "", ""
	n, mirrored := rapid.IntRange(1, 20).Draw(rt, "before"), rapid.Bool().Draw(rt, "mirrored")
	letIn := func(before int) (n int) {
		now := time.Unix(1e6, 0)
		r := routerWith(rt, endpick.Config{Policy: newPolicy(t), Clock: func() time.Time { return now }}, "server-0")
		for range before {
			other := req
			other.Adopted = &endpick.Adopted{Endpoint: "server-0", Mirrored: mirrored}
			lease, err := r.Route(other)
			if err != nil {
				rt.Fatalf("Route of a request that nobody is to be asked about: %v", err)
			}
			lease.Tokens(10)
			lease.Done(endpick.Outcome{OutputTokens: 10})
		}
		for n = 0; n < 50; n++ {
			if _, err := r.Route(req); err != nil {
				break
			}
		}
		return n
	}
	if fresh, after := letIn(0), letIn(n); after > fresh {
		which := "were adopted (Request.Adopted)"
		if mirrored {
			which = "another router had sent (Adopted.Mirrored)"
		}
		rt.Fatalf("%d requests are let in at one time, and %d after %d that %s and have ended: Done gives back what nobody took, "+
			"since Routed has to count what Admit was not asked about\nThe smallest case:\n  %s", fresh, after, n, which, showRequest(&req))
	}
}

func answer(err error) string {
	if err == nil {
		return "yes"
	}
	return "no (" + err.Error() + ")"
}
