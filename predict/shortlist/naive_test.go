package shortlist

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/estimate"
	"github.com/endpick/endpick/predict"
)

// plainModel has known estimates: it predicts the variant "" of two served models,
// "m" and "n".
type plainModel struct {
	silent map[endpick.Ref]bool
}

var (
	ofFirst = estimate.Linear{Constant: 5, Waiting: 40, Running: 0.3, KVUsage: 7, Prefill: 0.1, Fresh: 0.2}
	ofRest  = estimate.Linear{Constant: 10, Waiting: 0.5, Running: 0.4, KVUsage: 2, Resident: 1e-4}
)

func (p *plainModel) Estimate(req *endpick.Request) (first, rest estimate.Linear, model uint32, ok bool) {
	switch req.Model {
	case "m":
		return ofFirst, ofRest, 1, true
	case "n":
		return ofRest, ofFirst, 2, true
	}
	return first, rest, 0, false
}

func (p *plainModel) Predicts(_ *endpick.Request, variant string) bool { return variant == "" }

func (p *plainModel) Silent(_ *endpick.Request, candidates []endpick.Candidate, indices []int32) (n int) {
	for _, i := range indices {
		if p.silent[candidates[i].Ref] {
			n++
		}
	}
	return n
}

// with returns a filter over another model than its config's.
func with(t require.TestingT, model estimate.Model, config Config) *Filter {
	var err error
	config.Latency, err = predict.NewLatency(predict.LatencyConfig{Synchronous: true})
	require.NoError(t, err)
	f, err := New(config)
	require.NoError(t, err)
	f.model = model
	return f
}

// naive is the list as documented, made by sorting.
type naive struct {
	Config
	ratios map[uint32]seen   // by slot
	levels map[string]*heard // by served model and way of asking
	bound  int
}

// seen is the last prediction in a slot, divided by its estimate.
type seen struct {
	ref         endpick.Ref
	asked       string
	first, rest float64
	chosen      bool // and a request has come since
}

// heard is predicted over estimated, of two latencies: of all, and by the match.
type heard struct {
	all      [2]mean
	match    map[int]*[2]float64
	requests map[int]int
}

// of returns the levels of a match; nothing is known of one that has not been seen.
func (h *heard) of(match int) (first, rest float64) {
	if h == nil {
		return 1, 1
	}
	first, rest = 1, 1
	if m := h.match[match]; m != nil {
		first, rest = m[0], m[1]
	}
	return first, rest
}

// quarter is nothing, or up to which quarter of the prompt is held.
func quarter(req *endpick.Request, c *endpick.Candidate) int {
	switch held := 4 * c.PrefixTokens; {
	case held == 0:
		return 0
	case held < req.InputTokens:
		return 1
	case held < 2*req.InputTokens:
		return 2
	case held < 3*req.InputTokens:
		return 3
	}
	return 4
}

// mean fades over a hundred requests.
type mean struct{ value float64 }

func (m *mean) add(v float64, first bool) {
	if first {
		m.value = v
	}
	m.value += (v - m.value) / 100
}

// asked is the key of ratios and levels.
func asked(req *endpick.Request) string { return fmt.Sprint(req.Model, req.Stream) }

// estimates are those of a candidate by itself, and the delay that other requests mean for it.
func (n *naive) estimates(req *endpick.Request, c *endpick.Candidate) (first, rest, others float64) {
	f, r := ofFirst, ofRest
	if req.Model == "n" {
		f, r = r, f
	}
	fresh := float64(max(req.InputTokens-c.PrefixTokens, 0))
	if n.PrefillRate > 0 {
		others = fresh * (c.Waiting + c.Running) * 1000 / n.PrefillRate
	}
	return f.Of(c, fresh), r.Of(c, fresh), others
}

func (n *naive) total(req *endpick.Request, first, rest, others float64) float64 {
	output := n.OutputTokens
	switch {
	case !req.Stream:
		return rest + others
	case req.ExpectedOutputTokens > 0:
		output = req.ExpectedOutputTokens
	case output == 0:
		output = 300
	}
	return first + float64(output)*rest + others
}

