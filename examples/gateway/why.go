package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// why explains a receipt in words: why the request went where it went. Health says why an endpoint is
// avoided.
func why(r *endpick.Receipt, health func(endpoint string) string) (all []string) {
	if len(r.Avoided) > 0 {
		var out []string
		for _, id := range r.Avoided {
			out = append(out, fmt.Sprintf("%s (%s)", id, cmp.Or(health(id), "without the model or API, or well since")))
		}
		all = append(all, "Passed over: "+strings.Join(out, ", ")+".")
	}
	for _, out := range []struct {
		n   int
		why string
	}{
		{r.TooShort, "has too short a context (max_context)"},
		{r.Full, "has as many requests as it may (max_in_flight)"},
		{r.Later, "is of a later tier"},
	} {
		if out.n > 0 {
			all = append(all, fmt.Sprintf("Not asked, because it %s: %s.", out.why, count(out.n, "server")))
		}
	}
	if r.Chosen >= 0 && r.Chosen < len(r.Verdicts) {
		return append(all, decided(r)...)
	}
	var none *endpick.NoEndpointError
	switch {
	case errors.As(r.Err, &none) && none.Serving == 0:
		all = append(all, fmt.Sprintf("None of %s has the model.", count(none.Endpoints, "server")))
	case errors.As(r.Err, &none):
		all = append(all, "No server was left: "+left(none))
	case r.Err != nil:
		all = append(all, "No server was chosen: "+strings.TrimPrefix(r.Err.Error(), "endpick: request rejected: ")+".")
	}
	return all
}

// decided is how the chosen server won over the others that were asked.
func decided(r *endpick.Receipt) (all []string) {
	chosen := &r.Verdicts[r.Chosen]
	best := chosen
	scored, tied := 0, 0
	removed := map[string]int{}
	var filters []string
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.RemovedBy != "" {
			if removed[v.RemovedBy]++; removed[v.RemovedBy] == 1 {
				filters = append(filters, v.RemovedBy)
			}
			continue
		}
		scored++
		if v.Score > best.Score {
			best = v
		}
		if i != r.Chosen && same(v, chosen) {
			tied++
		}
	}
	for _, f := range r.Undecided {
		all = append(all, f+" had no opinion: no server met it.")
	}
	for _, f := range filters {
		all = append(all, fmt.Sprintf("%s set %s aside.", f, count(removed[f], "server")))
	}
	id := chosen.Candidate.Endpoint.ID
	switch {
	case scored == 1 && len(filters) == 0:
		return append(all, id+map[bool]string{true: " was the only one left.", false: " was the only server that could take it."}[r.Excluded > 0])
	case scored == 1:
		return append(all, "That left "+id+".")
	case best.Score > chosen.Score && !same(best, chosen):
		all = append(all, fmt.Sprintf("%s scored %.4g, and %s %.4g: the policy leaves something to chance.", id, chosen.Score, best.Candidate.Endpoint.ID, best.Score))
	case tied > 0:
		all = append(all, fmt.Sprintf("%s scored %.4g, as did %s: chance decided.", id, chosen.Score, count(tied, "other")))
	default:
		next := &r.Verdicts[r.RunnerUp]
		all = append(all, fmt.Sprintf("%s had the best score, %.4g, before %s with %.4g.", id, chosen.Score, next.Candidate.Endpoint.ID, next.Score))
		if next.Why != "" { // without the formula that the score is of
			text, _, _ := strings.Cut(next.Why, " = ")
			all = append(all, next.Candidate.Endpoint.ID+" "+text+".")
		}
	}
	return append(all, differences(chosen, r)...)
}

// same reports whether people see the same score.
func same(a, b *endpick.Verdict) bool { return number(a.Score) == number(b.Score) }

// explained is why a request went where it went, with what came before the decision and, for a stream
// that broke off, after it. If the decision chose nobody, all attempts came before.
func explained(why []string, chosen bool, attempts []transport.ObservedAttempt) (all []string) {
	rest := len(attempts)
	for rest > 1 && attempts[rest-1].Resumes {
		rest--
	}
	before := rest
	if chosen {
		before = max(rest-1, 0)
	}
	text := func(i int) string { return attempts[i].Candidate.Endpoint.ID + " " + said(&attempts[i]) }
	for i := range before {
		all = append(all, text(i))
	}
	if before > 1 || before > 0 && chosen { // otherwise the only attempt says it
		all = []string{"First " + strings.Join(all, ", then ") + "."}
	}
	all = append(all, why...)
	for i := rest; i < len(attempts); i++ {
		all = append(all, fmt.Sprintf("Then, because %s, %s was asked for the rest.", text(i-1), attempts[i].Candidate.Endpoint.ID))
	}
	return all
}

