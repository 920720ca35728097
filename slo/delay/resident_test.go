package delay_test

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/slo/delay"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// event is something that happens at a time.
type event struct {
	at time.Duration
	do func()
}

// small is a fleet of servers that hold two of their models in memory, as Ollama does: the least
// recently used idle one goes when another one is asked for, one load at a time; each model answers
// one request at a time.
type small struct {
	router *endpick.Router
	now    time.Duration
	queue  []event // in order
	loads  int
	names  []string
	fleet  []*smallServer
}

type smallServer struct {
	id      string
	models  map[string]*smallModel
	waiting []*smallModel // that are to be loaded
	loading bool
}

type smallModel struct {
	state endpick.Residency
	load  time.Duration // how long that takes
	used  time.Duration
	busy  bool
	queue []func() // begin to answer
}

// idle reports whether it may go.
func (m *smallModel) idle() bool { return m.state == endpick.InMemory && !m.busy && len(m.queue) == 0 }

func (s *small) after(d time.Duration, do func()) {
	i, _ := slices.BinarySearchFunc(s.queue, s.now+d, func(e event, at time.Duration) int { return cmp.Or(cmp.Compare(e.at, at), -1) })
	s.queue = slices.Insert(s.queue, i, event{s.now + d, do})
}

func (s *small) run(until func() bool) {
	for !until() && len(s.queue) > 0 {
		e := s.queue[0]
		s.queue, s.now = s.queue[1:], e.at
		e.do()
	}
}

func newSmall(t testing.TB, servers int, load map[string]time.Duration, policy endpick.Policy) *small {
	s := &small{names: slices.Sorted(maps.Keys(load))}
	s.router = rig.Must(endpick.New(endpick.Config{Seed: 1, Policy: policy, Clock: func() time.Time { return time.Unix(1000, 0).Add(s.now) }}))
	for i := range servers {
		v := &smallServer{id: fmt.Sprint(i), models: map[string]*smallModel{}}
		for name, takes := range load {
			v.models[name] = &smallModel{load: takes}
		}
		s.fleet = append(s.fleet, v)
		require.NoError(t, s.router.Add(endpick.Endpoint{ID: v.id, Models: s.names}))
	}
	s.poll(t)
	return s
}

// poll tells the router what is in memory, every few seconds.
func (s *small) poll(t testing.TB) {
	for _, v := range s.fleet {
		e := endpick.Endpoint{ID: v.id, Models: s.names, ResidentsAt: s.router.Now()}
		for _, name := range s.names {
			m := v.models[name]
			if m.idle() && s.now-m.used > 5*time.Minute {
				m.state = endpick.OnDisk
			}
			e.Residents = append(e.Residents, endpick.Resident{Model: name, State: m.state})
		}
		require.NoError(t, s.router.Update(e))
	}
	s.after(2*time.Second, func() { s.poll(t) })
}

// ask sends a request, and calls done when it has been answered.
func (s *small) ask(model string, service time.Duration, done func(took time.Duration)) {
	start := s.now
	lease := rig.Must(s.router.Route(endpick.Request{Model: model, InputTokens: 500, Stream: true}))
	v := s.fleet[slices.IndexFunc(s.fleet, func(v *smallServer) bool { return v.id == lease.Endpoint().ID })]
	m := v.models[model]
	m.used = s.now
	m.queue = append(m.queue, func() {
		s.after(service/4, lease.FirstToken)
		s.after(service, func() {
			lease.Tokens(50)
			lease.Done(endpick.Outcome{InputTokens: 500, OutputTokens: 50})
			m.used, m.busy = s.now, false
			m.serve()
			s.next(v)
			done(s.now - start)
		})
	})
	if m.serve(); m.state == endpick.OnDisk && len(m.queue) == 1 {
		v.waiting = append(v.waiting, m)
		s.next(v)
	}
}

