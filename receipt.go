package endpick

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Receipt explains one decision. Put a pointer to one into [Request.Receipt];
// Route overwrites it and reuses its slices. It belongs to the caller and must
// not be shared between requests in flight. With package transport, set it in
// Config.Describe, and find it in the Observation; for a request that is retried it
// shows the last decision.
type Receipt struct {
	Number      uint64    // of the request, in the router's sequence
	At          time.Time // when it was routed
	Policy      string
	Model       string // the model or adapter asked for
	Named       string // Request.Named
	InputTokens int
	// Scorers are the names of the policy's scorers, in the order of
	// Verdict.Scores.
	Scorers []string
	// Verdicts holds every candidate: those that were scored, best first, and
	// then those that filters removed, the last removed first. Endpoints that
	// do not serve the model, are draining or are in Request.Exclude are not
	// candidates, nor are those in Request.Avoid if there are others.
	Verdicts []Verdict
	// Excluded counts the endpoints that are not candidates because of Request.Exclude,
	// and Avoided has the IDs of those that are not because of Request.Avoid, or because they sleep.
	Excluded int
	Avoided  []string
	// Full, TooShort and Later count those that are not because of MaxInFlight, because the
	// prompt is longer than their MaxContext, and because of their Tier.
	Full, TooShort, Later int
	// Undecided are the names of the filters that had no opinion, because no candidate met
	// them: they have removed nothing.
	Undecided []string
	// Chosen and RunnerUp are indices into Verdicts; −1: none. The runner-up
	// is the best of those that were scored and not chosen.
	Chosen   int
	RunnerUp int
	// Regret is the best score minus the chosen one's: above zero if the picker
	// did not take the best.
	Regret float64
	// Err is why there is no lease, or nil.
	Err error
}

// Verdict says what a decision made of one candidate.
type Verdict struct {
	Candidate Candidate
	// RemovedBy names the filter that removed the candidate. Empty: it was
	// scored.
	RemovedBy string
	// Scores are those of each scorer, finite and not weighted; none for a
	// removed candidate.
	Scores []float64
	// Score is the combined score.
	Score float64
	// Why is the explanation of those scorers that have a method Explain(req
	// *Request, candidates []Candidate, dst []string), which is only called for a
	// receipt and fills dst as Score does. Empty: there is none.
	Why string
}

// write fills the receipt, if the request has one. chosen is the index of a candidate, unless there
// is an error.
func (r *Receipt) write(d *decision, p *pipeline, chosen int, err error) {
	if r == nil {
		return
	}
	verdicts, scorers, undecided, avoided := r.Verdicts[:0], r.Scorers[:0], r.Undecided[:0], r.Avoided[:0]
	for i := range d.avoided {
		avoided = append(avoided, d.avoided[i].Endpoint.ID)
	}
	slices.Sort(avoided)
	*r = Receipt{
		Number:      d.req.number,
		At:          d.req.now,
		Policy:      p.Name,
		Model:       d.req.serving(),
		Named:       d.req.Named,
		InputTokens: d.req.InputTokens,
		Excluded:    d.excluded,
		Avoided:     avoided,
		Full:        d.full,
		TooShort:    d.short,
		Later:       d.later,
		Scorers:     append(scorers, p.scorerNames...),
		Chosen:      -1,
		RunnerUp:    -1,
		Err:         err,
	}
	for _, c := range d.candidates {
		verdicts = append(verdicts, Verdict{Candidate: c})
	}
	r.Verdicts = verdicts
	if err != nil {
		return
	}
	ref := d.candidates[chosen].Ref
	if d.req.Adopted == nil {
		r.Undecided = append(undecided, d.undecided...)
		r.explain(d, p, chosen)
	} else {
		slices.SortFunc(r.Verdicts, byID)
	}
	r.Chosen = slices.IndexFunc(r.Verdicts, func(v Verdict) bool { return v.Candidate.Ref == ref })
	if d.req.Adopted == nil && len(d.candidates) > 1 && r.Verdicts[1].RemovedBy == "" {
		r.RunnerUp = max(1-r.Chosen, 0) // the best but for the chosen one
	}
}

func byID(a, b Verdict) int { return cmp.Compare(a.Candidate.Endpoint.ID, b.Candidate.Endpoint.ID) }

