package delay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// random is a router with some endpoints and pseudo-random events, the same in each run.
type random struct {
	t      *testing.T
	m      *marginal
	router *endpick.Router
	now    time.Time
	chance *rand.Rand
	ids    []string
	open   []endpick.Lease
}

// newRandom has the given number of endpoints, of two kinds, some of which report their
// capacity.
func newRandom(t *testing.T, seed uint64, endpoints int) *random {
	w := &random{t: t, m: newMarginal(t, Config{}), now: time.Unix(1e9, 0), chance: rand.New(rand.NewPCG(seed, 1))}
	var err error
	w.router, err = endpick.New(endpick.Config{
		Seed: seed + 1, Clock: func() time.Time { return w.now },
		Policy: endpick.Policy{Predictor: w.m, Picker: endpick.PowerOfTwo{}, Scorers: []endpick.Weighted{{Scorer: w.m, Weight: 1}}},
	})
	require.NoError(t, err)
	for i := range endpoints {
		w.add(fmt.Sprintf("e%d", i))
	}
	return w
}

func (w *random) add(id string) {
	e := endpick.Endpoint{ID: id, Variant: []string{"", "fast"}[w.chance.IntN(2)]}
	e.MaxSequences, e.KVTokens = w.chance.IntN(2)*4, w.chance.IntN(2)*30_000
	require.NoError(w.t, w.router.Add(e))
	w.ids = append(w.ids, id)
}

func (w *random) request() endpick.Request {
	n := 1 + w.chance.IntN(4000)
	return endpick.Request{
		Model: "m", InputTokens: n, Blocks: make([]uint64, n/16), Stream: w.chance.IntN(4) > 0, ExpectedOutputTokens: w.chance.IntN(2) * w.chance.IntN(600),
	}
}

// step makes one random event happen.
func (w *random) step() {
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

// An endpoint's account is the sum over its open requests, whatever has happened: once all
// have ended, nothing is left of them.
func TestAccountsAreTheSums(t *testing.T) {
	type sums struct {
		pairs, decoding, resident float64
	}
	for seed := range uint64(10) {
		w := newRandom(t, seed, 3)
		check := func() {
			want := map[endpick.EndpointRef]sums{}
			for _, l := range w.m.leases.All() {
				s := want[l.ref]
				if l.answered || !l.stream {
					s.decoding++
					s.resident += l.size
				}
				if !l.answered {
					s.pairs += l.pairs
				}
				want[l.ref] = s
			}
			for ref, e := range w.m.endpoints.All() {
				s := want[ref]
				require.InDelta(t, s.pairs, e.pairs, 1e-3)
				require.Equal(t, s.decoding, e.decoding)
				require.InDelta(t, s.resident, e.resident, 1e-6)
			}
		}
		for range 300 {
			w.step()
			check()
		}
		for _, l := range w.open {
			l.Done(endpick.Outcome{})
		}
		for _, l := range w.m.leases.All() {
			require.Zero(t, *l)
		}
		check()
	}
}

// What has come into an endpoint's memory: the new tokens of prompts that were computed, and the
// responses. It is at most a number of tokens that a response can have.
func TestWhatFillsMemory(t *testing.T) {
	for name, x := range map[string]struct {
		stream, answered bool
		o                endpick.Outcome
		filled           float64
	}{
		"a stream":          {true, true, endpick.Outcome{OutputTokens: 11}, 1011},
		"a whole response":  {false, false, endpick.Outcome{OutputTokens: 11}, 1011},
		"its client left":   {true, true, endpick.Outcome{Status: endpick.Canceled, OutputTokens: 5}, 1005},
		"nothing was begun": {true, false, endpick.Outcome{Status: endpick.Failed, OutputTokens: 5}, 0},
		"absurd":            {true, true, endpick.Outcome{OutputTokens: math.MaxInt32}, 1000 + 1<<24},
	} {
		d := newRig(t)
		l := d.route(1000, 20, x.stream)
		d.at(1)
		if x.answered {
			l.FirstToken()
		}
		d.at(2)
		l.Done(x.o)
		ref, _ := d.router.Ref("a")
		assert.Equal(t, x.filled, d.m.endpoints.Find(ref).filled, name)
	}
}

// What takes no time teaches nothing.
func TestNoTimeTeachesNothing(t *testing.T) {
	d := newRig(t)
	l := d.route(600, 30, false)
	assert.Zero(t, d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) }))
	l = d.route(600, 30, true)
	assert.Zero(t, d.label(requests, 1, l.FirstToken))
	assert.Zero(t, d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) }))
}
