package scorertest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// show describes the case in words, without zero values.
func (c *trial) show() string {
	return "The smallest case:\n  " + showRequest(&c.req) + showCandidates(c.candidates)
}

func showCandidates(all []endpick.Candidate) (text string) {
	for i := range all {
		text += "\n  " + showCandidate(&all[i])
	}
	return text
}

type words []string

func (w *words) add(show bool, format string, args ...any) {
	if show {
		*w = append(*w, fmt.Sprintf(format, args...))
	}
}

func showRequest(r *endpick.Request) string {
	w := words{fmt.Sprintf("request: %d tokens", r.InputTokens)}
	w.add(len(r.Blocks) > 0, "%d blocks", len(r.Blocks))
	w.add(r.ExpectedOutputTokens != 0, "%d to come", r.ExpectedOutputTokens)
	w.add(r.Model != "" && r.Model != "model", "model %q", r.Model)
	w.add(r.Adapter != "", "adapter %q", r.Adapter)
	w.add(r.Stream, "streams")
	w.add(r.Priority != 0, "priority %d", r.Priority)
	w.add(r.Tenant != "", "tenant %q", r.Tenant)
	w.add(r.Session != "", "session %q", r.Session)
	w.add(r.SLO.TTFT != 0, "TTFT within %v", r.SLO.TTFT)
	w.add(r.SLO.TPOT != 0, "TPOT within %v", r.SLO.TPOT)
	w.add(len(r.Exclude) > 0, "without %v", r.Exclude)
	w.add(r.Adopted != nil, "adopted")
	return strings.Join(w, ", ")
}

func showCandidate(c *endpick.Candidate) string {
	w := words{fmt.Sprintf("%s: W %v, R %v, K %v", c.Endpoint.ID, c.Waiting, c.Running, c.KVUsage)}
	w.add(c.Endpoint.Variant != "", "variant %q", c.Endpoint.Variant)
	w.add(c.Endpoint.Labels != nil, "labels %v", c.Endpoint.Labels)
	w.add(c.Report == nil, "no report")
	if c.Report != nil {
		w.add(c.Report.Adapters != nil, "adapters reported %v", c.Report.Adapters)
	}
	w.add(c.InFlight != endpick.InFlight{}, "in flight %d (%d in prefill, Q %d, context %d, output %d)", c.InFlight.Requests,
		c.InFlight.Prefilling, c.InFlight.PrefillTokens, c.InFlight.ContextTokens, c.InFlight.OutputTokens)
	w.add(c.PrefixTokens != 0, "H %d", c.PrefixTokens)
	for _, l := range latenciesOf(&c.Prediction) {
		w.add(c.Prediction.Has&l.has != 0, "%s %v, %v at most", l.name, l.expected, l.upper)
	}
	return strings.Join(w, ", ")
}

func showEndpoint(e *endpick.Endpoint) string {
	w := words{fmt.Sprintf("%q at %q", e.ID, e.Address)}
	w.add(e.Ranked, "rank %d", e.Rank)
	w.add(e.Models != nil, "models %v", e.Models)
	w.add(e.Adapters != nil, "adapters %v", e.Adapters)
	w.add(e.Labels != nil, "labels %v", e.Labels)
	w.add(e.Variant != "", "variant %q", e.Variant)
	w.add(e.MaxSequences != 0, "%d sequences", e.MaxSequences)
	w.add(e.KVTokens != 0, "%d KV tokens", e.KVTokens)
	return strings.Join(w, ", ")
}

func showReport(l *endpick.Load) string {
	w := words{fmt.Sprintf("%v waiting, %v running, KV usage %v", l.Waiting, l.Running, l.KVUsage)}
	w.add(l.Absent != 0, "without %d", l.Absent)
	w.add(l.Adapters != nil, "adapters %v", l.Adapters)
	return strings.Join(w, ", ")
}

func showOutcome(o *endpick.Outcome) string {
	w := words{o.Status.String()}
	w.add(o.OutputTokens != 0, "%d tokens", o.OutputTokens)
	w.add(o.HasCachedTokens, "%d were cached", o.CachedTokens)
	return strings.Join(w, ", ")
}

// names are the IDs of candidates in order.
func names(cs []endpick.Candidate) []string {
	ids := make([]string, len(cs))
	for i := range cs {
		if e := cs[i].Endpoint; e != nil {
			ids[i] = e.ID
		}
	}
	return ids
}

func find(cs []endpick.Candidate, id string) *endpick.Candidate {
	i := slices.IndexFunc(cs, func(c endpick.Candidate) bool { return c.Endpoint != nil && c.Endpoint.ID == id })
	if i < 0 {
		return nil
	}
	return &cs[i]
}
