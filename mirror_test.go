package endpick_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// witness is a stage that records what it observes.
type witness struct {
	routed, firsts, dones int
	candidates            int
	ttft, tpot, took      time.Duration
	timed                 bool
}

func (h *witness) Admit(*endpick.Request, []endpick.Candidate) error { return errAsked }
func (h *witness) Routed(e *endpick.Event)                           { h.routed++; h.candidates = len(e.Candidates) }
func (h *witness) FirstToken(e *endpick.Event) {
	h.firsts++
	_, h.timed = e.TTFT()
}
func (h *witness) Done(e *endpick.Event, _ *endpick.Outcome) {
	h.dones++
	h.ttft, h.timed = e.TTFT()
	h.tpot, _ = e.TPOT()
	h.took = e.Now.Sub(e.RoutedAt)
}

var errAsked = assert.AnError

// A mirrored request goes where it was sent, past an admitter that refuses
// everything and a scorer that prefers another endpoint; it counts, and observers
// are notified.
func TestMirror(t *testing.T) {
	h := &witness{}
	scored := 0
	r, c := newRouter(t, endpick.Config{
		Endpoints: named("a", "b"),
		Policy: endpick.Policy{
			Admitters: []endpick.Admitter{h},
			Matcher:   matchFunc(func(*endpick.Request, *endpick.Candidate) int { return 7 }),
			Filters: []endpick.Filter{filterFunc(func(_ *endpick.Request, c []endpick.Candidate) []endpick.Candidate {
				scored++
				return c
			})},
		},
	})
	_, err := r.Route(endpick.Request{})
	require.ErrorIs(t, err, endpick.ErrRejected)

	var receipt endpick.Receipt
	lease, err := r.Route(endpick.Request{
		MirrorOf: "b", MirrorPrefix: 30, InputTokens: 100, Stream: true, Exclude: []string{"b"}, Avoid: []string{"b"}, Receipt: &receipt,
	})
	require.NoError(t, err)
	assert.Equal(t, "b", lease.Endpoint().ID)
	assert.Zero(t, scored)
	assert.Equal(t, endpick.Receipt{}, receipt)
	assert.Equal(t, 2, h.candidates, "observers see all candidates")
	assert.Equal(t, endpick.InFlight{Requests: 1, Prefilling: 1, PrefillTokens: 70, ContextTokens: 100}, status(t, r, "b").Candidate.InFlight)
	assert.Zero(t, status(t, r, "a").Candidate.InFlight)

	c.advance(time.Second)
	lease.FirstToken()
	assert.Equal(t, 1, h.firsts)
	assert.False(t, h.timed, "when it came here says little")
	c.advance(time.Second)
	assert.True(t, lease.Done(endpick.Outcome{Took: 5 * time.Second, TTFT: time.Second, OutputTokens: 9}))
	assert.Equal(t, witness{1, 1, 1, 2, time.Second, 500 * time.Millisecond, 5 * time.Second, true}, *h)
	requireQuiet(t, r)
	stats := r.Stats()
	assert.Equal(t, [2]uint64{1, 1}, [2]uint64{stats.Routed, stats.Mirrored})
}

// Times that were not reported, or are impossible, are unknown; those of a router's
// own requests are ignored.
func TestMirrorTimes(t *testing.T) {
	type told struct{ took, ttft time.Duration }
	for _, x := range []struct {
		name   string
		mirror string
		told
		timed bool
		ttft  time.Duration
		took  time.Duration // if not reported, how long it was known here
	}{
		{"nothing", "a", told{}, false, 0, 3 * time.Second},
		{"no first token", "a", told{took: time.Second}, false, 0, time.Second},
		{"negative", "a", told{-time.Second, -2 * time.Second}, false, 0, 3 * time.Second},
		{"a first token after the last", "a", told{time.Second, 2 * time.Second}, false, 0, 3 * time.Second},
		{"all", "a", told{2 * time.Second, time.Second}, true, time.Second, 2 * time.Second},
		{"its own", "", told{2 * time.Second, time.Second}, true, 3 * time.Second, 3 * time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := &observing{}
			r, c := newRouter(t, endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Filters: []endpick.Filter{o}}})
			lease := route(t, r, endpick.Request{MirrorOf: x.mirror, InputTokens: 10, Stream: true})
			c.advance(3 * time.Second)
			lease.Tokens(1)
			lease.Done(endpick.Outcome{Took: x.told.took, TTFT: x.told.ttft})
			assert.Equal(t, x.timed, o.timed)
			assert.Equal(t, x.ttft, o.ttft)
			assert.Equal(t, x.took, o.took)
		})
	}
}

// The other router's times say when the last token came, too, if nobody has reported a token here.
func TestMirrorOfWhichNothingWasHeard(t *testing.T) {
	o := &observing{}
	r, c := newRouter(t, endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Filters: []endpick.Filter{o}}})
	lease := route(t, r, endpick.Request{MirrorOf: "a", InputTokens: 10, Stream: true})
	c.advance(9 * time.Second)
	lease.Done(endpick.Outcome{Took: 5 * time.Second, TTFT: time.Second, OutputTokens: 9})
	assert.Equal(t, []time.Duration{time.Second, 500 * time.Millisecond}, []time.Duration{o.ttft, o.tpot})
}

// observing is a witness that only observes.
type observing struct{ witness }

func (*observing) Filter(_ *endpick.Request, c []endpick.Candidate) []endpick.Candidate { return c }