// serve begins the next request, if it can.
func (m *smallModel) serve() {
	if m.state == endpick.InMemory && !m.busy && len(m.queue) > 0 {
		next := m.queue[0]
		m.queue, m.busy = m.queue[1:], true
		next()
	}
}

// next loads the next model, if there is room.
func (s *small) next(v *smallServer) {
	if v.loading || len(v.waiting) == 0 {
		return
	}
	var oldest *smallModel
	there := 0
	for _, name := range s.names {
		m := v.models[name]
		if m.state != endpick.OnDisk {
			there++
		}
		if m.idle() && (oldest == nil || m.used < oldest.used) {
			oldest = m
		}
	}
	if there >= 2 {
		if oldest == nil {
			return
		}
		oldest.state = endpick.OnDisk
	}
	m := v.waiting[0]
	v.waiting, v.loading = v.waiting[1:], true
	m.state, m.used = endpick.Loading, s.now
	s.loads++
	s.after(m.load, func() {
		v.loading, m.state, m.used = false, endpick.InMemory, s.now
		m.serve()
		s.next(v)
	})
}

// zipf draws names.
func zipf(r *rand.Rand, names []string, s float64) string {
	sum := 0.0
	for i := range names {
		sum += math.Pow(float64(i+1), -s)
	}
	u := r.Float64() * sum
	for i, name := range names {
		if u -= math.Pow(float64(i+1), -s); u < 0 {
			return name
		}
	}
	return names[len(names)-1]
}

// points are what small fleets set by hand: fifty for who has the model in memory, three off for each
// request that is there, as Ollama Herd does.
func points(req *endpick.Request, c *endpick.Candidate) float64 {
	cost := 3 * c.BatchSize()
	if r := c.Endpoint.Resident(req.Model); r != nil && r.State != endpick.OnDisk {
		cost -= 50
	}
	return cost
}

// sticky sends each model to one of four servers.
func sticky(req *endpick.Request, c *endpick.Candidate) float64 {
	h := fnv.New32()
	h.Write([]byte(req.Model))
	if c.Endpoint.ID == fmt.Sprint(h.Sum32()%4) {
		return 0
	}
	return 1
}

// loadsOf are models that take that many seconds to be loaded, in turn.
func loadsOf(models int, seconds ...float64) map[string]time.Duration {
	load := map[string]time.Duration{}
	for i := range models {
		load[string(rune('a'+i))] = time.Duration(seconds[i%len(seconds)] * 1e9)
	}
	return load
}

func ours() endpick.Policy {
	m := rig.Must(delay.New(delay.Config{}))
	return endpick.Policy{Predictor: m, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}}
}

// pattern is who asks when: as one likes, with favorites that change after a hundred requests, agents that
// ask two models in turn, or hardly anybody for half an hour before all come back.
type pattern uint8

const (
	steady pattern = iota
	drift
	agents
	morning
)

// asks sends n requests, at a rate, for models of which some are asked for more.
func (s *small) asks(t testing.TB, p pattern, seed uint64, n int, rate, skew float64, took func(time.Duration)) {
	r, done, when := rand.New(rand.NewPCG(seed, 3)), 0, time.Duration(0)
	service := func() time.Duration { return time.Duration((1 + 3*r.ExpFloat64()) * 1e9) }
	ended := func(d time.Duration) { done++; took(d) }
	const turns = 10
	for i := 0; i < n; i++ {
		wait := r.ExpFloat64() / rate
		switch {
		case p == morning && i == n/3:
			wait = 1800
		case p == agents:
			wait *= turns
		}
		when += time.Duration(wait * 1e9)
		names := s.names
		if p == drift {
			names = slices.Concat(names[i/100%len(names):], names[:i/100%len(names)])
		}
		model := zipf(r, names, skew)
		if p != agents {
			took := service()
			s.after(when, func() { s.ask(model, took, ended) })
			continue
		}
		pair := [2]string{model, zipf(r, names, skew)}
		var turn func(k int)
		turn = func(k int) {
			s.ask(pair[k%2], service(), func(d time.Duration) {
				if ended(d); k+1 < turns {
					s.after(time.Second, func() { turn(k + 1) })
				}
			})
		}
		s.after(when, func() { turn(0) })
		i += turns - 1
	}
	s.run(func() bool { return done == n })
	require.Equal(t, n, done)
}

