package endpick

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// witness is the Matcher, the first stage: it compares the candidates, which decisions
// reuse, with freshly built ones. It is also a filter that moves them, and a predictor of
// some.
type witness struct {
	t      *rapid.T
	router *Router
	now    time.Time
	seen   int
	allow  int // number of candidates that the filter keeps
	first  int
}

func bySlotOf(a, b Candidate) int { return cmp.Compare(a.Ref.Slot, b.Ref.Slot) }

func (w *witness) Match(req *Request, candidates []Candidate) {
	w.seen++
	var fresh []Candidate
	pool := w.router.fleet.find(req.serving()).load()
	mirrored := func(m member) bool { return m.endpoint.ID == req.MirrorOf }
	if req.MirrorOf != "" && !slices.ContainsFunc(pool, mirrored) {
		pool = []member{w.router.fleet.byID[req.MirrorOf]}
	}
	for _, m := range pool {
		if slices.Contains(req.Exclude, m.endpoint.ID) {
			continue
		}
		var c Candidate
		m.state.fill(&c, m.endpoint, w.router.reports(req.now))
		fresh = append(fresh, c)
	}
	avoided := func(c Candidate) bool { return slices.Contains(req.Avoid, c.Endpoint.ID) }
	if others := slices.DeleteFunc(slices.Clone(fresh), avoided); len(others) > 0 {
		fresh = others
	}
	fillAbsent(fresh)
	got := slices.SortedFunc(slices.Values(candidates), bySlotOf)
	require.Equal(w.t, len(fresh), len(got))
	for i := range fresh {
		require.True(w.t, fresh[i].Endpoint == got[i].Endpoint, "the description that counts now")
		require.Equal(w.t, fresh[i], got[i])
	}
	for i := range candidates {
		candidates[i].PrefixTokens, candidates[i].EvictedTokens = i, i
	}
}

func (w *witness) Predict(_ *Request, candidates []Candidate) {
	for i := range candidates {
		candidates[i].Prediction = Prediction{Has: TTFT, TTFT: time.Duration(i)}
	}
}

// Filter keeps some from the middle.
func (w *witness) Filter(_ *Request, candidates []Candidate) []Candidate {
	i := 0
	return Keep(candidates, func(*Candidate) bool {
		i++
		return i > w.first && i <= w.first+w.allow
	})
}

func TestRowsAreAsMadeAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &witness{t: t, now: time.Unix(1e9, 0)}
		policy := Policy{Matcher: w, Predictor: w, Filters: []Filter{w}}
		var err error
		w.router, err = New(Config{Seed: 1, Clock: func() time.Time { return w.now }, Policy: policy})
		require.NoError(t, err)
		r := w.router
		var leases []Lease
		id := func() string { return fmt.Sprintf("e%d", rapid.IntRange(0, 5).Draw(t, "id")) }
		endpoint := func() Endpoint {
			return Endpoint{
				ID: id(), Variant: rapid.SampledFrom([]string{"", "v"}).Draw(t, "variant"),
				Models: rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}}).Draw(t, "models"),
			}
		}
		for i := range 6 {
			e := endpoint()
			e.ID = fmt.Sprintf("e%d", i)
			require.NoError(t, r.Add(e))
		}
		t.Repeat(map[string]func(*rapid.T){
			"lease": func(*rapid.T) {
				if len(leases) == 0 {
					return
				}
				l := rapid.SampledFrom(leases).Draw(t, "of")
				switch rapid.IntRange(0, 3).Draw(t, "call") {
				case 0:
					l.FirstToken()
				case 1:
					l.Tokens(3)
				default:
					l.Done(Outcome{})
				}
			},
			"": func(*rapid.T) { // after each of the others
				// Rows with all signals are not refilled.
				if rapid.IntRange(0, 4).Draw(t, "all report") == 0 {
					for i := range 6 {
						_ = r.Report(fmt.Sprintf("e%d", i), Load{Waiting: float64(i), KVUsage: 0.5})
					}
				}
				for range rapid.IntRange(1, 4).Draw(t, "times") {
					w.first, w.allow = rapid.IntRange(0, 3).Draw(t, "first"), rapid.IntRange(0, 3).Draw(t, "left")
					req := Request{
						Model: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "model"), InputTokens: 10,
						Stream: rapid.Bool().Draw(t, "stream"),
					}
					if rapid.IntRange(0, 3).Draw(t, "choosy") == 0 {
						req.Exclude, req.Avoid = []string{id()}, []string{id(), id()}
					}
					if rapid.IntRange(0, 9).Draw(t, "mirrored") == 0 {
						req.MirrorOf = id()
					}
					if l, err := r.Route(req); err == nil {
						leases = append(leases, l)
					}
				}
			},
			"report": func(*rapid.T) {
				load := Load{Waiting: 1, Running: float64(rapid.IntRange(0, 9).Draw(t, "running")), KVUsage: 0.25}
				if rapid.IntRange(0, 3).Draw(t, "partial") == 0 {
					load.Absent = Signals(rapid.IntRange(0, 7).Draw(t, "absent"))
				}
				_ = r.Report(id(), load)
			},
			"time": func(*rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 31, 59, 61, -61, -5, 700}).Draw(t, "seconds")) * time.Second)
			},
			"add":    func(*rapid.T) { _ = r.Add(endpoint()) },
			"update": func(*rapid.T) { _ = r.Update(endpoint()) },
			"remove": func(*rapid.T) { _ = r.Remove(id()) },
			"drain":  func(*rapid.T) { _ = r.Drain(id()) },
			"resume": func(*rapid.T) { _ = r.Resume(id()) },
			"set": func(*rapid.T) {
				var some []Endpoint
				for _, e := range []string{"e1", "e2", "e3"} {
					some = append(some, Endpoint{ID: e, Models: []string{"a"}})
				}
				_ = r.SetEndpoints(some)
			},
		})
	})
}

