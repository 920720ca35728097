package main

import (
	"errors"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
)

func verdict(id string, score float64, change func(*endpick.Candidate)) endpick.Verdict {
	v := endpick.Verdict{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}}, Score: score}
	if change != nil {
		change(&v.Candidate)
	}
	return v
}

func removed(id, by string) endpick.Verdict {
	v := verdict(id, 0, nil)
	v.RemovedBy = by
	return v
}

func TestSaid(t *testing.T) {
	for want, a := range map[string]transport.ObservedAttempt{
		"served it": {Result: transport.Served, HTTP: 200}, "served the rest": {Result: transport.Served, HTTP: 200, Resumes: true},
		"could not be reached": {Result: transport.Unreachable}, "answered 503": {Result: transport.Erred, HTTP: 503},
		"was full": {Result: transport.Full, HTTP: 429}, "did not answer": {Result: transport.Broken}, "broke off its answer": {Result: transport.Broken, HTTP: 200},
		"was still busy with it when the client left": {Result: transport.Canceled},
	} {
		assert.Equal(t, want, said(&a))
	}
	of := func(id string, a transport.ObservedAttempt) transport.ObservedAttempt {
		a.Candidate.Endpoint = &endpick.Endpoint{ID: id}
		return a
	}
	refused, broken := of("a", transport.ObservedAttempt{Result: transport.Refused, HTTP: 404}), of("b", transport.ObservedAttempt{Result: transport.Broken, HTTP: 200})
	resumed := of("c", transport.ObservedAttempt{Result: transport.Broken, HTTP: 200, Resumes: true})
	all := []transport.ObservedAttempt{refused, broken, resumed, resumed}
	then := []string{"First a answered 404.", "why b.", "Then, because b broke off its answer, c was asked for the rest.", "Then, because c broke off its answer, c was asked for the rest."}
	assert.Equal(t, then, explained([]string{"why b."}, true, all))
	assert.Equal(t, then[1:3], explained([]string{"why b."}, true, all[1:3]))
	assert.Equal(t, []string{"First a answered 404, then b broke off its answer.", "nobody."}, explained([]string{"nobody."}, false, all[:2]))
	assert.Empty(t, explained(nil, true, nil))
	assert.Equal(t, `Passed over: a prompt of 9 tokens fits no endpoint for model "m": the longest context is 8.`, passed(&endpick.ContextError{Model: "m", InputTokens: 9, MaxContext: 8}))
}