// Four servers hold two of six models each: ours is ahead of those that know what is in memory, and of
// those that do not, in the mean and for the slowest.
func TestSmallFleets(t *testing.T) {
	others := []func() endpick.Scorer{
		scorer.RoundRobin, scorer.LeastLoaded,
		func() endpick.Scorer { return scorer.Cost("points", points) }, func() endpick.Scorer { return scorer.Cost("sticky", sticky) },
	}
	for _, tc := range []struct {
		load     map[string]time.Duration
		pattern  pattern
		skew, at float64
		better   float64 // than the best of the others, in the mean
	}{
		{loadsOf(6, 2, 12, 40), steady, 1, 0.6, 0.8},
		{loadsOf(6, 2, 12, 40), steady, 0, 0.9, 0.9},
		{loadsOf(6, 2), steady, 1, 0.3, 0.9},
		{loadsOf(6, 10), steady, 2, 0.9, 0.7},
		{loadsOf(6, 40), steady, 1, 0.9, 0.7},
		{loadsOf(6, 2, 12, 40), drift, 1, 0.6, 0.8},
		{loadsOf(6, 2, 12, 40), agents, 1, 0.6, 0.6},
		{loadsOf(6, 2, 12, 40), morning, 1, 0.6, 0.75},
	} {
		run := func(policy func() endpick.Policy) (mean, slow float64) {
			var all []float64
			for seed := range uint64(8) {
				// Eight places, of which skewed requests can't use all, and four seconds for each request.
				newSmall(t, 4, tc.load, policy()).asks(t, tc.pattern, seed, 600, tc.at*8/4/1.6, tc.skew, func(took time.Duration) { all = append(all, took.Seconds()) })
			}
			slices.Sort(all)
			for _, v := range all {
				mean += v / float64(len(all))
			}
			return mean, all[len(all)*95/100]
		}
		mean, slow := run(ours)
		best, bestSlow := math.Inf(1), math.Inf(1)
		for _, other := range others {
			m, s := run(func() endpick.Policy {
				return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: other(), Weight: 1}}}
			})
			best, bestSlow = min(best, m), min(bestSlow, s)
		}
		t.Logf("%d, Zipf %v, %v: %.1f s, p95 %.0f; best of the others %.1f, %.0f", tc.pattern, tc.skew, tc.at, mean, slow, best, bestSlow)
		assert.Less(t, mean, tc.better*best)
		assert.LessOrEqual(t, slow, 1.02*bestSlow)
	}
}

// Three servers that hold two of six models: whoever asks for what, there are hardly more loads than
// models, although nobody says how many fit, and before anything is known of how long a prompt takes.
func TestFewLoads(t *testing.T) {
	for name, tc := range map[string]struct {
		load    map[string]time.Duration
		service time.Duration
	}{"long loads": {loadsOf(6, 1, 6, 11, 16, 21, 26), time.Second}, "short loads": {loadsOf(6, 0.15), 60 * time.Millisecond}} {
		loads := 0
		for seed := range uint64(5) {
			s, r := newSmall(t, 3, tc.load, ours()), rand.New(rand.NewPCG(seed, 3))
			asked, done := 0, 0
			var next func()
			next = func() {
				if asked++; asked <= 120 {
					s.ask(zipf(r, s.names, 1), tc.service, func(time.Duration) { done++; next() })
				}
			}
			for range 3 {
				next()
			}
			s.run(func() bool { return done == 120 })
			loads += s.loads
		}
		t.Log(name, loads)
		assert.LessOrEqual(t, loads, 5*9, name)
	}
}