// explain completes and orders the verdicts of a successful decision.
func (r *Receipt) explain(d *decision, p *pipeline, chosen int) {
	end := len(r.Verdicts) // of those that the filters so far have left
	for i, cut := range d.cuts {
		removed := r.Verdicts[cut:end]
		for j := range removed {
			removed[j].RemovedBy = p.filterNames[i]
		}
		slices.SortFunc(removed, byID)
		end = cut
	}

	scored, scores := r.Verdicts[:end], d.scores[:end]
	n := len(p.Scorers)
	each := make([]float64, n*end) // by candidate, then scorer
	for j := range scored {
		own := each[j*n : (j+1)*n : (j+1)*n]
		for i := range own {
			own[i] = d.each[i*end+j]
		}
		scored[j].Scores, scored[j].Score = own, scores[j]
	}
	why := make([]string, end)
	for i, w := range p.Scorers {
		x, ok := w.Scorer.(interface {
			Explain(req *Request, candidates []Candidate, dst []string)
		})
		if !ok {
			continue
		}
		clear(why)
		p.try(w.Scorer, func() { x.Explain(&d.req, d.candidates[:end], why) })
		for j, text := range why {
			if len(p.Scorers) > 1 && text != "" {
				text = p.scorerNames[i] + " " + text
			}
			if scored[j].Why != "" && text != "" {
				text = "; " + text
			}
			scored[j].Why += text
		}
	}
	r.Regret = slices.Max(scores) - scores[chosen]

	slices.SortFunc(scored, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), byID(a, b))
	})
}

// String returns the receipt as a small table for people; its format may change. A
// ~ marks what the endpoint has not reported; see [Candidate].
func (r *Receipt) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "request %d, policy %s, model %q, %d tokens", r.Number, cmp.Or(r.Policy, "(unnamed)"), r.Model, r.InputTokens)
	if r.Named != "" {
		fmt.Fprintf(&b, ", asked for as %q", r.Named)
	}
	for _, out := range []struct {
		n   int
		why string
	}{
		{r.Excluded, "excluded"}, {len(r.Avoided), "avoided (" + strings.Join(r.Avoided, " ") + ")"},
		{r.TooShort, "of too short a context"}, {r.Full, "full"}, {r.Later, "of later tiers"},
	} {
		if out.n > 0 {
			fmt.Fprintf(&b, ", %d %s", out.n, out.why)
		}
	}
	if r.Err != nil {
		fmt.Fprintf(&b, ": %v", r.Err)
	}
	b.WriteByte('\n')
	for i, v := range r.Verdicts {
		mark := ' '
		if i == r.Chosen {
			mark = '*'
		}
		c := &v.Candidate
		fmt.Fprintf(&b, "%c %-16s W %-4s R %-4s K %-5s Q %-7d H %-7d", mark, c.Endpoint.ID,
			c.signal(WaitingSignal, c.Waiting, 4), c.signal(RunningSignal, c.Running, 4), c.signal(KVUsageSignal, c.KVUsage, 3),
			c.InFlight.PrefillTokens, c.PrefixTokens)
		writeLatency(&b, "TTFT", TTFT, c.Prediction.Has, c.Prediction.TTFT)
		writeLatency(&b, "TPOT", TPOT, c.Prediction.Has, c.Prediction.TPOT)
		writeLatency(&b, "E2E", E2E, c.Prediction.Has, c.Prediction.E2E)
		switch {
		case v.RemovedBy != "":
			fmt.Fprintf(&b, " removed by %s", v.RemovedBy)
		case r.Chosen >= 0:
			fmt.Fprintf(&b, " score %.6g", v.Score)
			for j, s := range v.Scores {
				fmt.Fprintf(&b, ", %s %.6g", r.Scorers[j], s)
			}
			if v.Why != "" {
				fmt.Fprintf(&b, " (%s)", v.Why)
			}
		}
		b.WriteByte('\n')
	}
	for _, f := range r.Undecided {
		fmt.Fprintf(&b, "no opinion: %s\n", f)
	}
	if r.Chosen >= 0 {
		fmt.Fprintf(&b, "regret %.6g\n", r.Regret)
	}
	return b.String()
}

// signal formats a load signal with so many digits, with a ~ if the endpoint has not reported
// it.
func (c *Candidate) signal(which Signals, v float64, digits int) string {
	text := strconv.FormatFloat(v, 'g', digits, 64)
	if c.Reported&which == 0 {
		return "~" + text
	}
	return text
}

// writeLatency writes a latency, if it has been predicted.
func writeLatency(b *strings.Builder, name string, which, has Latencies, d time.Duration) {
	if has&which != 0 {
		ms, format := float64(d)/float64(time.Millisecond), " %s %.4gms"
		if ms >= 1000 {
			format = " %s %.0fms" // not 1.234e+04
		}
		fmt.Fprintf(b, format, name, ms)
	}
}
