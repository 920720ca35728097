package delay

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// town is a router with some endpoints and pseudo-random events, the same in each run.
type town struct {
	t      *testing.T
	m      *Marginal
	router *endpick.Router
	now    time.Time
	chance *rand.Rand
	ids    []string
	open   []endpick.Lease
}

// newTown has the given number of endpoints, of two kinds, some of which report their
// capacity.
func newTown(t *testing.T, config Config, seed uint64, endpoints int) *town {
	m, err := New(config)
	require.NoError(t, err)
	w := &town{t: t, m: m, now: time.Unix(1e9, 0), chance: rand.New(rand.NewPCG(seed, 1))}
	w.router, err = endpick.New(endpick.Config{
		Seed: seed + 1, Clock: func() time.Time { return w.now },
		Policy: endpick.Policy{Predictor: m, Picker: endpick.PowerOfTwo{}, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}},
	})
	require.NoError(t, err)
	for i := range endpoints {
		w.add(fmt.Sprintf("e%d", i))
	}
	return w
}

func (w *town) add(id string) {
	e := endpick.Endpoint{ID: id, Variant: []string{"", "fast"}[w.chance.IntN(2)]}
	e.MaxSequences, e.KVTokens = w.chance.IntN(2)*4, w.chance.IntN(2)*30_000
	require.NoError(w.t, w.router.Add(e))
	w.ids = append(w.ids, id)
}

func (w *town) request() endpick.Request {
	n := 1 + w.chance.IntN(4000)
	return endpick.Request{
		Model: "m", InputTokens: n, Blocks: make([]uint64, n/16), Stream: w.chance.IntN(4) > 0, ExpectedOutputTokens: w.chance.IntN(2) * w.chance.IntN(600),
	}
}

// step makes one random event happen.
func (w *town) step() {
	w.now = w.now.Add(time.Duration(w.chance.IntN(400)) * time.Millisecond)
	lease := func() (int, endpick.Lease) { i := w.chance.IntN(len(w.open)); return i, w.open[i] }
	id := w.ids[w.chance.IntN(len(w.ids))]
	switch n := w.chance.IntN(100); {
	case n < 35 || len(w.open) == 0:
		l, err := w.router.Route(w.request())
		require.NoError(w.t, err)
		w.open = append(w.open, l)
	case n < 55:
		_, l := lease()
		l.FirstToken()
	case n < 70:
		_, l := lease()
		l.Tokens(1 + w.chance.IntN(40))
	case n < 90:
		i, l := lease()
		w.open = append(w.open[:i], w.open[i+1:]...)
		l.Done(endpick.Outcome{
			Status: []endpick.Status{endpick.Completed, endpick.Completed, endpick.Completed, endpick.Canceled, endpick.Failed, endpick.Lost}[w.chance.IntN(6)],
		})
	case n < 97:
		require.NoError(w.t, w.router.Report(id, endpick.Load{
			Waiting: float64(w.chance.IntN(3) * w.chance.IntN(6)), Running: float64(w.chance.IntN(12)), KVUsage: w.chance.Float64(),
			Absent: endpick.Signals(w.chance.IntN(2) * w.chance.IntN(8)),
		}))
	case n < 98:
		w.now = w.now.Add(time.Duration(w.chance.IntN(30)) * time.Second)
	default:
		require.NoError(w.t, w.router.Remove(id))
		require.NoError(w.t, w.router.Add(endpick.Endpoint{ID: id, Variant: "fast", MaxSequences: 2}))
	}
}

// candidates are what a request would see, with random matches.
func (w *town) candidates(req *endpick.Request) []endpick.Candidate {
	cs := w.router.AppendCandidates(nil)
	for i := range cs {
		cs[i].PrefixTokens = w.chance.IntN(2) * w.chance.IntN(req.InputTokens)
		cs[i].EvictedTokens = w.chance.IntN(2) * w.chance.IntN(cs[i].PrefixTokens+1)
	}
	return cs
}

// Up to rounding, the bound by which the filter drops candidates equals their cost:
// the two include the same terms, whatever the state of the endpoints and whichever
// terms are disabled.
func TestBoundsAreTheCosts(t *testing.T) {
	for seed := range uint64(24) {
		without := Terms(0)
		if seed%3 == 2 {
			without = Terms(rand.New(rand.NewPCG(seed, 2)).IntN(1 << len(termNames)))
		}
		w := newTown(t, Config{Without: without}, seed, 5)
		for range 150 {
			w.step()
			req := w.request().At(w.now, 1, 1)
			cs := w.candidates(&req)
			for i := range req.Blocks {
				req.Blocks[i] = uint64(i + 1)
				w.m.uses.add(req.Blocks[i], w.now.UnixNano())
			}
			w.m.meet(cs)
			j := w.m.judge(&req, cs)
			require.True(t, j.survey())
			for i := range cs {
				g := &w.m.glances[cs[i].Ref.Slot]
				least := j.bound(&cs[i], g, j.turnOf(g.variant, &cs[i]), math.Inf(1))
				cost := j.cost(&possible{at: i, cost: math.NaN()})
				if p := &cs[i].Prediction; max(p.TTFT, p.TPOT, p.E2E) >= 24*time.Hour {
					require.GreaterOrEqual(t, cost, 24*3600*1e3) // a longer prediction is impossible
					continue
				}
				// Predictions are truncated to whole nanoseconds.
				require.InDelta(t, cost, least, 1e-9*cost+2e-6*(j.weight+j.output), "seed %d, %s, without %v", seed, cs[i].Endpoint.ID, without)
			}
			j.end()
		}
	}
}

