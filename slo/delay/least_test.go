package delay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/slo/delay"
)

// twins are two routers with the same events: one whose filter leaves only the best
// candidate, and one that predicts and scores all.
type twins struct {
	t       *rapid.T
	now     time.Time
	routers [2]*endpick.Router
	m       *delay.Marginal // the one with glances
	open    [][2]endpick.Lease
	known   []string
	gone    map[string]bool
}

func newTwins(t *rapid.T) *twins {
	w := &twins{t: t, now: time.Unix(1e9, 0), gone: map[string]bool{}}
	without := delay.Terms(0)
	if rapid.Bool().Draw(t, "ablation") {
		without = delay.Terms(rapid.IntRange(0, 1<<len(delay.TermNames())-1).Draw(t, "without"))
	}
	for i := range w.routers {
		config, err := preset.MarginalDelay(preset.MarginalDelayConfig{Delay: delay.Config{Without: without}, DisableShortlist: i == 1})
		require.NoError(t, err)
		config.Seed, config.Clock = 1, func() time.Time { return w.now }
		w.routers[i], err = endpick.New(config)
		require.NoError(t, err)
		if i == 0 {
			w.m = config.Policy.Predictor.(*delay.Marginal)
		}
	}
	for range rapid.IntRange(1, 8).Draw(t, "endpoints") {
		w.add()
	}
	return w
}

func (w *twins) add() {
	e := endpick.Endpoint{
		ID:           fmt.Sprintf("e%d", len(w.known)),
		Variant:      rapid.SampledFrom([]string{"", "", "fast"}).Draw(w.t, "variant"),
		MaxSequences: rapid.SampledFrom([]int{0, 0, 3}).Draw(w.t, "places"),
		KVTokens:     rapid.SampledFrom([]int{0, 0, 40_000}).Draw(w.t, "memory"),
	}
	w.known = append(w.known, e.ID)
	for _, r := range w.routers {
		require.NoError(w.t, r.Add(e))
	}
}

func (w *twins) route() {
	t := w.t
	blocks := make([]uint64, rapid.SampledFrom([]int{1, 10, 200, 1000}).Draw(t, "blocks"))
	group := rapid.Uint64Range(1, 3).Draw(t, "group")
	for i := range blocks {
		blocks[i] = group<<32 | uint64(i)
	}
	req := endpick.Request{
		Blocks: blocks, Stream: rapid.IntRange(0, 3).Draw(t, "stream") > 0, Tenant: rapid.SampledFrom([]string{"", "a"}).Draw(t, "tenant"),
		ExpectedOutputTokens: rapid.SampledFrom([]int{0, 0, 10, 5000}).Draw(t, "expected"),
	}
	if rapid.IntRange(0, 9).Draw(t, "targets") == 0 {
		req.SLO = endpick.SLO{TTFT: time.Second, TPOT: 20 * time.Millisecond}
	}
	if rapid.IntRange(0, 9).Draw(t, "avoids") == 0 {
		req.Avoid = []string{rapid.SampledFrom(w.known).Draw(t, "avoided")}
	}
	var leases [2]endpick.Lease
	var chosen [2]endpick.Candidate
	for i, r := range w.routers {
		l, err := r.Route(req)
		require.NoError(t, err)
		leases[i] = l
		chosen[i], _ = l.Candidate()
	}
	require.Equal(t, chosen[1].Ref, chosen[0].Ref)
	require.Equal(t, chosen[1], chosen[0])
	w.open = append(w.open, leases)
}

func (w *twins) lease() (int, [2]endpick.Lease) {
	i := rapid.IntRange(0, len(w.open)-1).Draw(w.t, "lease")
	return i, w.open[i]
}

func (w *twins) each(do func(r *endpick.Router) error) {
	for _, r := range w.routers {
		_ = do(r) // the endpoint may be gone
	}
}

func TestFilterChangesNoChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTwins(t)
		id := func() string { return rapid.SampledFrom(w.known).Draw(t, "id") }
		t.Repeat(map[string]func(*rapid.T){
			"route": func(*rapid.T) {
				for range rapid.IntRange(1, 10).Draw(t, "times") {
					w.route()
				}
			},
			"first token": func(*rapid.T) {
				if len(w.open) > 0 {
					_, l := w.lease()
					l[0].FirstToken()
					l[1].FirstToken()
				}
			},
			"done": func(*rapid.T) {
				for range min(len(w.open), rapid.IntRange(1, 10).Draw(t, "times")) {
					i, l := w.lease()
					o := endpick.Outcome{
						OutputTokens: rapid.IntRange(0, 300).Draw(t, "output"),
						Status:       rapid.SampledFrom([]endpick.Status{endpick.Completed, endpick.Completed, endpick.Canceled, endpick.Failed}).Draw(t, "status"),
					}
					if rapid.Bool().Draw(t, "answered") {
						l[0].FirstToken()
						l[1].FirstToken()
						w.now = w.now.Add(time.Duration(rapid.IntRange(0, 1e9).Draw(t, "decoding")))
					}
					l[0].Done(o)
					l[1].Done(o)
					w.open = append(w.open[:i], w.open[i+1:]...)
				}
			},
			"time": func(*rapid.T) {
				w.now = w.now.Add(rapid.SampledFrom([]time.Duration{1e6, 1e8, 1e9, 3e10}).Draw(t, "passed"))
			},
			"report": func(*rapid.T) {
				of := id()
				load := endpick.Load{
					Waiting: float64(rapid.IntRange(0, 4).Draw(t, "waiting")), Running: float64(rapid.IntRange(0, 30).Draw(t, "running")),
					KVUsage: float64(rapid.IntRange(0, 100).Draw(t, "memory")) / 100,
				}
				w.each(func(r *endpick.Router) error { return r.Report(of, load) })
			},
			"update": func(*rapid.T) {
				e := endpick.Endpoint{ID: id(), Variant: "fast", KVTokens: 20_000}
				w.each(func(r *endpick.Router) error { return r.Update(e) })
			},
			"":    func(t *rapid.T) { require.Empty(t, delay.StaleGlance(w.m)) },
			"add": func(*rapid.T) { w.add() },
			"remove": func(*rapid.T) {
				if gone := id(); len(w.known)-len(w.gone) > 1 || w.gone[gone] {
					w.gone[gone] = true
					w.each(func(r *endpick.Router) error { return r.Remove(gone) })
				}
			},
		})
	})
}

// states returns candidates, each in a different state.
func states(n int) []endpick.Candidate {
	var candidates []endpick.Candidate
	for i := range n {
		candidates = append(candidates, endpick.Candidate{
			Endpoint: &endpick.Endpoint{ID: fmt.Sprint(i)}, Ref: endpick.Ref{Slot: uint32(i), Generation: 1}, Running: float64((i + 3) % n),
		})
	}
	return candidates
}

func TestFilterLeavesTheBest(t *testing.T) {
	m := newMarginal(t, delay.Config{})
	req := endpick.Request{InputTokens: 1000, Stream: true}.At(time.Unix(1e9, 0), 1, 1)
	left := m.Filter(&req, states(10))
	require.Len(t, left, 1)
	assert.Equal(t, "7", left[0].Endpoint.ID, "which has nothing to do")

	// Candidates in the same state cost the same.
	candidates := states(10)
	candidates[2].Running = 0
	left = m.Filter(&req, candidates)
	require.Len(t, left, 2)
	assert.Equal(t, "2", left[0].Endpoint.ID)
	assert.Equal(t, "7", left[1].Endpoint.ID)
}