// list returns nil if all candidates are to be predicted.
func (n *naive) list(req *endpick.Request, candidates []endpick.Candidate, silent map[endpick.Ref]bool) map[endpick.Ref]bool {
	size := cmp.Or(n.Size, 40)
	if len(candidates) <= 2*size || req.SLO.TTFT > 0 || req.SLO.TPOT > 0 || n.bound > 0 || req.Model != "m" && req.Model != "n" {
		return nil
	}
	type priced struct {
		c                   *endpick.Candidate
		whole, plain, first float64
	}
	var all, holds, some []priced
	list := map[endpick.Ref]bool{}
	mask, draw := lot(req, len(candidates))
	levels := n.levels[asked(req)]
	level := [2]mean{{1}, {1}}
	if levels != nil {
		level = levels.all
	}
	for i := range candidates {
		c := &candidates[i]
		r, known := n.ratios[c.Ref.Slot]
		if !known || r.ref != c.Ref || r.asked != asked(req) {
			if c.Endpoint.Variant != "" {
				return nil
			}
			r = seen{first: 0.5, rest: 0.5}
		}
		first, rest, others := n.estimates(req, c)
		ofFirst, ofRest := levels.of(quarter(req, c))
		first, rest = first*(level[0].value*ofFirst), rest*(level[1].value*ofRest)
		p := priced{c, n.total(req, first*r.first, rest*r.rest, others), n.total(req, first, rest, others), first * r.first}
		all = append(all, p)
		if c.MatchShare(req) >= cmp.Or(n.Threshold, 0.8) {
			holds = append(holds, p)
		}
		if c.PrefixTokens > 0 {
			some = append(some, p)
		}
		if c.IDHash&mask == draw&mask || r.chosen {
			list[c.Ref] = true
		}
	}
	take := func(from []priced, most int, by func(priced) float64) {
		slices.SortFunc(from, func(a, b priced) int { return cmp.Compare(by(a), by(b)) })
		for _, p := range from[:min(most, len(from))] {
			list[p.c.Ref] = true
		}
	}
	take(all, size, func(p priced) float64 { return p.whole })
	take(all, size/2, func(p priced) float64 { return p.plain })
	take(all, size/4, func(p priced) float64 { return p.first })
	take(holds, size/4, func(p priced) float64 { return p.whole })
	take(some, size/8, func(p priced) float64 { return p.whole })
	quiet := 0
	for ref := range list {
		if silent[ref] {
			quiet++
		}
	}
	if quiet > len(list)/2 {
		return nil
	}
	return list
}

// learn records the predictions made before a request was routed, and its endpoint.
func (n *naive) learn(req *endpick.Request, candidates []endpick.Candidate, chosen endpick.Ref) {
	if req.SLO.TPOT > 0 && req.Stream {
		n.bound++
	}
	if req.Model != "m" && req.Model != "n" {
		return
	}
	type told struct {
		seen
		match                 int
		oldFirst, oldRest     float64 // what was known of the endpoint; 1: nothing
		levelFirst, levelRest float64
		known                 bool
	}
	var now []told
	levels := n.levels[asked(req)]
	for i := range candidates {
		c := &candidates[i]
		if c.Prediction.Has == 0 {
			break
		}
		first, rest, _ := n.estimates(req, c)
		s := told{seen: seen{c.Ref, asked(req), c.Prediction.TTFT.Seconds() * 1000 / first, c.Prediction.TPOT.Seconds() * 1000 / rest, c.Ref == chosen}}
		need := endpick.TTFT | endpick.TPOT
		if !req.Stream {
			need = endpick.E2E
			s.first, s.rest = c.Prediction.E2E.Seconds()*1000/first, c.Prediction.E2E.Seconds()*1000/rest
		}
		if c.Prediction.Has&need != need || min(s.first, s.rest) < 1e-6 || max(s.first, s.rest) > 1e6 {
			continue
		}
		s.match, s.oldFirst, s.oldRest = quarter(req, c), 1, 1
		s.levelFirst, s.levelRest = levels.of(s.match)
		if r, ok := n.ratios[c.Ref.Slot]; ok && r.ref == c.Ref && r.asked == s.asked {
			s.oldFirst, s.oldRest, s.known = r.first, r.rest, true
		}
		now = append(now, s)
	}
	if len(now) == 0 {
		return
	}
	average := func(of func(*told) float64, which func(*told) bool) float64 {
		sum, count := 0.0, 0.0
		for i := range now {
			if which(&now[i]) {
				sum += of(&now[i])
				count++
			}
		}
		return sum / count
	}
	some := slices.ContainsFunc(now, func(s told) bool { return s.known })
	counts := func(s *told) bool { return s.known || !some }
	first := average(func(s *told) float64 { return s.first / s.levelFirst / s.oldFirst }, counts)
	rest := average(func(s *told) float64 { return s.rest / s.levelRest / s.oldRest }, counts)
	if levels == nil {
		levels = &heard{match: map[int]*[2]float64{}, requests: map[int]int{}}
		levels.all[0].value, levels.all[1].value = first, rest
		n.levels[asked(req)] = levels
	}
	levels.all[0].add(first, false)
	levels.all[1].add(rest, false)
	for match := range 5 {
		of := func(s *told) bool { return s.match == match }
		if !slices.ContainsFunc(now, func(s told) bool { return of(&s) }) {
			continue
		}
		if levels.match[match] == nil {
			levels.match[match] = &[2]float64{1, 1}
		}
		levels.requests[match]++
		m, parts := levels.match[match], float64(min(levels.requests[match], 100))
		m[0] += (average(func(s *told) float64 { return s.first / s.oldFirst / first }, of) - m[0]) / parts
		m[1] += (average(func(s *told) float64 { return s.rest / s.oldRest / rest }, of) - m[1]) / parts
		m[0], m[1] = min(max(m[0], 1e-6), 1e6), min(max(m[1], 1e-6), 1e6)
	}
	for _, s := range now {
		levelFirst, levelRest := levels.of(s.match)
		s.first, s.rest = min(max(s.first/(first*levelFirst), 1e-6), 1e6), min(max(s.rest/(rest*levelRest), 1e-6), 1e6)
		n.ratios[s.ref.Slot] = s.seen
	}
}