// A report stops counting by its own age, whichever endpoint's row was filled last: after a
// minute, or when the clock has been set back by more than that.
func TestEveryReportLeavesTheWindow(t *testing.T) {
	for name, at := range map[string][3]int{
		"old": {0, 40, 70}, "ahead": {200, 150, 120}, // seconds: a's report, b's report, and when a's has stopped to count
	} {
		now := time.Unix(1e9, 0)
		var seen []Signals
		set := func(seconds int) { now = time.Unix(1e9, 0).Add(time.Duration(seconds) * time.Second) }
		r, err := New(Config{Clock: func() time.Time { return now }, Endpoints: []Endpoint{{ID: "a"}, {ID: "b"}}, Policy: Policy{
			Admitters: []Admitter{refusing{}}, // or whoever gets the request is filled again
			Matcher: matcherFunc(func(candidates []Candidate) {
				seen = nil
				for i := range candidates {
					seen = append(seen, candidates[i].Reported)
				}
			}),
		}})
		require.NoError(t, err)
		full := Load{Running: 1, KVUsage: 0.5}
		look := func() {
			_, err := r.Route(Request{})
			require.ErrorIs(t, err, ErrRejected)
		}
		set(at[0])
		require.NoError(t, r.Report("b", full))
		look()
		require.NoError(t, r.Report("a", full))
		look() // a's row is filled alone, later than b's
		require.Equal(t, []Signals{allSignals, allSignals}, seen, name)
		set(at[1])
		require.NoError(t, r.Report("b", full))
		look() // and now b's
		require.Equal(t, []Signals{allSignals, allSignals}, seen, name)
		set(at[2])
		look()
		require.Equal(t, []Signals{0, allSignals}, seen, name)
	}
}

// The next request sees every call of a lease, also where all signals are reported, so that rows
// are not refilled for lack of one; and one that comes while observers hear of an end sees what has
// ended so far.
func TestRequestsSeeEveryCallOfALease(t *testing.T) {
	var seen, whileDone InFlight
	var r *Router
	look := func() InFlight {
		_, err := r.Route(Request{})
		require.ErrorIs(t, err, ErrRejected)
		return seen
	}
	r, err := New(Config{Endpoints: []Endpoint{{ID: "a"}}, Policy: Policy{
		Matcher:   matcherFunc(func(candidates []Candidate) { seen = candidates[0].InFlight }),
		Admitters: []Admitter{refusing{}, ends(func() { whileDone = look() })},
	}})
	require.NoError(t, err)
	require.NoError(t, r.Report("a", Load{}))
	stream, err := r.Route(Request{InputTokens: 5, Stream: true, UnderWay: true})
	require.NoError(t, err)
	whole, err := r.Route(Request{InputTokens: 7, UnderWay: true})
	require.NoError(t, err)
	require.Equal(t, InFlight{Requests: 2, Prefilling: 2, PrefillTokens: 12, ContextTokens: 12}, look())
	stream.FirstToken()
	require.Equal(t, InFlight{Requests: 2, Prefilling: 1, PrefillTokens: 7, ContextTokens: 12}, look())
	stream.Tokens(3)
	require.Equal(t, InFlight{Requests: 2, Prefilling: 1, PrefillTokens: 7, ContextTokens: 12, OutputTokens: 3}, look())
	whole.Tokens(2)
	require.Equal(t, InFlight{Requests: 2, ContextTokens: 12, OutputTokens: 5}, look())
	stream.Tokens(4)
	require.Equal(t, InFlight{Requests: 2, ContextTokens: 12, OutputTokens: 9}, look())
	stream.Done(Outcome{})
	require.Equal(t, InFlight{Requests: 2, ContextTokens: 7, OutputTokens: 2}, whileDone)
	require.Equal(t, InFlight{Requests: 1, ContextTokens: 7, OutputTokens: 2}, look())
	whole.Done(Outcome{})
	require.Equal(t, InFlight{}, look())
}