// Requests for a model that is nowhere in memory, or with another context, cause one load, even at the
// same moment.
func TestOneLoadForAll(t *testing.T) {
	for i := range 100 {
		r := []endpick.Resident{{Model: "m", State: endpick.InMemory, Context: 4096}}
		if i%2 == 0 {
			r = []endpick.Resident{{Model: "m"}}
		}
		w := routing(endpick.Endpoint{ID: "a", Residents: r}, endpick.Endpoint{ID: "b", Residents: r}, endpick.Endpoint{ID: "c", Residents: r})
		var all sync.WaitGroup
		var chosen sync.Map
		for range 8 {
			all.Go(func() {
				lease, err := w.router.Route(endpick.Request{Model: "m", Context: 8192, InputTokens: 100, Stream: true})
				assert.NoError(t, err)
				chosen.Store(lease.Endpoint().ID, true)
			})
		}
		all.Wait()
		n := 0
		chosen.Range(func(any, any) bool { n++; return true })
		require.Equal(t, 1, n)
	}
}

// loads is what a receipt says of them, at the end.
var loads = regexp.MustCompile(`(w · load .*)?$`)

// What a load costs, by hand: its time and that of a load under way; of what has to go, if that is as
// likely to be asked for first, half of its load (what was asked for before counts a little less), and of
// this a half if another server has it.
func TestPriceOfALoad(t *testing.T) {
	x := endpick.Resident{Model: "x", State: endpick.InMemory}
	for want, lists := range map[string][][]endpick.Resident{
		"w · load 10000": {{{Model: "m"}}},
		"w · load 5000":  {{{Model: "m", State: endpick.Loading}}},
		"w · load 15000": {{{Model: "m"}, {Model: "y", State: endpick.Loading}}},
		"w · load 10000 + w · back 4995 for [x]": {{{Model: "m"}, x, {Model: "z", State: endpick.InMemory}}},
		"w · load 10000 + w · back 2499 for [x]": {{{Model: "m"}, x, {Model: "z", State: endpick.InMemory}}, {{Model: "m"}, x}},
	} {
		w := routing()
		for i, residents := range lists {
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: fmt.Sprint(i), Residents: residents, MaxResidents: 2}))
		}
		var receipt endpick.Receipt
		for _, model := range []string{"x", "z", "z", "m"} {
			rig.Must(w.router.Route(endpick.Request{Model: model, InputTokens: 10, Receipt: &receipt}))
		}
		i := slices.IndexFunc(receipt.Verdicts, func(v endpick.Verdict) bool { return v.Candidate.Endpoint.ID == "0" })
		assert.Equal(t, want, loads.FindString(receipt.Verdicts[i].Why))
	}
}

// A request for another context than the model was loaded with goes where it has that, or else causes a
// load; so does whoever comes back for the old one. Who asks for none, takes any.
func TestContextsThatReload(t *testing.T) {
	in := func(id string, context int) endpick.Endpoint {
		return endpick.Endpoint{ID: id, Residents: []endpick.Resident{{Model: "m", State: endpick.InMemory, Context: context}}}
	}
	w := routing(in("a", 4096), in("b", 8192))
	ask := func(context int, took time.Duration) string {
		var receipt endpick.Receipt
		lease := rig.Must(w.router.Route(endpick.Request{Model: "m", InputTokens: 10, Context: context, Receipt: &receipt}))
		lease.Done(endpick.Outcome{OutputTokens: 1, LoadTime: took})
		w.now = w.now.Add(time.Second)
		return lease.Endpoint().ID + " " + loads.FindString(receipt.Verdicts[receipt.Chosen].Why)
	}
	for range 3 {
		assert.Equal(t, "a ", ask(4096, 0))
		assert.Equal(t, "b ", ask(8192, 0))
	}
	require.NoError(t, w.router.Drain("b"))
	assert.Equal(t, "a w · load 10000 + w · back 4614 for [m]", ask(8192, 10*time.Second))
	assert.Equal(t, "a ", ask(8192, 0))
	assert.Equal(t, "a ", ask(0, 0))
	ask(4096, 10*time.Second)
	ask(8192, 0) // which is not loaded, after all
	assert.Equal(t, []delay.Loads{{Model: "m", Nowhere: 1, Unexpected: 1, Took: 20 * time.Second}}, w.m.Loads())
}