// left says why none of the servers was left.
func left(none *endpick.NoEndpointError) string {
	text := fmt.Sprintf("of %d, %d %s the model", none.Endpoints, none.Serving, plural(none.Serving, "has", "have"))
	for _, out := range []struct {
		n   int
		why string
	}{{none.Excluded, "had failed this request or could not be asked"}, {none.Full, "had as many requests as they may"}, {none.Draining, "being drained"}} {
		if out.n > 0 {
			text += fmt.Sprintf("; %d %s", out.n, out.why)
		}
	}
	return text + "."
}

// passed says why a model behind the name that was asked for was passed over.
func passed(err error) string {
	if none, ok := errors.AsType[*endpick.NoEndpointError](err); ok {
		return none.Model + " was passed over: " + left(none)
	}
	return "Passed over: " + strings.TrimPrefix(err.Error(), "endpick: ") + "."
}

// decidedBy says in a word what set the chosen server apart from the next best: that the request had
// to wait for room (queue); that there was no other (only), or none that had room under its limit
// (limit), whose context was long enough (context), that was well (health), of its tier (tier) or that
// filters had left (room); that it held more of the prompt (prefix); that its score was better for
// other reasons (load); or nothing (chance).
func decidedBy(r *endpick.Receipt, held time.Duration) string {
	const waited = 10 * time.Millisecond // the queue holds others for as long as a busy machine takes
	switch {
	case held >= waited:
		return "queue"
	case r.Chosen < 0:
		return "health"
	case len(r.Verdicts) == 1 && r.Full > 0:
		return "limit"
	case len(r.Verdicts) == 1 && r.TooShort > 0:
		return "context"
	case len(r.Verdicts) == 1 && len(r.Avoided)+r.Excluded > 0:
		return "health"
	case len(r.Verdicts) == 1 && r.Later > 0:
		return "tier"
	case len(r.Verdicts) == 1:
		return "only"
	}
	chosen, next := &r.Verdicts[r.Chosen], &r.Verdicts[1]
	if r.RunnerUp >= 0 {
		next = &r.Verdicts[r.RunnerUp]
	}
	switch {
	case r.RunnerUp >= 0 && (chosen.Score < next.Score || same(chosen, next)):
		return "chance"
	case chosen.Candidate.PrefixTokens > next.Candidate.PrefixTokens:
		return "prefix"
	case r.RunnerUp < 0:
		return "room"
	}
	return "load"
}

// said is the result of an attempt.
func said(a *transport.ObservedAttempt) string {
	switch {
	case a.Result == transport.Served && a.Resumes:
		return "served the rest"
	case a.Result == transport.Served:
		return "served it"
	case a.Result == transport.Canceled:
		return "was still busy with it when the client left"
	case a.Result == transport.Full:
		return "was full"
	case a.Result == transport.Broken && a.HTTP > 0:
		return "broke off its answer"
	case a.HTTP > 0:
		return fmt.Sprintf("answered %d", a.HTTP)
	case a.Result == transport.Unreachable:
		return "could not be reached"
	}
	return "did not answer"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// differences compares the chosen endpoint with the runner-up.
func differences(chosen *endpick.Verdict, r *endpick.Receipt) []string {
	if r.RunnerUp < 0 {
		return nil
	}
	a, b := &chosen.Candidate, &r.Verdicts[r.RunnerUp].Candidate
	var facts []string
	compare := func(one, many string, x, y float64) {
		format := many
		if math.Abs(x-y) == 1 {
			format = one
		}
		if x != y {
			facts = append(facts, fmt.Sprintf(format, math.Abs(x-y), map[bool]string{true: "more", false: "fewer"}[x > y]))
		}
	}
	compare("it holds ~%.6g %s token of the prompt", "it holds ~%.6g %s tokens of the prompt", float64(a.PrefixTokens), float64(b.PrefixTokens))
	compare("it has %.6g %s token of others to read first", "it has %.6g %s tokens of others to read first", float64(a.InFlight.PrefillTokens), float64(b.InFlight.PrefillTokens))
	compare("%.4g %s request waits for it", "%.4g %s requests wait for it", a.Waiting, b.Waiting)
	compare("%.4g %s runs on it", "%.4g %s run on it", a.Running, b.Running)
	expected := func(format string, which endpick.Latencies, x, y time.Duration) {
		if a.Prediction.Has&b.Prediction.Has&which != 0 && brief(x) != brief(y) {
			facts = append(facts, fmt.Sprintf(format, brief(x), brief(y)))
		}
	}
	expected("its first token was expected after %s instead of %s", endpick.TTFT, a.Prediction.TTFT, b.Prediction.TTFT)
	expected("each further one in %s instead of %s", endpick.TPOT, a.Prediction.TPOT, b.Prediction.TPOT)
	expected("its end was expected after %s instead of %s", endpick.E2E, a.Prediction.E2E, b.Prediction.E2E)
	if len(facts) == 0 {
		return []string{"Their load and cached tokens are the same."}
	}
	return []string{fmt.Sprintf("Compared with %s: %s.", b.Endpoint.ID, strings.Join(facts, "; "))}
}

// brief formats a duration for people. Zero is not known.
func brief(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case d == 0:
		return unknown
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
