package endpick_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

func TestConfigValidation(t *testing.T) {
	for _, c := range []struct {
		config endpick.Config
		text   string
		is     error
	}{
		{endpick.Config{LeaseTimeout: -1}, "endpick: config: LeaseTimeout is negative", endpick.ErrConfig},
		{endpick.Config{ReportMaxAge: -1}, "endpick: config: ReportMaxAge is negative", endpick.ErrConfig},
		{endpick.Config{Endpoints: named("a", "a")}, `endpick: endpoint "a" is listed twice`, endpick.ErrDuplicateEndpoint},
	} {
		r, err := endpick.New(c.config)
		assert.Nil(t, r)
		assert.EqualError(t, err, c.text)
		assert.ErrorIs(t, err, c.is)
	}
	var field *endpick.ConfigError
	_, err := endpick.New(endpick.Config{LeaseTimeout: -1})
	require.ErrorAs(t, err, &field)
	assert.Equal(t, "LeaseTimeout", field.Field)

	r, err := endpick.New(endpick.Config{})
	require.NoError(t, err)
	_, err = r.Route(endpick.Request{})
	assert.ErrorIs(t, err, endpick.ErrNoEndpoints)
	for _, err := range []error{r.Drain("x"), r.Resume("x"), r.Remove("x"), r.Report("x", endpick.Load{})} {
		assert.EqualError(t, err, `endpick: endpoint "x" is unknown`)
		assert.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
		var endpoint *endpick.EndpointError
		require.True(t, errors.As(err, &endpoint))
		assert.Equal(t, "x", endpoint.ID)
	}
}

// The defaults are as documented, with the host's clock.
func TestDefaultClock(t *testing.T) {
	r, err := endpick.New(endpick.Config{Endpoints: named("a")})
	require.NoError(t, err)
	before := time.Now()
	var receipt endpick.Receipt
	l := route(t, r, endpick.Request{Receipt: &receipt})
	assert.WithinRange(t, receipt.At, before, time.Now())
	assert.Zero(t, r.Sweep(time.Now().Add(10*time.Minute-time.Minute/2)))
	assert.Equal(t, 1, r.Sweep(time.Now().Add(10*time.Minute+time.Minute/2)))
	assert.False(t, l.Done(endpick.Outcome{}))
}

// The zero policy is uniform.
func TestZeroPolicyIsRandom(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{Endpoints: numbered(4), Seed: 3})
	counts := map[string]float64{}
	const n = 20_000
	for range n {
		l := route(t, r, endpick.Request{})
		counts[l.Endpoint().ID]++
		l.Done(endpick.Outcome{})
	}
	for id, count := range counts {
		assert.InDelta(t, 0.25, count/n, 0.0125, id) // four standard deviations
	}
	assert.Len(t, counts, 4)
}

// Routers that got their endpoints in another order give every request the same
// scores and choices, including ties, random picks and means of absent signals.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "endpoints")
		endpoints := numbered(n)
		seed := rapid.Uint64Min(1).Draw(t, "seed")
		order := rapid.Permutation(ordinals(n)).Draw(t, "order")
		permuted := make([]endpick.Endpoint, n)
		for i, from := range order {
			permuted[i] = endpoints[from]
		}
		policies := storyPolicies()
		policies = append(policies, endpick.Policy{Name: "kv", Scorers: []endpick.Weighted{{Weight: 1, Scorer: scoreFunc(
			func(_ *endpick.Request, c *endpick.Candidate) float64 { return -c.KVUsage })}}})
		c := new(clock)
		var routers [2]*endpick.Router
		for i, e := range [][]endpick.Endpoint{endpoints, permuted} {
			var err error
			routers[i], err = endpick.New(endpick.Config{Endpoints: e, Seed: seed, Clock: c.Now})
			require.NoError(t, err)
		}
		var open [2][]endpick.Lease
		tenth := func(name string) float64 { return float64(rapid.IntRange(0, 10).Draw(t, name)) / 10 }
		for step := range rapid.IntRange(1, 25).Draw(t, "steps") {
			id := endpoints[rapid.IntRange(0, n-1).Draw(t, "endpoint")].ID
			load := endpick.Load{
				Waiting: 10 * tenth("waiting"), Running: 10 * tenth("running"), KVUsage: tenth("KV usage"),
				Absent: endpick.Signals(rapid.IntRange(0, 7).Draw(t, "absent")),
			}
			policy := policies[rapid.IntRange(0, len(policies)-1).Draw(t, "policy")]
			done := rapid.IntRange(0, 3).Draw(t, "done") == 0
			var receipts [2]endpick.Receipt
			for i, r := range routers {
				require.NoError(t, r.Report(id, load))
				require.NoError(t, r.SetPolicy(policy))
				l, err := r.Route(endpick.Request{InputTokens: 50 * step, Session: fmt.Sprint(step % 3), Receipt: &receipts[i]})
				require.NoError(t, err)
				open[i] = append(open[i], l)
				if done {
					open[i][0].Done(endpick.Outcome{})
					open[i] = open[i][1:]
				}
			}
			require.Equal(t, receipts[0].String(), receipts[1].String())
		}
	})
}

