package prefix_test

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type gate interface {
	endpick.Filter
	Stats() prefix.AffinityStats
}

func newAffinity(config prefix.AffinityConfig) gate {
	return rig.Must(prefix.NewAffinity(config)).(gate)
}

// slots returns the endpoints that a filter kept.
func slots(candidates []endpick.Candidate) []uint32 {
	var s []uint32
	for _, c := range candidates {
		s = append(s, c.Ref.Slot)
	}
	return s
}

// A prompt of 1,000 tokens on three endpoints. At 1,000 tokens per second, a
// token takes a millisecond.
func TestAffinityGate(t *testing.T) {
	predicted := func(d time.Duration) endpick.Prediction { return endpick.Prediction{Has: endpick.TTFT, TTFT: d} }
	type one struct {
		held, inFlight int
		prediction     endpick.Prediction
	}
	exploit, cold, busy := prefix.AffinityStats{Exploited: 1}, prefix.AffinityStats{Cold: 1}, prefix.AffinityStats{Overloaded: 1}
	for _, tc := range []struct {
		name   string
		config prefix.AffinityConfig
		fleet  []one
		keep   []uint32
		stats  prefix.AffinityStats
	}{
		{"nobody holds enough", prefix.AffinityConfig{}, []one{{held: 799}, {held: 0}, {held: 500}}, []uint32{0, 1, 2}, cold},
		{"the threshold itself is enough", prefix.AffinityConfig{}, []one{{held: 0}, {held: 800}, {held: 999}}, []uint32{1, 2}, exploit},
		{"all of them", prefix.AffinityConfig{}, []one{{held: 900}, {held: 800}, {held: 999}}, []uint32{0, 1, 2}, exploit},
		{"another threshold", prefix.AffinityConfig{Threshold: 0.5}, []one{{held: 499}, {held: 500}, {held: 0}}, []uint32{1}, exploit},
		// Sticky: 5,900 + 100 new = 6,000 ms. Others: 0 + 1,000 = 1,000 ms.
		// 5,000 ms more is not more than 5,000 ms.
		{"just within the gate", prefix.AffinityConfig{}, []one{{held: 900, inFlight: 5900}, {}, {}}, []uint32{0}, exploit},
		{"just beyond the gate", prefix.AffinityConfig{}, []one{{held: 900, inFlight: 5901}, {}, {}}, []uint32{0, 1, 2}, busy},
		{"the best sticky one counts", prefix.AffinityConfig{},
			[]one{{held: 900, inFlight: 9000}, {held: 900, inFlight: 5000}, {}}, []uint32{0, 1}, exploit},
		{"no gate", prefix.AffinityConfig{DisableLoadGate: true}, []one{{held: 900, inFlight: 90_000}, {}, {}}, []uint32{0}, exploit},
		{"a narrower gate", prefix.AffinityConfig{MaxPenalty: time.Second}, []one{{held: 900, inFlight: 1901}, {}, {}}, []uint32{0, 1, 2}, busy},
		// 900 tokens are held, 900 ms of work. Sticky: 1,800 + 100 new = 1,900 ms. Others:
		// 0 + 1,000 = 1,000 ms. 900 ms more is not more than 900 ms.
		{"just within what is saved", prefix.AffinityConfig{LimitToSaved: true},
			[]one{{held: 900, inFlight: 1800}, {}, {}}, []uint32{0}, exploit},
		{"just beyond what is saved", prefix.AffinityConfig{LimitToSaved: true},
			[]one{{held: 900, inFlight: 1801}, {}, {}}, []uint32{0, 1, 2}, busy},
		// The best of all holds 700, so 200 ms are saved. Sticky: 400 + 100 = 500 ms; the
		// best 0 + 300 ms; the idle one that holds nothing 1,000 ms.
		{"the best one would compute less again", prefix.AffinityConfig{LimitToSaved: true},
			[]one{{held: 900, inFlight: 400}, {held: 700}, {}}, []uint32{0}, exploit},
		{"the best one would compute too little again", prefix.AffinityConfig{LimitToSaved: true},
			[]one{{held: 900, inFlight: 401}, {held: 700}, {}}, []uint32{0, 1, 2}, busy},
		// Of equal TTFTs: the sticky one that holds 950 saves more than the one with 900.
		{"the longest match among equals", prefix.AffinityConfig{LimitToSaved: true},
			[]one{{held: 900, inFlight: 1825}, {held: 950, inFlight: 1875}, {}}, []uint32{0, 1}, exploit},
		// 900 ms are saved, but 500 ms are the limit.
		{"no more than the penalty", prefix.AffinityConfig{LimitToSaved: true, MaxPenalty: 500 * time.Millisecond},
			[]one{{held: 900, inFlight: 1401}, {}, {}}, []uint32{0, 1, 2}, busy},
		{"as much as the penalty", prefix.AffinityConfig{LimitToSaved: true, MaxPenalty: 500 * time.Millisecond},
			[]one{{held: 900, inFlight: 1400}, {}, {}}, []uint32{0}, exploit},
		// The best of all holds the prompt itself.
		{"the sticky one is the best", prefix.AffinityConfig{LimitToSaved: true}, []one{{held: 900}, {}, {}}, []uint32{0}, exploit},
		// A prediction replaces the estimate, which would be 90,100 ms.
		{"predicted to be quick", prefix.AffinityConfig{},
			[]one{{held: 900, inFlight: 90_000, prediction: predicted(6 * time.Second)}, {}, {}}, []uint32{0}, exploit},
		{"predicted to be slow", prefix.AffinityConfig{},
			[]one{{held: 900, prediction: predicted(5201 * time.Millisecond)}, {prediction: predicted(200 * time.Millisecond)}, {}},
			[]uint32{0, 1, 2}, busy},
		{"only other latencies are predicted", prefix.AffinityConfig{},
			[]one{{held: 900, prediction: endpick.Prediction{Has: endpick.TPOT, TTFT: time.Hour}}, {}, {}}, []uint32{0}, exploit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.config.DisableExploration = true
			tc.config.PrefillRate = 1000
			a := newAffinity(tc.config)
			candidates := fleet(len(tc.fleet))
			for i, o := range tc.fleet {
				candidates[i].PrefixTokens = o.held
				candidates[i].InFlight.PrefillTokens = o.inFlight
				candidates[i].Prediction = o.prediction
			}
			req := endpick.Request{InputTokens: 1000}
			assert.Equal(t, tc.keep, slots(a.Filter(&req, candidates)))
			assert.Equal(t, tc.stats, a.Stats())
			assert.Len(t, candidates, len(tc.fleet), "what is removed stays behind the cut")
		})
	}
}