// The decision worked out in docs/concepts.md, and other cases.
func TestWhy(t *testing.T) {
	a := verdict("a", 4.06e-06, func(c *endpick.Candidate) {
		c.Running, c.InFlight.PrefillTokens, c.PrefixTokens = 12, 9000, 608
	})
	b := verdict("b", 0.000165, func(c *endpick.Candidate) { c.Running = 2 })
	c := verdict("c", 7.81e-05, func(c *endpick.Candidate) { c.Waiting, c.Running, c.PrefixTokens = 3, 4, 208 })
	dear := verdict("y", 0.5, nil)
	dear.Why = "costs 20 ms, 10 above the least, most for its first token: its first token 18, its other tokens 2 = w 1 · TTFT 18 + …"
	for name, tc := range map[string]struct {
		receipt endpick.Receipt
		by      string
		want    []string
	}{
		"best": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b, c, a}, Chosen: 0, RunnerUp: 1},
			"load", []string{
				"b had the best score, 0.000165, before c with 7.81e-05.",
				"Compared with c: it holds ~208 fewer tokens of the prompt; 3 fewer requests wait for it; 2 fewer run on it.",
			},
		},
		"avoided": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b}, RunnerUp: -1, Avoided: []string{"a", "c"}},
			"health", []string{"Passed over: a (failing), c (without the model or API, or well since).", "b was the only server that could take it."},
		},
		"by chance": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b, c, a}, Chosen: 2, RunnerUp: 0},
			"chance", []string{
				"a scored 4.06e-06, and b 0.000165: the policy leaves something to chance.",
				"Compared with b: it holds ~608 more tokens of the prompt; it has 9000 more tokens of others to read first; 10 more run on it.",
			},
		},
		"equals": { // as far as anybody sees
			endpick.Receipt{Verdicts: []endpick.Verdict{verdict("x", 1.00001, nil), verdict("y", 1, nil), verdict("z", 1, nil)}, Chosen: 1, RunnerUp: 0},
			"chance", []string{"y scored 1, as did 2 others: chance decided.", "Their load and cached tokens are the same."},
		},
		"predicted": {
			endpick.Receipt{Verdicts: []endpick.Verdict{
				verdict("x", 0.9, func(c *endpick.Candidate) {
					c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 21 * time.Millisecond, TPOT: 8 * time.Millisecond}
				}),
				verdict("y", 0.1, func(c *endpick.Candidate) {
					c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 1500 * time.Millisecond, TPOT: 12500 * time.Microsecond}
				}),
			}, RunnerUp: 1},
			"load", []string{
				"x had the best score, 0.9, before y with 0.1.",
				"Compared with y: its first token was expected after 21 ms instead of 1.50 s; each further one in 8.0 ms instead of 12 ms.",
			},
		},
		"explained": {
			endpick.Receipt{Verdicts: []endpick.Verdict{verdict("x", 1, nil), dear}, RunnerUp: 1}, "load", []string{
				"x had the best score, 1, before y with 0.5.",
				"y costs 20 ms, 10 above the least, most for its first token: its first token 18, its other tokens 2.",
				"Their load and cached tokens are the same.",
			},
		},
		"one": {
			endpick.Receipt{Verdicts: []endpick.Verdict{
				verdict("x", 2, func(c *endpick.Candidate) {
					c.Waiting, c.Prediction = 1, endpick.Prediction{Has: endpick.TTFT, TTFT: 20_100 * time.Microsecond}
				}),
				verdict("y", 1, func(c *endpick.Candidate) {
					c.PrefixTokens, c.Running, c.Prediction = 1, 1, endpick.Prediction{Has: endpick.TTFT, TTFT: 20_200 * time.Microsecond}
				}),
			}, RunnerUp: 1},
			"load", []string{"x had the best score, 2, before y with 1.", "Compared with y: it holds ~1 fewer token of the prompt; 1 more request waits for it; 1 fewer runs on it."},
		},
		"alone": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1}, "only", []string{"a was the only server that could take it."},
		},
		"left": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Excluded: 1}, "health", []string{"a was the only one left."},
		},
		"limited": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Full: 2, TooShort: 1, Later: 1}, "limit", []string{
				"Not asked, because it has too short a context (max_context): 1 server.",
				"Not asked, because it has as many requests as it may (max_in_flight): 2 servers.",
				"Not asked, because it is of a later tier: 1 server.", "a was the only server that could take it.",
			},
		},
		"too short": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, TooShort: 1, Later: 1}, "context",
			[]string{"Not asked, because it has too short a context (max_context): 1 server.", "Not asked, because it is of a later tier: 1 server.", "a was the only server that could take it."},
		},
		"first tier": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Later: 1}, "tier",
			[]string{"Not asked, because it is of a later tier: 1 server.", "a was the only server that could take it."},
		},
		"filtered": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a, removed("y", "affinity gate"), removed("z", "affinity gate"), removed("w", "tier")}, RunnerUp: -1},
			"prefix", []string{"affinity gate set 2 servers aside.", "tier set 1 server aside.", "That left a."},
		},
		"filtered otherwise": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b, removed("y", "tier")}, RunnerUp: -1}, "room", []string{"tier set 1 server aside.", "That left b."},
		},
		"cached": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a, verdict("y", 1e-7, func(c *endpick.Candidate) { c.Running, c.InFlight.PrefillTokens, c.PrefixTokens = 12, 9000, 600 })}, RunnerUp: 1}, "prefix",
			[]string{"a had the best score, 4.06e-06, before y with 1e-07.", "Compared with y: it holds ~8 more tokens of the prompt."},
		},
		"no opinion": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Undecided: []string{"tier"}}, "only",
			[]string{"tier had no opinion: no server met it.", "a was the only server that could take it."},
		},
		"refused": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, Chosen: -1, RunnerUp: -1, Err: errors.New("too late")},
			"health", []string{"No server was chosen: too late."},
		},
		"unknown": {
			endpick.Receipt{Chosen: -1, Err: &endpick.NoEndpointError{Endpoints: 3}}, "health", []string{"None of 3 servers has the model."},
		},
		"nobody left": {
			endpick.Receipt{Chosen: -1, Err: &endpick.NoEndpointError{Endpoints: 4, Serving: 4, Excluded: 2, Full: 1, Draining: 1}},
			"health", []string{"No server was left: of 4, 4 have the model; 2 had failed this request or could not be asked; 1 had as many requests as they may; 1 being drained."},
		},
		"nobody asked": {
			endpick.Receipt{Chosen: -1, Err: &endpick.NoEndpointError{Endpoints: 4, Serving: 1, Excluded: 1}}, "health",
			[]string{"No server was left: of 4, 1 has the model; 1 had failed this request or could not be asked."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, why(&tc.receipt, func(id string) string { return map[string]string{"a": "failing"}[id] }))
			assert.Equal(t, tc.by, decidedBy(&tc.receipt, 9*time.Millisecond))
			assert.Equal(t, "queue", decidedBy(&tc.receipt, 10*time.Millisecond))
		})
	}
}
