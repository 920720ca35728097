package shortlist

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
	ratios map[uint32]seen    // by slot
	levels map[string][2]mean // by served model and way of asking
	bound  int
}

// seen is the last prediction in a slot, divided by its estimate.
type seen struct {
	ref         endpick.Ref
	asked       string
	first, rest float64
	chosen      bool // and a request has come since
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
	var all, holds []priced
	list := map[endpick.Ref]bool{}
	mask, draw := lot(req, len(candidates))
	level, ok := n.levels[asked(req)]
	if !ok {
		level = [2]mean{{1}, {1}}
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
		first, rest = first*level[0].value, rest*level[1].value
		p := priced{c, n.total(req, first*r.first, rest*r.rest, others), n.total(req, first, rest, others), first * r.first}
		all = append(all, p)
		if c.MatchShare(req) >= cmp.Or(n.Threshold, 0.8) {
			holds = append(holds, p)
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
	var now []seen
	var against, alone [2][]float64
	for i := range candidates {
		c := &candidates[i]
		if c.Prediction.Has == 0 {
			break
		}
		first, rest, _ := n.estimates(req, c)
		s := seen{c.Ref, asked(req), c.Prediction.TTFT.Seconds() * 1000 / first, c.Prediction.TPOT.Seconds() * 1000 / rest, c.Ref == chosen}
		need := endpick.TTFT | endpick.TPOT
		if !req.Stream {
			need = endpick.E2E
			s.first, s.rest = c.Prediction.E2E.Seconds()*1000/first, c.Prediction.E2E.Seconds()*1000/rest
		}
		if c.Prediction.Has&need != need || min(s.first, s.rest) < 1e-6 || max(s.first, s.rest) > 1e6 {
			continue
		}
		now = append(now, s)
		alone[0], alone[1] = append(alone[0], s.first), append(alone[1], s.rest)
		if r, ok := n.ratios[c.Ref.Slot]; ok && r.ref == c.Ref && r.asked == s.asked {
			against[0], against[1] = append(against[0], s.first/r.first), append(against[1], s.rest/r.rest)
		}
	}
	if len(now) == 0 {
		return
	}
	if len(against[0]) == 0 {
		against = alone
	}
	average := func(all []float64) (sum float64) {
		for _, v := range all {
			sum += v / float64(len(all))
		}
		return sum
	}
	first, rest := average(against[0]), average(against[1])
	level, ok := n.levels[asked(req)]
	level[0].add(first, !ok)
	level[1].add(rest, !ok)
	n.levels[asked(req)] = level
	for _, s := range now {
		s.first, s.rest = min(max(s.first/first, 1e-6), 1e6), min(max(s.rest/rest, 1e-6), 1e6)
		n.ratios[s.ref.Slot] = s
	}
}

// Whatever is predicted, and in whatever order endpoints come and go, the list is the
// one that the documentation describes.
func TestFilterIsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := &plainModel{silent: map[endpick.Ref]bool{}}
		config := Config{
			Size:        rapid.SampledFrom([]int{8, 9, 12}).Draw(t, "size"),
			Threshold:   rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "threshold"),
			PrefillRate: rapid.SampledFrom([]float64{0, 8600}).Draw(t, "rate"), OutputTokens: rapid.SampledFrom([]int{0, 20}).Draw(t, "output"),
		}
		f := with(t, model, config)
		n := &naive{Config: config, ratios: map[uint32]seen{}, levels: map[string][2]mean{}}
		endpoints := make([]endpick.Endpoint, rapid.IntRange(17, 60).Draw(t, "endpoints"))
		fleet := make([]endpick.Candidate, len(endpoints))
		for i := range fleet {
			fleet[i] = endpick.Candidate{Endpoint: &endpoints[i], Ref: endpick.Ref{Slot: uint32(i), Generation: 1}, IDHash: endpick.Salt(fmt.Sprint(i))}
		}
		number := uint64(0)
		request := func(t *rapid.T) (*endpick.Request, []endpick.Candidate) {
			number++
			req := endpick.Request{
				Model: rapid.SampledFrom([]string{"m", "m", "m", "n", "?"}).Draw(t, "model"), Stream: rapid.IntRange(0, 3).Draw(t, "stream") > 0,
				InputTokens: rapid.SampledFrom([]int{1, 1000}).Draw(t, "input"), ExpectedOutputTokens: rapid.SampledFrom([]int{0, 1, 2000}).Draw(t, "expected"),
			}.At(time.Unix(1000, 0), 1, number)
			chance := rand.New(rand.NewPCG(number, rapid.Uint64().Draw(t, "loads")))
			candidates := slices.Clone(fleet)
			for i := range candidates {
				c := &candidates[i]
				c.Waiting, c.Running, c.KVUsage = 3*chance.Float64(), 40*chance.Float64(), chance.Float64()
				c.InFlight = endpick.InFlight{PrefillTokens: chance.IntN(5000), ContextTokens: chance.IntN(50000)}
				c.PrefixTokens = min([]int{0, 0, 0, 1, 499, 500, 799, 800, 999}[chance.IntN(9)], req.InputTokens-1)
			}
			return &req, candidates
		}
		predicts := func(req *endpick.Request, candidates []endpick.Candidate, upTo int, spread float64) {
			chance := rand.New(rand.NewPCG(number, 7))
			for i := range candidates[:upTo] {
				c := &candidates[i]
				first, rest, _ := n.estimates(req, c)
				times := func(v float64) time.Duration {
					return time.Duration(v * (1 + spread*chance.Float64()) * float64(time.Millisecond))
				}
				c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT | endpick.E2E, TTFT: times(first), TPOT: times(rest), E2E: times(first + 100*rest)}
				switch chance.IntN(12) {
				case 0:
					c.Prediction.Has = endpick.TPOT
				case 1:
					c.Prediction.TTFT = 1 // a nanosecond: no information
				case 2:
					c.Prediction.TPOT = 1 << 62
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"filter": func(t *rapid.T) {
				req, candidates := request(t)
				want := n.list(req, candidates, model.silent)
				got := f.Filter(req, candidates)
				whole := map[endpick.Ref]bool{}
				for _, c := range candidates {
					whole[c.Ref] = true
				}
				require.Len(t, whole, len(fleet), "nobody is lost")
				if want == nil {
					require.Len(t, got, len(fleet))
					return
				}
				list := map[endpick.Ref]bool{}
				for _, c := range got {
					list[c.Ref] = true
				}
				require.Equal(t, want, list)
				require.Len(t, got, len(list), "each is there once")
			},
			"routed": func(t *rapid.T) {
				req, candidates := request(t)
				predicts(req, candidates, rapid.IntRange(0, len(fleet)).Draw(t, "predicted"), rapid.SampledFrom([]float64{0.2, 5}).Draw(t, "spread"))
				chosen := &candidates[rapid.IntRange(0, len(fleet)-1).Draw(t, "chosen")]
				f.Routed(&endpick.Event{Request: req, Candidate: chosen, Candidates: slices.Clone(candidates)})
				n.learn(req, candidates, chosen.Ref)
			},
			"bound": func(t *rapid.T) {
				req, candidates := request(t)
				req.SLO = rapid.SampledFrom([]endpick.SLO{{TTFT: 1}, {TPOT: 1}}).Draw(t, "target")
				f.Routed(&endpick.Event{Request: req, Candidate: &candidates[0], Candidates: candidates})
				n.learn(req, candidates, candidates[0].Ref)
				if all, candidates := request(t); n.bound > 0 {
					require.Nil(t, n.list(all, candidates, model.silent))
					require.Len(t, f.Filter(all, candidates), len(fleet))
				}
				f.Done(&endpick.Event{Request: req}, &endpick.Outcome{})
				n.bound = 0
			},
			"replaced": func(t *rapid.T) {
				c := &fleet[rapid.IntRange(0, len(fleet)-1).Draw(t, "slot")]
				c.Ref.Generation++
			},
			"another kind": func(t *rapid.T) {
				e := &endpoints[rapid.IntRange(0, len(fleet)-1).Draw(t, "slot")]
				if e.Variant = "new"; rapid.IntRange(0, 5).Draw(t, "for long") > 0 {
					e.Variant = ""
				}
			},
			"silent": func(t *rapid.T) {
				clear(model.silent)
				for i := range rapid.IntRange(0, len(fleet)).Draw(t, "silent") {
					model.silent[fleet[i].Ref] = true
				}
			},
		})
	})
}