// ends is an admitter that hears of ends.
type ends func()

func (ends) Admit(*Request, []Candidate) error { return nil }
func (f ends) Done(*Event, *Outcome)           { f() }

// What a caller owns is not kept by the memory that the next decision will use.
func TestDecisionsForget(t *testing.T) {
	r, err := New(Config{Endpoints: []Endpoint{{ID: "a"}}})
	require.NoError(t, err)
	_, err = r.Route(Request{Blocks: []uint64{1}, Exclude: []string{"b"}, Receipt: new(Receipt)})
	require.NoError(t, err)
	d := r.work.Get().(*decision)
	require.Equal(t, Request{}, d.req)
	require.Nil(t, d.pool)
}

type refusing struct{}

func (refusing) Admit(*Request, []Candidate) error { return ErrRejected }

// A filter that overwrites candidates, instead of moving them, spoils no later decision.
func TestFiltersThatOverwrite(t *testing.T) {
	var seen []Candidate
	r, err := New(Config{Endpoints: []Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}, Policy: Policy{
		Matcher: matcherFunc(func(candidates []Candidate) { seen = slices.Clone(candidates) }), Filters: []Filter{lastOnly{}},
	}})
	require.NoError(t, err)
	for n := range 3 {
		_, err := r.Route(Request{})
		require.NoError(t, err)
		for i, id := range []string{"a", "b", "c"} {
			require.Equal(t, id, seen[i].Endpoint.ID)
			require.Equal(t, n*(i/2), seen[i].InFlight.Requests)
		}
	}
}

type lastOnly struct{}

func (lastOnly) Filter(_ *Request, candidates []Candidate) []Candidate {
	return append(candidates[:0], candidates[len(candidates)-1])
}

type matcherFunc func([]Candidate)

func (f matcherFunc) Match(_ *Request, candidates []Candidate) { f(candidates) }

// Rows that filters have moved are moved back, and only those of changed endpoints are
// refilled, whether or not an endpoint's index is its slot.
func TestRowsGoBackToTheirPlaces(t *testing.T) {
	now := time.Unix(1e9, 0)
	r, err := New(Config{Seed: 1, Clock: func() time.Time { return now }})
	require.NoError(t, err)
	for i := range 9 {
		model := "a"
		if i%4 == 3 {
			model = "other"
		}
		id := fmt.Sprintf("e%d", i)
		require.NoError(t, r.Add(Endpoint{ID: id, Models: []string{model}}))
		require.NoError(t, r.Report(id, Load{Waiting: 1, Running: 1, KVUsage: 0.5}))
	}
	d := new(decision)
	d.req = Request{Model: "a"}.At(now, 1, 1)
	slots := func() (slots []uint32) {
		for i := range d.candidates {
			slots = append(slots, d.candidates[i].Ref.Slot)
		}
		return slots
	}
	require.NoError(t, r.gather(d))
	home := []uint32{0, 1, 2, 4, 5, 6, 8}
	require.Equal(t, home, slots())
	const mark = 7 // no engine reports this
	for i := range d.candidates {
		d.candidates[i].KVUsage = mark
	}
	for _, order := range [][]int{{6, 5, 4, 3, 2, 1, 0}, {1, 2, 3, 4, 5, 6, 0}, {0, 2, 1, 4, 6, 3, 5}} {
		before := slices.Clone(d.candidates)
		for i, from := range order {
			d.candidates[i] = before[from]
		}
		require.NoError(t, r.gather(d))
		require.Equal(t, home, slots())
		for i := range d.candidates {
			require.EqualValues(t, mark, d.candidates[i].KVUsage, "place %d", i)
		}
	}
	slices.Reverse(d.candidates)
	require.NoError(t, r.Report("e5", Load{Waiting: 2, Running: 1, KVUsage: 0.25}))
	require.NoError(t, r.gather(d))
	require.Equal(t, home, slots())
	for i, want := range []float64{mark, mark, mark, mark, 0.25, mark, mark} {
		require.Equal(t, want, d.candidates[i].KVUsage, "place %d", i)
	}
}