// Of many candidates, most are skipped before their bound is complete. Those of the least cost are
// left, in whichever order they come.
func TestFilterAmongMany(t *testing.T) {
	for seed := range uint64(6) {
		w := newTown(t, Config{}, seed, 400)
		for range 40 {
			for range 50 {
				w.step()
			}
			req := w.request().At(w.now, 1, 1)
			cs := w.candidates(&req)
			cost := map[endpick.Ref]float64{}
			least := math.Inf(1)
			all, dst := slices.Clone(cs), make([]float64, len(cs))
			w.m.Predict(&req, all)
			w.m.costs(&req, all, dst)
			j := w.m.judge(&req, all)
			for i := range all {
				var alone Cost
				j.of(&all[i], &alone)
				require.Equal(t, alone.Sum(), dst[i])
			}
			j.end()
			for i, c := range all {
				cost[c.Ref], least = dst[i], min(least, dst[i])
			}
			switch seed % 3 {
			case 1:
				slices.SortFunc(cs, func(a, b endpick.Candidate) int { return cmp.Compare(cost[a.Ref], cost[b.Ref]) })
			case 2:
				slices.SortFunc(cs, func(a, b endpick.Candidate) int { return cmp.Compare(cost[b.Ref], cost[a.Ref]) })
			}
			var want, got []endpick.Ref
			for i := range cs {
				if cost[cs[i].Ref] == least {
					want = append(want, cs[i].Ref)
				}
			}
			left := w.m.Filter(&req, cs)
			for i := range left {
				got = append(got, left[i].Ref)
			}
			require.Equal(t, want, got, "seed %d", seed)
			for i := range cs {
				require.Equal(t, i < len(left), cs[i].Prediction.Has != 0)
			}
		}
	}
}

// One candidate among a hundred others, which are all alike.
func TestFilterFindsOneAmongMany(t *testing.T) {
	const now, first, last = int64(1e18), 0, 100
	others := endpick.Candidate{Running: 10}
	for name, c := range map[string]struct {
		one    endpick.Candidate
		at     int
		others endpick.Candidate
		change func(m *Marginal, one endpick.Ref)
		found  bool
		listed int
	}{
		"in a larger batch":  {one: endpick.Candidate{Running: 20}, at: last, others: others, listed: 100},
		"in a smaller batch": {one: endpick.Candidate{Running: 5}, at: last, others: others, found: true, listed: 101},
		"that comes first":   {one: endpick.Candidate{Running: 5}, at: first, others: others, found: true, listed: early},
		"behind a longer queue, but fast": {
			one: endpick.Candidate{InFlight: endpick.InFlight{PrefillTokens: 50_000}}, at: last, others: others, found: true, listed: 101,
			change: func(m *Marginal, one endpick.Ref) {
				for range 9 {
					m.endpoints.At(one).pace.Add(now, 0.1, 0.1)
				}
			},
		},
		"in a smaller batch, but later than any prediction": {
			one: endpick.Candidate{InFlight: endpick.InFlight{PrefillTokens: 2e9}}, at: last,
			others: endpick.Candidate{Running: 10, InFlight: endpick.InFlight{PrefillTokens: 1e9}}, found: true, listed: 101,
			change: func(m *Marginal, _ endpick.Ref) { m.common.labels = 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := fresh(t, 0)
			var cs []endpick.Candidate
			for i := range 101 {
				candidate := c.others
				if i == c.at {
					candidate = c.one
				}
				candidate.Endpoint, candidate.Ref = &endpick.Endpoint{ID: fmt.Sprint(i)}, endpick.Ref{Slot: uint32(i), Generation: 1}
				cs = append(cs, candidate)
			}
			if c.change != nil {
				c.change(m, cs[c.at].Ref)
			}
			one := cs[c.at].Ref
			m.meet(cs)
			req := asked.At(time.Unix(0, now), 1, 1)
			j := m.begin(&req, cs)
			defer j.end()
			require.True(t, j.survey())
			likeliest := j.narrow()
			require.Len(t, j.possible, c.listed)
			left := j.best(likeliest)
			if c.found {
				require.Len(t, left, 1)
				require.Equal(t, one, left[0].Ref)
				return
			}
			require.Len(t, left, 100)
		})
	}
}

// An endpoint's account is the sum over its open requests, whatever has happened.
func TestAccountsAreTheSums(t *testing.T) {
	for seed := range uint64(10) {
		w := newTown(t, Config{}, seed, 3)
		for range 300 {
			w.step()
			type sums struct {
				waiting                   int
				pairs, decoding, resident float64
			}
			want := map[endpick.Ref]sums{}
			for _, l := range w.m.leases.All() {
				s := want[l.ref]
				if l.answered || !l.stream {
					s.decoding++
					s.resident += l.size
				}
				if !l.answered {
					s.waiting++
					s.pairs += l.pairs
				}
				want[l.ref] = s
			}
			for ref, e := range w.m.endpoints.All() {
				s := want[ref]
				require.Equal(t, s.waiting, e.waiting)
				require.InDelta(t, s.pairs, e.pairs, 1e-3)
				require.Equal(t, s.decoding, e.decoding)
				require.InDelta(t, s.resident, e.resident, 1e-6)
			}
		}
	}
}
