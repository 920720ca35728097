package slo_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/race"
	"github.com/endpick/endpick/slo"
)

func filter(f endpick.Filter, req endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
	return f.Filter(&req, slices.Clone(cs))
}

func TestTier(t *testing.T) {
	unknown := endpick.Prediction{}
	for _, tc := range []struct {
		name string
		req  endpick.Request
		cs   []endpick.Candidate
		want []string
	}{
		{"those that meet the SLO", ask(200, 50), fleet(both(100, 60), both(200, 50), both(300, 10), both(1, 1)), []string{"server-1", "server-3"}},
		{"a single target", ask(0, 50), fleet(both(100, 60), both(9999, 50)), []string{"server-1"}},
		{"nobody meets it", ask(200, 50), fleet(both(300, 50), both(400, 50)), []string{"server-0", "server-1"}},
		{"no SLO", ask(0, 0), fleet(both(300, 50), both(400, 50)), []string{"server-0", "server-1"}},
		{"a negative SLO is none", ask(-1, -1), fleet(both(300, 50), both(400, 50)), []string{"server-0", "server-1"}},
		{"without a prediction one stays", ask(200, 0), fleet(both(300, 50), unknown, both(100, 50)), []string{"server-1", "server-2"}},
		{"no predictions", ask(200, 0), fleet(unknown, unknown), []string{"server-0", "server-1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.want, ids(filter(newTier(t, slo.TierConfig{DisableExploration: true}), tc.req, tc.cs)))
		})
	}
}

func TestTierExplores(t *testing.T) {
	f := newTier(t, slo.TierConfig{})
	cs := fleet(both(300, 50), both(100, 50), endpick.Prediction{}, both(400, 50))
	const n = 20_000
	explored := 0
	for i := range n {
		got := ids(filter(f, ask(200, 0).At(epoch, 9, uint64(i)), cs))
		if slices.Contains(got, "server-1") {
			require.Equal(t, []string{"server-1", "server-2"}, got)
			continue
		}
		require.Equal(t, []string{"server-0", "server-2", "server-3"}, got)
		explored++
	}
	assert.InDelta(t, n/100, explored, n/100*0.25)
}

func TestTierConfig(t *testing.T) {
	for _, e := range []float64{-0.1, 1, nan} {
		_, err := slo.NewTier(slo.TierConfig{Exploration: e})
		require.ErrorIs(t, err, endpick.ErrConfig)
	}
}

// A request without an SLO stays away from endpoints where it would break a
// running request's target, with the real router, until that request has ended.
func TestTierProtectsRunningRequests(t *testing.T) {
	r, err := endpick.New(endpick.Config{
		Seed:      1,
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		Policy: endpick.Policy{
			Predictor: crowded{},
			Filters:   []endpick.Filter{newTier(t, slo.TierConfig{DisableExploration: true})},
		},
	})
	require.NoError(t, err)
	strict, err := r.Route(ask(0, 15))
	require.NoError(t, err)
	var others []endpick.Lease
	for range 20 {
		l, err := r.Route(ask(0, 0))
		require.NoError(t, err)
		assert.NotEqual(t, strict.Endpoint().ID, l.Endpoint().ID)
		others = append(others, l)
	}
	for _, l := range others {
		require.True(t, l.Done(endpick.Outcome{}))
	}
	require.True(t, strict.Done(endpick.Outcome{}))
	chosen := map[string]int{}
	for range 40 {
		l, err := r.Route(ask(0, 0))
		require.NoError(t, err)
		chosen[l.Endpoint().ID]++
		l.Done(endpick.Outcome{})
	}
	assert.Len(t, chosen, 2)
}

// crowded predicts a TPOT of 10 ms, and 20 ms more where a request runs already.
type crowded struct{}

func (crowded) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].Prediction = both(10, 10*float64(min(candidates[i].InFlight.Requests, 1)+1))
	}
}

// The filter is a stable partition that loses no candidate.
func TestTierIsAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newTier(t, slo.TierConfig{Exploration: 0.5})
		req, cs := drawRequest(t), drawFleet(t, 10)
		all := slices.Clone(cs)
		kept := f.Filter(&req, all)
		if !slices.IsSorted(ids(kept)) {
			t.Fatalf("kept %v", ids(kept))
		}
		got := ids(all)
		slices.Sort(got)
		if !slices.Equal(got, ids(cs)) {
			t.Fatalf("%v became %v", ids(cs), got)
		}
	})
}

func TestTierAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	h := newHeadroom(t, slo.HeadroomConfig{})
	f, cs, req := newTier(t, slo.TierConfig{Headroom: h}), benchmarkFleet(100), ask(100, 40)
	running := ask(0, 20)
	h.Routed(event(0, &running, &cs[0]))
	assert.Zero(t, testing.AllocsPerRun(20, func() { f.Filter(&req, cs) }))
}

func BenchmarkTier(b *testing.B) {
	f := newTier(b, slo.TierConfig{})
	forSizes(b, func(b *testing.B, cs []endpick.Candidate) {
		req := ask(150, 40)
		for b.Loop() {
			f.Filter(&req, cs)
		}
	})
}
