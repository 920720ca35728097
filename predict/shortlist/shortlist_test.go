package shortlist_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/race"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/predict/shortlist"
	"github.com/endpick/endpick/slo"
)

// fleet is a router whose latencies follow from the loads of its servers.
type fleet struct {
	t       *testing.T
	router  *endpick.Router
	latency *predict.Latency
	short   *shortlist.Filter
	now     time.Time
	chance  *rand.Rand
	list    []endpick.Candidate // of the last decision that used the shortlist
	whole   []endpick.Candidate
}

// Filter records what the shortlist does.
func (f *fleet) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	f.whole = slices.Clone(candidates)
	kept := f.short.Filter(req, candidates)
	f.list = slices.Clone(kept)
	return kept
}

func (f *fleet) Observer() any { return f.short }

func newFleet(t *testing.T, servers int) *fleet {
	f := &fleet{t: t, now: time.Unix(1_000_000, 0), chance: rand.New(rand.NewPCG(1, 2))}
	latency, err := predict.NewLatency(predict.LatencyConfig{Synchronous: true, Trees: 16})
	require.NoError(t, err)
	return f.with(latency, servers)
}

// newTrained returns a fleet whose models have learned from 6,000 responses of such a fleet.
func newTrained(t *testing.T, servers int) *fleet {
	f := &fleet{t: t, now: time.Unix(1_000_000, 0), chance: rand.New(rand.NewPCG(3, 4))}
	latency, err := predict.Restore(predict.LatencyConfig{Synchronous: true, Trees: 16}, trained())
	require.NoError(t, err)
	return f.with(latency, servers)
}

var trained = sync.OnceValue(func() []byte {
	var t testing.T
	f := newFleet(&t, 20)
	f.serve(6000)
	saved, err := f.latency.AppendBinary(nil)
	if err != nil {
		panic(err)
	}
	return saved
})

func (f *fleet) with(latency *predict.Latency, servers int) *fleet {
	t := f.t
	f.latency = latency
	var err error
	f.short, err = shortlist.New(shortlist.Config{Latency: f.latency, PrefillRate: 8600})
	require.NoError(t, err)
	fit, err := slo.NewBestFit(slo.BestFitConfig{PrefillRate: 8600, DisableExploration: true})
	require.NoError(t, err)
	config := endpick.Config{Clock: func() time.Time { return f.now }, Seed: 7, ReportMaxAge: 1000 * time.Hour, Policy: endpick.Policy{
		Shortlist: []endpick.Filter{f}, Predictor: f.latency, Scorers: []endpick.Weighted{{Scorer: fit, Weight: 1}},
	}}
	for i := range servers {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprintf("e%d", i)})
	}
	f.router, err = endpick.New(config)
	require.NoError(t, err)
	for i := range servers {
		f.report(fmt.Sprintf("e%d", i))
	}
	return f
}

// report gives a server a new load.
func (f *fleet) report(id string) {
	require.NoError(f.t, f.router.Report(id, endpick.Load{
		Waiting: float64(f.chance.IntN(3)), Running: float64(f.chance.IntN(40)), KVUsage: f.chance.Float64(),
	}))
}

// serve routes n requests and completes them.
func (f *fleet) serve(n int) {
	ids := f.router.Endpoints()
	for range n {
		f.report(ids[f.chance.IntN(len(ids))].Candidate.Endpoint.ID)
		l, err := f.router.Route(endpick.Request{Stream: true, InputTokens: 100 + f.chance.IntN(4000)})
		require.NoError(f.t, err)
		c, _ := l.Candidate()
		f.now = f.now.Add(time.Duration(5e6 + 1e5*float64(c.InFlight.PrefillTokens) + 5e7*c.Waiting + 5e7*c.KVUsage*c.KVUsage + 1e6*c.Running))
		l.FirstToken()
		f.now = f.now.Add(99 * time.Duration(1e7+2e5*c.Running+1e6*c.KVUsage))
		l.Done(endpick.Outcome{OutputTokens: 100})
	}
}