func TestFilterHasNoOpinion(t *testing.T) {
	of := func(t *testing.T, req endpick.Request) int {
		req.InputTokens, req.Stream = 1000, true
		req = req.At(time.Unix(1e9, 0), 1, 1)
		return len(newMarginal(t, delay.Config{}).Filter(&req, states(10)))
	}
	assert.Equal(t, 1, of(t, endpick.Request{}))
	assert.Equal(t, 10, of(t, endpick.Request{Receipt: new(endpick.Receipt)}), "a receipt tells of everybody")
	assert.Equal(t, 10, of(t, endpick.Request{SLO: endpick.SLO{TTFT: 1}}), "which is for a tier to choose by")

	// While a running request has a TPOT target.
	m := newMarginal(t, delay.Config{})
	r, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}}, Policy: endpick.Policy{Shortlist: []endpick.Filter{m}, Predictor: m},
	})
	require.NoError(t, err)
	req := endpick.Request{InputTokens: 1000, Stream: true}.At(time.Unix(1e9, 0), 1, 1)
	l, err := r.Route(endpick.Request{Stream: true, SLO: endpick.SLO{TPOT: time.Second}})
	require.NoError(t, err)
	assert.Len(t, m.Filter(&req, states(10)), 10)
	l.Done(endpick.Outcome{})
	assert.Len(t, m.Filter(&req, states(10)), 1)
}

// The filter knows an endpoint that is slower than its kind, or silent.
func TestFilterKnowsTheSlow(t *testing.T) {
	m := newMarginal(t, delay.Config{})
	candidates := states(2)
	candidates[0].Running, candidates[1].Running = 0, 1
	now := time.Unix(1e9, 0)
	best := func() string {
		req := endpick.Request{InputTokens: 1000, Stream: true}.At(now, 1, 2)
		both := append([]endpick.Candidate(nil), candidates...)
		left := m.Filter(&req, both)
		require.Len(t, left, 1)
		return left[0].Endpoint.ID
	}
	require.Equal(t, "0", best())
	// Requests on the first are answered late, those on the second at once.
	for n := range uint32(40) {
		on := &candidates[n%2]
		req := endpick.Request{InputTokens: 1000, Stream: true}.At(now, 1, 1)
		e := endpick.Event{
			Lease: endpick.LeaseRef{Slot: 0, Generation: n + 1}, Request: &req, Candidate: on, Candidates: candidates, RoutedAt: now, Now: now,
		}
		m.Routed(&e)
		now = now.Add(time.Second)
		if n%2 == 0 {
			now = now.Add(19 * time.Second)
		}
		e.Now, e.FirstTokenAt, e.LastTokenAt = now, now, now
		m.FirstToken(&e)
		m.Done(&e, &endpick.Outcome{OutputTokens: 1})
	}
	assert.Equal(t, "1", best(), "twenty times as slow")
	now = now.Add(2 * time.Minute)
	assert.Equal(t, "0", best(), "forgotten")

	// One request waits for a long time on the first.
	req := endpick.Request{InputTokens: 1000, Stream: true}.At(now, 1, 1)
	m.Routed(&endpick.Event{
		Lease: endpick.LeaseRef{Slot: 0, Generation: 50}, Request: &req, Candidate: &candidates[0], Candidates: candidates, RoutedAt: now, Now: now,
	})
	assert.Equal(t, "0", best())
	now = now.Add(30 * time.Minute)
	assert.Equal(t, "1", best(), "it answers nobody")
}

// A glance takes an endpoint for ordinary if it is as fast as its kind and not silent.
func TestGlance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a delay.Account
		now := int64(1e18)
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			now += rapid.SampledFrom([]int64{0, 1e8, 1e9, 1e10, 1e11, -1e9}).Draw(t, "passed")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				a.Wait(now, rapid.SampledFrom([]float64{0, 100, 1e5}).Draw(t, "expected"))
			case 1:
				a.Leave(now, rapid.Bool().Draw(t, "answered"))
			default:
				a.Label(now, rapid.SampledFrom([]float64{0.1, 1, 10}).Draw(t, "ratio"))
			}
			for _, later := range []int64{-1e9, 0, 1e9, 5e10, 69e9, 71e9, 1e12} {
				if glances, is := a.Ordinary(now + later); glances {
					require.True(t, is, "%v later", time.Duration(later))
				}
			}
		}
	})
	var fresh delay.Account
	glances, is := fresh.Ordinary(0)
	assert.True(t, glances)
	assert.True(t, is)
	for i := range int64(9) {
		fresh.Label(i, 10)
	}
	glances, _ = fresh.Ordinary(70e9 - 1)
	assert.False(t, glances)
	glances, _ = fresh.Ordinary(71e9)
	assert.True(t, glances, "what is not asked is forgotten")
}