// Of n candidates, four to eight are drawn on average, or all of a few.
func TestLot(t *testing.T) {
	req := endpick.Request{}.At(time.Time{}, 1, 1)
	for n, want := range map[int]uint64{1: 1, 15: 1, 16: 2, 23: 2, 24: 4, 32: 4, 39: 4, 40: 8, 1000: 128, 1024: 128, 1032: 256} {
		mask, _ := lot(&req, n)
		assert.Equal(t, want, mask+1, "%d", n)
	}
}

// Levels are kept for a bounded number of models; beyond that they start over.
func TestLevelsAreBounded(t *testing.T) {
	var r ratios
	for model := range uint32(10 * mostLevels) {
		r.adjust(model, level{2, 3})
		require.LessOrEqual(t, len(r.levels), mostLevels)
		require.Equal(t, level{2, 3}, r.level(model))
	}
	assert.Equal(t, level{1, 1}, r.level(0), "forgotten")
}

func TestConfigBounds(t *testing.T) {
	latency, err := predict.NewLatency(predict.LatencyConfig{Synchronous: true})
	require.NoError(t, err)
	for _, c := range []Config{{Size: 8}, {Threshold: 1}, {PrefillRate: 1e12}, {Size: 100, OutputTokens: 5}} {
		want := c
		c.Latency = latency
		f, err := New(c)
		require.NoError(t, err)
		want.Latency = latency
		want.Size, want.Threshold, want.OutputTokens = cmp.Or(want.Size, 40), cmp.Or(want.Threshold, 0.8), cmp.Or(want.OutputTokens, 300)
		assert.Equal(t, want, f.config)
	}
	_, err = New(Config{Latency: latency, PrefillRate: 1.1e12})
	assert.ErrorIs(t, err, endpick.ErrConfig)
	_, err = New(Config{Latency: latency, Size: -8})
	assert.ErrorIs(t, err, endpick.ErrConfig)
}