// listed routes a request and returns how many candidates were predicted.
func (f *fleet) listed(req endpick.Request) int {
	req.Stream = true
	l, err := f.router.Route(req)
	require.NoError(f.t, err)
	l.Done(endpick.Outcome{Status: endpick.Canceled})
	return len(f.list)
}

var ask = endpick.Request{InputTokens: 1000}

func TestConfig(t *testing.T) {
	latency, err := predict.NewLatency(predict.LatencyConfig{})
	require.NoError(t, err)
	for field, c := range map[string]shortlist.Config{
		"Latency":      {},
		"Size":         {Latency: latency, Size: 7},
		"Threshold":    {Latency: latency, Threshold: 1.1},
		"PrefillRate":  {Latency: latency, PrefillRate: -1},
		"OutputTokens": {Latency: latency, OutputTokens: -1},
	} {
		_, err := shortlist.New(c)
		var bad *endpick.ConfigError
		require.ErrorAs(t, err, &bad)
		assert.Equal(t, "shortlist.Config."+field, bad.Field)
	}
}

// Once there is a model, there is a list, and it is short.
func TestAShortlistNeedsAModel(t *testing.T) {
	f := newFleet(t, 100)
	f.serve(1000)
	require.Equal(t, 100, f.listed(ask))
	f = newTrained(t, 300)
	require.Less(t, f.listed(ask), 80)
	f.serve(20)
	for range 20 {
		n := f.listed(ask)
		require.Less(t, n, 80)
		require.GreaterOrEqual(t, n, 40)
	}
}

func TestFewAreAllPredicted(t *testing.T) {
	f := newTrained(t, 80)
	require.Equal(t, 80, f.listed(ask))
}

// If the tightest fit is preferred, or running requests are protected, all candidates are
// predicted.
func TestTargetsNeedAll(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	require.Less(t, f.listed(ask), 100)
	for _, target := range []endpick.SLO{{TTFT: time.Second}, {TPOT: time.Second}} {
		require.Equal(t, 200, f.listed(endpick.Request{InputTokens: 1000, SLO: target}))
	}
	bound, err := f.router.Route(endpick.Request{InputTokens: 10, Stream: true, SLO: endpick.SLO{TPOT: time.Second}})
	require.NoError(t, err)
	require.Equal(t, 200, f.listed(ask))
	bound.Done(endpick.Outcome{})
	require.Less(t, f.listed(ask), 100)
}

// A kind of endpoint without a model is left in, for the stages that explore.
func TestAnUnknownKindIsNotLeftOut(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	require.NoError(t, f.router.Add(endpick.Endpoint{ID: "new", Variant: "other"}))
	require.Equal(t, 201, f.listed(ask))
	require.NoError(t, f.router.Remove("new"))
	require.NoError(t, f.router.Add(endpick.Endpoint{ID: "new"}))
	require.Less(t, f.listed(ask), 100)
	require.True(t, slices.ContainsFunc(f.list, func(c endpick.Candidate) bool { return c.Endpoint.ID == "new" }), "one that has just come is looked at")
}

// If nearly all of the best-looking endpoints are silent, all candidates are predicted.
func TestSilenceNeedsAll(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	require.Less(t, f.listed(ask), 100)
	var held []endpick.Lease
	for range 600 {
		l, err := f.router.Route(endpick.Request{Stream: true, InputTokens: 1000})
		require.NoError(t, err)
		held = append(held, l)
	}
	f.now = f.now.Add(time.Hour)
	require.Equal(t, 200, f.listed(ask))
	for _, l := range held {
		l.FirstToken()
		l.Done(endpick.Outcome{})
	}
}

// The order of the candidates does not matter, and each can be drawn at random.
func TestListIsASet(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	seen := map[string]bool{}
	for n := range uint64(800) {
		req := endpick.Request{Stream: true, InputTokens: 1000}.At(f.now, 7, n)
		f.listed(ask)
		a, b := slices.Clone(f.whole), slices.Clone(f.whole)
		for i := range b {
			j := f.chance.IntN(i + 1)
			b[i], b[j] = b[j], b[i]
		}
		a, b = f.short.Filter(&req, a), f.short.Filter(&req, b)
		require.ElementsMatch(t, refs(a), refs(b))
		for _, c := range a {
			seen[c.Endpoint.ID] = true
		}
	}
	require.Len(t, seen, 200)
}