// 8,600 tokens per second: 43,000 more tokens are the five seconds.
func TestAffinityDefaultRate(t *testing.T) {
	for inFlight, keep := range map[int]int{43_899: 1, 43_901: 2} {
		a := newAffinity(prefix.AffinityConfig{DisableExploration: true})
		candidates := fleet(2)
		candidates[0].PrefixTokens = 900
		candidates[0].InFlight.PrefillTokens = inFlight // and 100 new ones; the other one 1,000
		req := endpick.Request{InputTokens: 1000}
		assert.Len(t, a.Filter(&req, candidates), keep, "%d in flight", inFlight)
	}
}

func TestAffinityExplores(t *testing.T) {
	a := newAffinity(prefix.AffinityConfig{Exploration: 0.1})
	candidates := fleet(2)
	candidates[0].PrefixTokens = 999
	all := 0
	for n := range uint64(20_000) {
		req := endpick.Request{InputTokens: 1000}.At(time.Time{}, 7, n)
		if len(a.Filter(&req, candidates)) == 2 {
			all++
		}
		again := len(a.Filter(&req, candidates))
		require.Equal(t, again, len(a.Filter(&req, candidates)), "chance depends on the request alone")
	}
	// Binomial: mean 2,000, standard deviation 42.
	assert.InDelta(t, 2000, all, 5*42)
	assert.EqualValues(t, 3*all, a.Stats().Explored)
	assert.EqualValues(t, 3*(20_000-all), a.Stats().Exploited)
}

// If only a prompt's blocks are known, they give its length, and it goes to
// where they are.
func TestAffinityWithoutALength(t *testing.T) {
	gate := newAffinity(prefix.AffinityConfig{DisableExploration: true})
	r := rig.Must(endpick.New(endpick.Config{
		Policy:    endpick.Policy{Matcher: newIndex(t, prefix.IndexConfig{}), Filters: []endpick.Filter{gate}},
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}},
	}))
	var first string
	for i := range 10 {
		lease := rig.Must(r.Route(endpick.Request{Blocks: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}))
		if i == 0 {
			first = lease.Endpoint().ID
		}
		assert.Equal(t, first, lease.Endpoint().ID)
		lease.Done(endpick.Outcome{})
	}
	assert.Equal(t, prefix.AffinityStats{Cold: 1, Exploited: 9}, gate.Stats())
}

func TestAffinityEmpty(t *testing.T) {
	a := newAffinity(prefix.AffinityConfig{})
	assert.Empty(t, a.Filter(&endpick.Request{}, nil))
	assert.Len(t, a.Filter(&endpick.Request{}, fleet(1)), 1, "a prompt of unknown length holds nobody")
}

func TestAffinityConfig(t *testing.T) {
	for field, all := range map[string][]prefix.AffinityConfig{
		"Threshold":    {{Threshold: 1.01}, {Threshold: math.NaN()}, {Threshold: -1}},
		"Exploration":  {{Exploration: 1}, {Exploration: math.NaN()}, {Exploration: -0.1}, {Exploration: 0.1, DisableExploration: true}},
		"MaxPenalty":   {{MaxPenalty: -1}, {MaxPenalty: 1, DisableLoadGate: true}},
		"LimitToSaved": {{LimitToSaved: true, DisableLoadGate: true}},
		"PrefillRate":  {{PrefillRate: math.Inf(1)}, {PrefillRate: math.NaN()}, {PrefillRate: -1}},
	} {
		for _, config := range all {
			assert.Equal(t, "prefix.AffinityConfig."+field, rig.Field(prefix.NewAffinity(config)), "%+v", config)
		}
	}
}

func TestAffinityAllocates(t *testing.T) {
	a := newAffinity(prefix.AffinityConfig{})
	candidates := fleet(10)
	candidates[7].PrefixTokens = 900
	req := endpick.Request{InputTokens: 1000}
	assert.Zero(t, testing.AllocsPerRun(100, func() { a.Filter(&req, candidates) }))
}
