package delay_test

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/slo/delay"
)

var debug = false

// event is something that happens at a time.
type event struct {
	at time.Duration
	do func()
}

type events []event

func (q events) Len() int           { return len(q) }
func (q events) Less(i, j int) bool { return q[i].at < q[j].at }
func (q events) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)        { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

// small is a fleet of servers that hold some of their models in memory, as Ollama does: the least
// recently used idle one goes when another one is asked for, one load at a time; each model answers
// one request at a time.
type small struct {
	router *endpick.Router
	now    time.Duration
	queue  events
	loads  int
	most   int
	load   map[string]time.Duration
	names  []string
	fleet  []*smallServer
}

type smallServer struct {
	id      string
	memory  map[string]*smallModel
	waiting []string // models that are to be loaded
	loading bool
}

type smallModel struct {
	ready bool
	used  time.Duration
	busy  bool
	queue []func() // begin to answer
}

func (s *small) after(d time.Duration, do func()) { heap.Push(&s.queue, event{s.now + d, do}) }

func (s *small) run(until func() bool) {
	for !until() && len(s.queue) > 0 {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
}

func newSmall(t testing.TB, servers, most int, load map[string]time.Duration, policy endpick.Policy) *small {
	s := &small{most: most, load: load}
	for name := range load {
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	var err error
	s.router, err = endpick.New(endpick.Config{Seed: 1, Policy: policy, Clock: func() time.Time { return time.Unix(1000, 0).Add(s.now) }})
	require.NoError(t, err)
	for i := range servers {
		v := &smallServer{id: fmt.Sprint(i), memory: map[string]*smallModel{}}
		s.fleet = append(s.fleet, v)
		require.NoError(t, s.router.Add(endpick.Endpoint{ID: v.id, Models: s.names}))
	}
	s.poll(t)
	return s
}

// poll tells the router what is in memory, every few seconds.
func (s *small) poll(t testing.TB) {
	for _, v := range s.fleet {
		e := endpick.Endpoint{ID: v.id, Models: s.names, MaxResidents: 0}
		for _, name := range s.names {
			r := endpick.Resident{Model: name}
			if m := v.memory[name]; m != nil {
				r.State = endpick.Loading
				if m.ready {
					r.State = endpick.InMemory
				}
			}
			e.Residents = append(e.Residents, r)
		}
		require.NoError(t, s.router.Update(e))
	}
	s.after(2*time.Second, func() { s.poll(t) })
}

// ask sends a request, and calls done when it has been answered.
func (s *small) ask(t testing.TB, model string, service time.Duration, done func(took time.Duration)) {
	start := s.now
	var receipt endpick.Receipt
	lease, err := s.router.Route(endpick.Request{Model: model, InputTokens: 500, Stream: true, Receipt: &receipt})
	if debug {
		for _, v := range receipt.Verdicts {
			fmt.Println(s.now, model, v.Candidate.Endpoint.ID, v.Why)
		}
	}
	require.NoError(t, err)
	v := s.fleet[slices.IndexFunc(s.fleet, func(v *smallServer) bool { return v.id == lease.Endpoint().ID })]
	s.enter(v, model, func() {
		s.after(service/4, lease.FirstToken)
		s.after(service, func() {
			lease.Tokens(50)
			lease.Done(endpick.Outcome{InputTokens: 500, OutputTokens: 50})
			m := v.memory[model]
			m.used, m.busy = s.now, false
			if len(m.queue) > 0 {
				next := m.queue[0]
				m.queue, m.busy = m.queue[1:], true
				next()
			}
			s.next(v)
			done(s.now - start)
		})
	})
}

func (s *small) enter(v *smallServer, model string, begin func()) {
	m := v.memory[model]
	if m == nil || !m.ready {
		if m == nil && !slices.Contains(v.waiting, model) {
			v.waiting = append(v.waiting, model)
		}
		if m != nil {
			m.queue = append(m.queue, begin)
			return
		}
		s.waitFor(v, model, begin)
		s.next(v)
		return
	}
	m.used = s.now
	if m.busy {
		m.queue = append(m.queue, begin)
		return
	}
	m.busy = true
	begin()
}

// waitFor begins when the model is there.
func (s *small) waitFor(v *smallServer, model string, begin func()) {
	s.after(50*time.Millisecond, func() {
		if m := v.memory[model]; m == nil {
			s.waitFor(v, model, begin)
		} else {
			s.enter(v, model, begin)
		}
	})
}

// next loads the next model, if there is room.
func (s *small) next(v *smallServer) {
	if v.loading || len(v.waiting) == 0 {
		return
	}
	if len(v.memory) >= s.most {
		oldest := ""
		for name, m := range v.memory {
			if m.ready && !m.busy && len(m.queue) == 0 && (oldest == "" || m.used < v.memory[oldest].used) {
				oldest = name
			}
		}
		if oldest == "" {
			return
		}
		delete(v.memory, oldest)
	}
	model := v.waiting[0]
	v.waiting, v.loading = v.waiting[1:], true
	m := &smallModel{used: s.now}
	v.memory[model] = m
	s.loads++
	if debug {
		fmt.Println(s.now, v.id, "loads", model, "has", fmt.Sprint(slices.Sorted(maps.Keys(v.memory))))
	}
	s.after(s.load[model], func() {
		v.loading, m.ready, m.used = false, true, s.now
		if len(m.queue) > 0 {
			next := m.queue[0]
			m.queue, m.busy = m.queue[1:], true
			next()
		}
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

// points is what small fleets set by hand: fifty for who has the model in memory, three off for each
// request that is there, as Ollama Herd does.
type points struct{}

func (points) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		c := &candidates[i]
		dst[i] = -3 * c.BatchSize()
		if r := c.Endpoint.Resident(req.Model); r != nil && r.State != endpick.OnDisk {
			dst[i] += 50
		}
	}
}

// sticky sends each model to one server.
type sticky struct{}

func (sticky) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	h := fnv.New32()
	h.Write([]byte(req.Model))
	for i := range candidates {
		dst[i] = 0
		if candidates[i].Endpoint.ID == fmt.Sprint(h.Sum32()%uint32(len(candidates))) {
			dst[i] = 1
		}
	}
}

func TestSmallFleets(t *testing.T) {
	policies := map[string]func() endpick.Policy{
		"ours": func() endpick.Policy {
			m := newMarginal(t, delay.Config{})
			return endpick.Policy{Predictor: m, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}}
		},
		"round robin": func() endpick.Policy {
			return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.RoundRobin(), Weight: 1}}}
		},
		"least loaded": func() endpick.Policy {
			return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}
		},
		"points": func() endpick.Policy {
			return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: points{}, Weight: 1}}}
		},
		"sticky": func() endpick.Policy {
			return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: sticky{}, Weight: 1}}}
		},
	}
	for _, seconds := range []float64{2, 10, 40, 0} {
		for _, skew := range []float64{0, 1, 2} {
			for _, at := range []float64{0.3, 0.6, 0.9} {
				line := fmt.Sprintf("load %2.0f s, Zipf %.0f, %.0f %%:", seconds, skew, 100*at)
				for _, name := range slices.Sorted(maps.Keys(policies)) {
					loads, all := 0, []float64(nil)
					for seed := range uint64(3) {
						load := map[string]time.Duration{}
						for i := range 6 {
							each := seconds
							if each == 0 {
								each = []float64{2, 12, 40}[i%3]
							}
							load[string(rune('a'+i))] = time.Duration(each * 1e9)
						}
						s := newSmall(t, 4, 2, load, policies[name]())
						r := rand.New(rand.NewPCG(seed, 3))
						done := 0
						const n = 600
						// 4 servers × 2 models × 1 at a time, of 4 s each on average
						rate := at * 4 * 2 / 4 / 1.6
						when := time.Duration(0)
						for range n {
							when += time.Duration(r.ExpFloat64() / rate * 1e9)
							model, service := zipf(r, s.names, skew), time.Duration((1+3*r.ExpFloat64())*1e9)
							s.after(when, func() {
								s.ask(t, model, service, func(took time.Duration) { done++; all = append(all, took.Seconds()) })
							})
						}
						s.run(func() bool { return done == n })
						loads += s.loads
					}
					slices.Sort(all)
					sum := 0.0
					for _, v := range all {
						sum += v
					}
					line += fmt.Sprintf("  %s %.1f/%.0f (%d)", name, sum/float64(len(all)), all[len(all)*95/100], loads/3)
				}
				fmt.Println(line)
			}
		}
	}
}

// Three servers that hold two of six models: few loads, whoever asks for what.
func TestFewLoads(t *testing.T) {
	for seed := range uint64(5) {
		debug = false
		m := newMarginal(t, delay.Config{})
		load := map[string]time.Duration{}
		for i := range 6 {
			load[string(rune('a'+i))] = 150 * time.Millisecond
		}
		s := newSmall(t, 3, 2, load, endpick.Policy{Predictor: m, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}})
		r := rand.New(rand.NewPCG(seed, 3))
		asked, done := 0, 0
		var sum time.Duration
		var next func()
		next = func() {
			if asked++; asked > 120 {
				return
			}
			s.ask(t, zipf(r, s.names, 1), 60*time.Millisecond, func(took time.Duration) { done++; sum += took; next() })
		}
		for range 3 {
			next()
		}
		s.run(func() bool { return done == 120 })
		t.Log(seed, "loads", s.loads, "mean", sum/120, "in", s.now)
	}
}