// A broken report or prediction of one endpoint costs that endpoint its signal,
// and changes nothing for the others. Only an Admitter refuses requests.
func TestFailOpenLocally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "endpoints")
		var routers [2]*endpick.Router // the second has the broken endpoint
		for i := range routers {
			broken := i == 1
			policy := by(leastLoaded)
			policy.Predictor = predictFunc(func(_ *endpick.Request, c *endpick.Candidate) endpick.Prediction {
				if broken && c.Ref.Slot == 0 {
					return endpick.Prediction{}
				}
				return endpick.Prediction{Has: endpick.TTFT, TTFT: time.Duration(c.Ref.Slot)}
			})
			policy.Scorers = append(policy.Scorers, endpick.Weighted{Weight: 1, Scorer: scoreFunc(
				func(_ *endpick.Request, c *endpick.Candidate) float64 {
					if broken && c.Ref.Slot == 0 {
						return nan
					}
					return 1 / (1 + float64(c.Prediction.TTFT))
				})})
			c := new(clock)
			var err error
			routers[i], err = endpick.New(endpick.Config{Endpoints: numbered(n), Policy: policy, Clock: c.Now})
			require.NoError(t, err)
			for slot := range n {
				require.NoError(t, routers[i].Report(fmt.Sprintf("e%d", slot),
					endpick.Load{Waiting: float64(slot), Running: 2, KVUsage: 0.25}))
			}
		}
		bad := rapid.SampledFrom([]float64{nan, inf, -inf, -1, 1e12}).Draw(t, "value")
		load := endpick.Load{Waiting: 3, Running: 4, KVUsage: 0.5}
		var signal endpick.Signals
		switch rapid.IntRange(0, 2).Draw(t, "signal") {
		case 0:
			load.Waiting, signal = bad, endpick.WaitingSignal
		case 1:
			load.Running, signal = bad, endpick.RunningSignal
		case 2:
			load.KVUsage, signal = bad, endpick.KVUsageSignal
		}
		require.ErrorIs(t, routers[1].Report("e0", load), endpick.ErrBadLoad)

		var receipts [2]endpick.Receipt
		for i, r := range routers {
			_, err := r.Route(endpick.Request{InputTokens: 10, Receipt: &receipts[i]})
			require.NoError(t, err, "the request is not lost")
		}
		verdicts := func(i int) map[string]endpick.Verdict {
			by := map[string]endpick.Verdict{}
			for _, v := range receipts[i].Verdicts {
				by[v.Candidate.Endpoint.ID] = v
			}
			return by
		}
		whole, broken := verdicts(0), verdicts(1)
		for id, v := range whole {
			if id == "e0" {
				continue
			}
			require.Equal(t, v.Score, broken[id].Score, "no other endpoint is touched")
			require.Equal(t, v.Candidate.Waiting, broken[id].Candidate.Waiting)
			require.Equal(t, v.Candidate.Prediction, broken[id].Candidate.Prediction)
		}
		c := broken["e0"].Candidate
		require.Equal(t, (endpick.WaitingSignal|endpick.RunningSignal|endpick.KVUsageSignal)&^signal, c.Reported)
		// The mean of the others replaces the broken signal; the others are as
		// reported.
		want := []float64{3, 4, 0.5}
		switch signal {
		case endpick.WaitingSignal:
			want[0] = float64(n) / 2 // 1 … n−1
		case endpick.RunningSignal:
			want[1] = 2
		case endpick.KVUsageSignal:
			want[2] = 0.25
		}
		require.InDeltaSlice(t, want, []float64{c.Waiting, c.Running, c.KVUsage}, 1e-12)
	})
}

// A retry goes elsewhere as long as there is another endpoint.
func TestExclude(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{Endpoints: named("a", "b", "c"), Policy: by(leastLoaded)})
	var tried []string
	for range 3 {
		l := route(t, r, endpick.Request{InputTokens: 8, Exclude: tried})
		assert.NotContains(t, tried, l.Endpoint().ID)
		tried = append(tried, l.Endpoint().ID)
		l.Done(endpick.Outcome{Status: endpick.Failed})
	}
	_, err := r.Route(endpick.Request{Exclude: tried})
	assert.ErrorIs(t, err, endpick.ErrNoEndpoints)
	requireQuiet(t, r)
}

// An endpoint that is removed while a request is being routed to it gets no
// lease: the router chooses again.
func TestRemovalWhileRouting(t *testing.T) {
	var r *endpick.Router
	rounds := 0
	policy := by(func(_ *endpick.Request, c *endpick.Candidate) float64 {
		if c.Endpoint.ID != "favourite" {
			return 0
		}
		rounds++
		require.NoError(t, r.Remove("favourite"))
		if rounds == 1 { // and is back at once, in the same slot
			require.NoError(t, r.Add(endpick.Endpoint{ID: "favourite"}))
		}
		return 1
	})
	r, _ = newRouter(t, endpick.Config{Endpoints: named("other", "favourite"), Policy: policy})
	var receipt endpick.Receipt
	l := route(t, r, endpick.Request{InputTokens: 5, Receipt: &receipt})
	assert.Equal(t, "other", l.Endpoint().ID)
	assert.Equal(t, 2, rounds)
	assert.Len(t, receipt.Verdicts, 1, "of the decision that counts")
	assert.Equal(t, 1, status(t, r, "other").Candidate.InFlight.Requests)
	l.Done(endpick.Outcome{})
	requireQuiet(t, r)

	require.NoError(t, r.SetPolicy(by(func(_ *endpick.Request, c *endpick.Candidate) float64 {
		require.NoError(t, r.Remove(c.Endpoint.ID))
		return 1
	})))
	_, err := r.Route(endpick.Request{})
	assert.ErrorIs(t, err, endpick.ErrNoEndpoints, "the last one is gone")
	requireQuiet(t, r)
}
