package shortlist

import (
	"cmp"
	"fmt"
	"math"
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
		n := &naive{Config: config, ratios: map[uint32]seen{}, levels: map[string]*heard{}}
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

// What a match makes of predictions is known of endpoints that have not been predicted with
// one, and is no part of what is known of those that have, by hand.
func TestAMatchIsNoEndpoints(t *testing.T) {
	even := estimate.Linear{Constant: 10}
	p := price{first: even, rest: even, model: 3, output: 100}
	var r ratios
	request := func(holder int, share, ofMatch float64) {
		req := endpick.Request{InputTokens: 1000, Stream: true}
		candidates := make([]endpick.Candidate, 3)
		for i := range candidates {
			c := &candidates[i]
			c.Ref = endpick.Ref{Slot: uint32(i), Generation: 1}
			took := 10 * time.Millisecond
			if i == holder {
				c.PrefixTokens = int(share * 1000)
				took = time.Duration(ofMatch * float64(took))
			}
			c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 2 * took, TPOT: took}
		}
		r.learn(&p, &req, candidates, candidates[0].Ref)
	}
	for holder := range 3 {
		request(holder, 0.5, 0.8)
		levels := r.level(3)
		by := levels.whole()
		for match, want := range map[int]float64{0: 1, 3: 0.8} {
			assert.InDelta(t, 2*want, by[match].first, 1e-9)
			assert.InDelta(t, want, by[match].rest, 1e-9)
		}
		for slot := range uint32(3) {
			e := r.of(endpick.Ref{Slot: slot, Generation: 1}, 3)
			assert.InDelta(t, 1, e.first, 1e-6, "%d", slot)
			assert.InDelta(t, 1, e.rest, 1e-6, "%d", slot)
		}
	}
	for range 10 * memory {
		request(1, 0.5, 1.2)
	}
	levels := r.level(3)
	by := levels.whole()
	assert.InDelta(t, 1.2, by[3].rest/by[0].rest*float64(r.slots[1].rest/r.slots[0].rest), 1e-3, "together they say what is so")
}

// Kinds of match, at their bounds.
func TestMatches(t *testing.T) {
	for share, want := range map[float64]int{
		math.NaN(): 0, -1: 0, 0: 0, 1e-9: 1, 0.2499: 1, 0.25: 2, 0.4999: 2, 0.5: 3, 0.7499: 3, 0.75: 4, 0.999: 4, 1: 4, 1e300: 4, math.Inf(1): 4,
	} {
		assert.Equal(t, want, matchOf(share), "%v", share)
	}
}

// Levels are kept for a bounded number of models; beyond that they start over.
func TestLevelsAreBounded(t *testing.T) {
	var r ratios
	for model := range uint32(10 * mostLevels) {
		r.adjust(model, newLevels(), level{2, 3})
		require.LessOrEqual(t, len(r.levels), mostLevels)
		require.Equal(t, level{2, 3}, r.level(model).all)
	}
	assert.Equal(t, newLevels(), r.level(0), "forgotten")
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
