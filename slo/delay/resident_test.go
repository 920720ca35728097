package delay_test

import (
	"container/heap"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
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
		e := endpick.Endpoint{ID: v.id, Models: s.names, MaxResidents: 2}
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

// Three servers that hold two of six models: few loads, whoever asks for what.
func TestFewLoads(t *testing.T) {
	for seed := range uint64(5) {
		debug = seed == 0
		m := newMarginal(t, delay.Config{})
		load := map[string]time.Duration{}
		for i := range 6 {
			load[string(rune('a'+i))] = 150*time.Millisecond
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