// The other router's match is used as far as it is possible.
func TestMirrorPrefix(t *testing.T) {
	for _, x := range []struct{ input, told, prefill int }{{100, 30, 70}, {100, 99, 1}, {100, 100, 1}, {100, 1 << 30, 1}, {100, -5, 100}, {0, 30, 0}} {
		r, _ := newRouter(t, endpick.Config{Endpoints: named("a")})
		lease := route(t, r, endpick.Request{MirrorOf: "a", MirrorPrefix: x.told, InputTokens: x.input, Stream: true})
		assert.Equal(t, x.prefill, status(t, r, "a").Candidate.InFlight.PrefillTokens, "%v", x)
		c, _ := lease.Candidate()
		assert.Equal(t, min(max(x.told, 0), max(x.input-1, 0)), c.PrefixTokens, "%v", x)
		lease.Done(endpick.Outcome{})
		requireQuiet(t, r)
	}
}

func TestMirrorOfWhatTakesNoRequests(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Models: []string{"m"}}, {ID: "b", Models: []string{"m"}}}})
	require.NoError(t, r.Drain("a"))
	drained := route(t, r, endpick.Request{Model: "m", MirrorOf: "a", InputTokens: 10})
	assert.Equal(t, 1, status(t, r, "a").Candidate.InFlight.Requests)
	other := route(t, r, endpick.Request{Model: "other", MirrorOf: "b", InputTokens: 10})
	assert.Equal(t, 1, status(t, r, "b").Candidate.InFlight.Requests)
	own := route(t, r, endpick.Request{Model: "m"})
	assert.Equal(t, "b", own.Endpoint().ID, "the drained one is mirrored, not used")

	_, err := r.Route(endpick.Request{Model: "m", MirrorOf: "c"})
	require.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
	assert.EqualValues(t, 1, r.Stats().NoEndpoint)
	require.NoError(t, r.Remove("a"))
	_, err = r.Route(endpick.Request{Model: "m", MirrorOf: "a"})
	require.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
	_, err = r.Route(endpick.Request{Model: "m", MirrorOf: "b", InputTokens: -1})
	require.ErrorIs(t, err, endpick.ErrBadRequest)
	for _, l := range []endpick.Lease{drained, other, own} {
		l.Done(endpick.Outcome{})
	}
	requireQuiet(t, r)
}

// A report that includes a request that another router has sent does not count it
// on top of the mirror: marks count mirrors like a router's own requests.
func TestMirrorsAndReports(t *testing.T) {
	r, c := newRouter(t, endpick.Config{Endpoints: named("a")})
	mirror := route(t, r, endpick.Request{MirrorOf: "a", InputTokens: 10, Stream: true})
	mirror.FirstToken()
	mark := r.Mark("a")
	c.advance(time.Millisecond)
	require.NoError(t, r.Report("a", endpick.Load{Running: 1, Mark: mark}))
	assert.Equal(t, 1.0, status(t, r, "a").Candidate.Running, "once")
	another := route(t, r, endpick.Request{MirrorOf: "a", InputTokens: 10, Stream: true})
	batch := func() float64 {
		s := status(t, r, "a")
		return s.Candidate.BatchSize()
	}
	assert.Equal(t, 2.0, batch())
	mirror.Done(endpick.Outcome{})
	another.Done(endpick.Outcome{})
	assert.Zero(t, batch())
}

// However mirrors, a router's own requests and endpoints come and go, nothing
// remains, and each request is counted once.
func TestMirrorsConserve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := new(clock)
		r, err := endpick.New(endpick.Config{Endpoints: named("a", "b"), Clock: c.Now, Seed: 1})
		require.NoError(t, err)
		ids := rapid.SampledFrom([]string{"a", "b", "c"})
		var open []endpick.Lease
		t.Repeat(map[string]func(*rapid.T){
			"own": func(t *rapid.T) {
				if l, err := r.Route(endpick.Request{InputTokens: 10, Stream: true}); err == nil {
					open = append(open, l)
				}
			},
			"mirror": func(t *rapid.T) {
				if l, err := r.Route(endpick.Request{MirrorOf: ids.Draw(t, "of"), MirrorPrefix: rapid.IntRange(-5, 20).Draw(t, "prefix"), InputTokens: 10, Stream: true}); err == nil {
					open = append(open, l)
				}
			},
			"first": func(t *rapid.T) {
				if len(open) > 0 {
					rapid.SampledFrom(open).Draw(t, "lease").FirstToken()
				}
			},
			"done": func(t *rapid.T) {
				if len(open) > 0 {
					i := rapid.IntRange(0, len(open)-1).Draw(t, "lease")
					require.True(t, open[i].Done(endpick.Outcome{Took: time.Second}))
					require.False(t, open[i].Done(endpick.Outcome{}))
					open = append(open[:i], open[i+1:]...)
				}
			},
			"add":    func(t *rapid.T) { _ = r.Add(endpick.Endpoint{ID: ids.Draw(t, "id")}) },
			"remove": func(t *rapid.T) { _ = r.Remove(ids.Draw(t, "id")) },
			"drain":  func(t *rapid.T) { _ = r.Drain(ids.Draw(t, "id")) },
			"": func(t *rapid.T) {
				requests := 0
				for _, e := range r.Endpoints() {
					requests += e.Candidate.InFlight.Requests
				}
				require.Equal(t, len(open), requests)
				require.Equal(t, len(open), r.Stats().OpenLeases)
			},
		})
		for _, l := range open {
			l.Done(endpick.Outcome{})
		}
		for _, e := range r.Endpoints() {
			require.Zero(t, e.Candidate.InFlight)
		}
		require.Zero(t, r.Stats().Departing)
	})
}