func refs(candidates []endpick.Candidate) (all []endpick.Ref) {
	for _, c := range candidates {
		all = append(all, c.Ref)
	}
	return all
}

// The chosen endpoint is predicted once more, however bad it looks by then, and no more after
// that.
func TestWhoWasChosenIsLookedAtAgain(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	again := 0
	for range 50 {
		l, err := f.router.Route(endpick.Request{Stream: true, InputTokens: 1000})
		require.NoError(t, err)
		c, _ := l.Candidate()
		require.NoError(t, f.router.Report(c.Endpoint.ID, endpick.Load{Waiting: 50, Running: 500, KVUsage: 1}))
		f.listed(ask)
		require.Contains(t, refs(f.list), c.Ref)
		f.listed(ask)
		if slices.Contains(refs(f.list), c.Ref) {
			again++
		}
		l.Done(endpick.Outcome{})
	}
	require.Less(t, again, 25, "but for a few by chance")
}

// A busy endpoint that holds the prompt is on the list for its match alone; later stages
// decide what that is worth. One that holds part of it is on the list unless there are better ones.
func TestHoldersAreOnTheList(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	f.listed(ask)
	req := endpick.Request{Stream: true, InputTokens: 1000}.At(f.now, 7, 1)
	for _, share := range []struct {
		held, others int
		on           bool
	}{{800, 20, true}, {790, 20, false}, {790, 4, true}, {790, 5, false}, {1, 0, true}, {0, 0, false}} {
		candidates := slices.Clone(f.whole)
		for i := range candidates {
			candidates[i].Running, candidates[i].Waiting = float64(i), 0
			if i < share.others {
				candidates[i].PrefixTokens = 1
			}
		}
		last := &candidates[199]
		last.Running, last.Waiting, last.PrefixTokens = 500, 50, share.held
		last.IDHash = 0x5555 // not drawn at random
		ref := last.Ref
		kept := f.short.Filter(&req, candidates)
		require.Less(t, len(kept), 100)
		require.Equal(t, share.on, slices.Contains(refs(kept), ref), share)
	}
}

// The choice is almost always the same as among all candidates, and where it differs it is
// almost as good.
func TestTheChoiceIsTheSame(t *testing.T) {
	f := newTrained(t, 200)
	f.serve(20)
	fit, err := slo.NewBestFit(slo.BestFitConfig{PrefillRate: 8600, DisableExploration: true})
	require.NoError(t, err)
	same := 0
	for range 300 {
		f.serve(1)
		var receipt endpick.Receipt
		require.Less(t, f.listed(endpick.Request{InputTokens: 100 + f.chance.IntN(4000), Receipt: &receipt}), 100)
		req := endpick.Request{Stream: true, InputTokens: receipt.InputTokens}.At(receipt.At, 7, receipt.Number)
		f.latency.Predict(&req, f.whole)
		scores := make([]float64, len(f.whole))
		fit.Score(&req, f.whole, scores)
		best := endpick.MaxScore{}.Pick(&req, f.whole, scores)
		chosen := receipt.Verdicts[receipt.Chosen].Candidate.Ref
		if f.whole[best].Ref == chosen {
			same++
			continue
		}
		at := slices.Index(refs(f.whole), chosen)
		require.Greater(t, scores[at], 0.9*scores[best])
	}
	require.Greater(t, same, 280)
}

func TestNothingIsAllocated(t *testing.T) {
	if race.Enabled {
		t.Skip("pools lose what they hold under the race detector")
	}
	f := newTrained(t, 200)
	f.serve(20)
	f.listed(ask)
	whole := slices.Clone(f.whole)
	req := endpick.Request{Stream: true, InputTokens: 1000}.At(f.now, 7, 1)
	require.Zero(t, testing.AllocsPerRun(50, func() { f.short.Filter(&req, whole) }))
}
