package scorertest

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// suite runs the checks of one kit. Those of the kits are subtests of t; the
// kits' own tests collect the failures.
type suite struct {
	// property checks on random input. It must fail through rt only, so that rapid
	// shrinks the case.
	property func(name string, check func(t *testing.T, rt *rapid.T))
	// once checks a single time, and returns what is wrong, if anything.
	once func(name string, check func(t *testing.T) string)
	// labels are what endpoints may have instead of none.
	labels []map[string]string
}

func suiteOf(t *testing.T, labels ...map[string]string) suite {
	run := untilOneFails(t.Run)
	return suite{
		labels: labels,
		property: func(name string, check func(*testing.T, *rapid.T)) {
			run(name, func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) { check(t, rt) })
			})
		},
		once: func(name string, check func(*testing.T) string) {
			run(name, func(t *testing.T) {
				if fault := check(t); fault != "" {
					t.Fatal(fault)
				}
			})
		},
	}
}

// untilOneFails runs checks up to the first that fails: what later ones presume does not hold
// then, and what they say would mislead.
func untilOneFails(run func(string, func(*testing.T)) bool) func(string, func(*testing.T)) {
	holds := true
	return func(name string, check func(*testing.T)) { holds = holds && run(name, check) }
}

// trial is the input of a stage in one case, to be shown if the stage fails.
type trial struct {
	rt         *rapid.T
	req        endpick.Request
	candidates []endpick.Candidate
	scores     []float64 // of the candidates, for pickers
}

const mostCandidates = 16

// trial draws a case.
func (s suite) trial(rt *rapid.T) trial { return s.of(rt, mostCandidates) }

// of draws a case with so many candidates at most.
func (s suite) of(rt *rapid.T, most int) trial {
	c := draw(rt, most)
	if len(s.labels) == 0 {
		return c
	}
	for i := range c.candidates {
		if n := rapid.IntRange(0, len(s.labels)).Draw(rt, "labels"); n > 0 {
			c.candidates[i].Endpoint.Labels = s.labels[n-1]
		}
	}
	return c
}

func draw(rt *rapid.T, most int) trial {
	c := trial{rt: rt, req: drawRequest(rt, "request")}
	c.candidates = Candidates(c.req, most).Draw(rt, "candidates")
	return c
}

// drawRequest draws a request that rapid prints in words.
func drawRequest(rt *rapid.T, label string) endpick.Request {
	return endpick.Request(rapid.Map(Requests(), func(r endpick.Request) drawn { return drawn(r) }).Draw(rt, label))
}

type drawn endpick.Request

// GoString returns what rapid prints.
func (d drawn) GoString() string {
	return strings.TrimPrefix(showRequest((*endpick.Request)(&d)), "request: ")
}

// drawnCandidates are candidates that rapid prints in words, since Endpoint and Report are
// pointers.
type drawnCandidates []endpick.Candidate

// GoString returns what rapid prints.
func (d drawnCandidates) GoString() string { return showCandidates(d) }

// failf ends the case with what is wrong, followed by the case.
func (c *trial) failf(format string, args ...any) {
	c.rt.Fatalf("%s\n%s", fmt.Sprintf(format, args...), c.show())
}

// call calls a stage, which must not panic.
func (c *trial) call(what string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			c.failf("%s panicked, so that the router ignores its result: %v%s", what, v, origin())
		}
	}()
	f()
}

// origin is where the recovered panic was raised.
func origin() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") && f.Function != "" {
			return fmt.Sprintf(" (in %s)", f.Function[strings.LastIndexByte(f.Function, '/')+1:])
		}
		if !more {
			return ""
		}
	}
}

// story is what has happened in one case, to be shown if a stage fails.
type story struct{ steps []string }

func (s *story) did(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

func (s *story) failf(rt rapid.TB, format string, args ...any) {
	msg := fmt.Sprintf(format, args...) + "\nThe smallest case:"
	if len(s.steps) == 0 {
		msg += "\n  nothing was routed"
	}
	rt.Fatalf("%s", strings.Join(append([]string{msg}, s.steps...), "\n  "))
}

// routerWith returns a router with a policy that has one stage.
func routerWith(t rapid.TB, config endpick.Config, ids ...string) *endpick.Router {
	t.Helper()
	config.Seed = 1
	for _, id := range ids {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id})
	}
	r, err := endpick.New(config)
	if err != nil {
		t.Fatalf("a router with this stage alone: %v", err)
	}
	return r
}

// shuffled is the case with its candidates in another order.
func (c *trial) shuffled() trial {
	other := *c
	other.candidates = reordered(c.rt, c.candidates, func(c endpick.Candidate) string { return c.Endpoint.ID })
	if c.scores != nil {
		other.scores = make([]float64, len(c.scores))
		for i, id := range names(other.candidates) {
			other.scores[i] = c.scores[slices.Index(names(c.candidates), id)]
		}
	}
	return other
}

func (c *trial) withScores() string {
	if c.scores == nil {
		return ""
	}
	return fmt.Sprintf(", with scores %v", c.scores)
}

// concurrently calls f in several goroutines at once, each with a number, and
// returns the value of a panic. The race detector finds the rest.
func concurrently(f func(i int)) (fault string) {
	var wg sync.WaitGroup
	var once sync.Once
	for i := range 4 {
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					where := origin()
					once.Do(func() { fault = fmt.Sprintf("the stage panicked when it was called concurrently: %v%s", v, where) })
				}
			}()
			f(i)
		})
	}
	wg.Wait()
	return fault
}

// concurrentRequests routes and ends requests from several goroutines while an endpoint comes
// and goes, and returns what went wrong.
func concurrentRequests(r *endpick.Router, model string, churned endpick.Endpoint) string {
	fault := concurrently(func(i int) {
		for n := range 100 {
			lease, err := r.Route(endpick.Request{Model: model, Blocks: prompt(uint64((i+n)%families), 1+n%20), Stream: n%2 > 0})
			if err == nil {
				lease.FirstToken()
				lease.Tokens(2)
				lease.Done(endpick.Outcome{OutputTokens: 2})
			}
			if i == 0 && n%10 == 9 && r.Remove(churned.ID) == nil {
				_ = r.Add(churned)
			}
		}
	})
	return cmp.Or(fault, panics(r))
}

// overwrite replaces blocks by ones that nobody has sent, as callers who use their memory again.
func overwrite(blocks []uint64) {
	for i := range blocks {
		blocks[i] = ^blocks[i]
	}
}

// example is fixed input, for checks that are not properties.
func example(i int) (endpick.Request, []endpick.Candidate) {
	req := Requests().Example(i)
	return req, Candidates(req, mostCandidates).Example(i)
}