// mAndN has m in memory, and n on disk.
var mAndN = endpick.Endpoint{ID: "a", MaxResidents: 1, Residents: []endpick.Resident{
	{Model: "m", State: endpick.InMemory, Bytes: 1e6}, {Model: "n", Bytes: 1e6},
}}

// What waits for another model's load, or takes no longer than an engine needs to look, was in memory;
// the engine's own word that it has loaded it stands for the rest.
func TestLoadsThatNobodyExpected(t *testing.T) {
	beside := mAndN
	beside.MaxResidents = 0
	w := routing(beside)
	route := func(model string) endpick.Lease {
		lease := rig.Must(w.router.Route(endpick.Request{Model: model, InputTokens: 10}))
		w.now = w.now.Add(100 * time.Millisecond)
		return lease
	}
	done := func(lease endpick.Lease, took time.Duration) {
		lease.Done(endpick.Outcome{OutputTokens: 1, LoadTime: took * time.Millisecond})
	}
	loads, behind := route("n"), route("m")
	done(loads, 400)
	done(behind, 300)
	done(route("m"), 40)
	assert.Equal(t, []delay.Loads{{Model: "n", Nowhere: 1, Took: 400 * time.Millisecond}}, w.m.Loads())
	first, second := route("m"), route("m")
	done(first, 400)
	done(second, 390)
	assert.Equal(t, delay.Loads{Model: "m", Unexpected: 1, Took: 400 * time.Millisecond}, w.m.Loads()[0])
}

// An engine counts a load until the model is there; the first prompt then reads the weights, which takes
// as long again. What the next request is expected to wait is both.
func TestTheFirstPromptBelongsToTheLoad(t *testing.T) {
	for _, stream := range []bool{true, false} {
		w := routing(mAndN)
		ask := func(model string, first, load time.Duration) {
			lease := rig.Must(w.router.Route(endpick.Request{Model: model, InputTokens: 10, Stream: stream}))
			w.now = w.now.Add(first * time.Millisecond)
			if stream {
				lease.FirstToken()
			}
			w.now = w.now.Add(2 * time.Second)
			lease.Done(endpick.Outcome{OutputTokens: 101, LoadTime: load * time.Millisecond})
		}
		for range 20 {
			ask("m", 100, 0)
		}
		ask("n", 700, 290)
		loads := w.m.Loads()
		require.Len(t, loads, 1)
		assert.InDelta(t, 600, loads[0].Mean().Milliseconds(), 20)
	}
}

// Where every model is in memory, or nothing is said of it, nothing is different.
func TestResidentsThatAreThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.IntRange(1, 4000), 1, 20).Draw(t, "tokens")
		went := func(residents ...endpick.Resident) (ids []string) {
			w := routing(endpick.Endpoint{ID: "a", Residents: residents}, endpick.Endpoint{ID: "b", Residents: residents})
			for _, n := range tokens {
				lease := rig.Must(w.router.Route(endpick.Request{Model: "m", InputTokens: n, Stream: true}))
				ids = append(ids, lease.Endpoint().ID)
				lease.FirstToken()
				lease.Done(endpick.Outcome{OutputTokens: 10})
			}
			return ids
		}
		require.Equal(t, went(), went(endpick.Resident{Model: "m", State: endpick.InMemory}, endpick.Resident{Model: "other"}))
		loaded := went(endpick.Resident{Model: "m"}) // since it was listed, whenever that was
		require.Len(t, slices.Compact(loaded), 1)
	})
}
