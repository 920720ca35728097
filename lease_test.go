package endpick_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestZeroLease(t *testing.T) {
	var l endpick.Lease
	assert.Nil(t, l.Endpoint())
	assert.Zero(t, l.Ref())
	l.FirstToken()
	l.Tokens(3)
	_, ok := l.Candidate()
	assert.False(t, ok)
	assert.False(t, l.Done(endpick.Outcome{}))
}

// Whoever looks sees that prefills have ended, although nothing has been routed since.
func TestPrefillsEndForWhoeverLooks(t *testing.T) {
	for name, look := range map[string]func(r *endpick.Router) float64{
		"Endpoints":        func(r *endpick.Router) float64 { return r.Endpoints()[0].Candidate.Waiting },
		"AppendCandidates": func(r *endpick.Router) float64 { return r.AppendCandidates(nil)[0].Waiting },
		"Route": func(r *endpick.Router) (waiting float64) {
			var receipt endpick.Receipt
			assert.NoError(t, rig.Err(r.Route(endpick.Request{Receipt: &receipt})))
			return receipt.Verdicts[0].Candidate.Waiting
		},
		"Mark": func(r *endpick.Router) float64 {
			assert.NoError(t, r.Report("a", endpick.Load{Waiting: 2, Running: 1, Snapshot: r.Snapshot("a")}))
			return r.Endpoints()[0].Candidate.Waiting - 2
		},
		"Report": func(r *endpick.Router) float64 {
			assert.NoError(t, r.Report("a", endpick.Load{Waiting: 2, Running: 1}))
			return r.Endpoints()[0].Candidate.Waiting - 2
		},
	} {
		r, c := newRouter(endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Predictor: expects(time.Second)}})
		l := rig.Must(r.Route(endpick.Request{InputTokens: 5}))
		c.advance(2 * time.Second)
		assert.Zero(t, look(r), name)
		l.Done(endpick.Outcome{})
	}
}

// Engines send calls of tools as one, when their last token is there.
func TestPrefillOfAStreamThatIsHeldBack(t *testing.T) {
	for _, p := range []endpick.Prediction{{TTFT: 1e9, TTFTUpper: 2e9}, {TTFT: 2e9}, {TTFT: 1e12}} {
		p.Has = endpick.TTFT
		predict := predictFunc(func(*endpick.Request, *endpick.Candidate) endpick.Prediction { return p })
		r, c := newRouter(endpick.Config{Endpoints: named("a"), LeaseTimeout: 6e9, Policy: endpick.Policy{Predictor: predict}})
		request := endpick.Request{InputTokens: 100, Stream: true}
		var leases [4]endpick.Lease
		for i := range leases {
			leases[i] = rig.Must(r.Route(request))
		}
		prefilling := func() int { return status(t, r, "a").Candidate.InFlight.Prefilling }
		c.advance(7 * time.Second)
		assert.Equal(t, 4, prefilling(), "nothing comes from there")
		leases[0].Tokens(1)
		c.advance(6 * time.Second)
		assert.Equal(t, 3, prefilling(), "they came later")
		leases[3].Tokens(1)
		leases[1].Tokens(1) // which is not the last that came
		c.advance(6*time.Second - 1)
		assert.Equal(t, 1, prefilling())
		c.advance(1)
		assert.Equal(t, endpick.InFlight{Requests: 4, ContextTokens: 400, OutputTokens: 3}, status(t, r, "a").Candidate.InFlight)
		leases[2].Tokens(50)
		assert.Zero(t, prefilling())
	}
}

// A prediction of the whole response says nothing of its prefill.
func TestPrefillOfUnknownLength(t *testing.T) {
	whole := predictFunc(func(*endpick.Request, *endpick.Candidate) endpick.Prediction {
		return endpick.Prediction{Has: endpick.E2E, TTFT: time.Second, E2E: time.Second}
	})
	r, c := newRouter(endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Predictor: whole}})
	rig.Must(r.Route(endpick.Request{InputTokens: 10}))
	c.advance(time.Minute)
	assert.Equal(t, 1, status(t, r, "a").Candidate.InFlight.Prefilling)
}

// Without Sweep, Route reaps: all of them within half as many requests as the router has lease slots.
func TestRouteReaps(t *testing.T) {
	s := new(spy)
	r, c := newRouter(endpick.Config{Endpoints: named("a"), LeaseTimeout: time.Minute, Policy: scoredBy(s)})
	for range 600 {
		rig.Must(r.Route(endpick.Request{}))
	}
	c.advance(time.Minute + 1)
	for range 768/2 + 1 {
		rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{})
	}
	for _, call := range []func(endpick.Lease){endpick.Lease.FirstToken, func(l endpick.Lease) { l.Tokens(0) }} {
		l := rig.Must(r.Route(endpick.Request{}))
		for range 3 { // it is kept by any call, up to the very end
			c.advance(time.Minute)
			assert.Zero(t, r.Sweep(c.Now()))
			call(l)
		}
		l.Done(endpick.Outcome{})
	}
	requireQuiet(t, r)
	assert.Equal(t, uint64(600), r.Stats().Reaped)
	assert.Empty(t, s.faults)
}

func TestMeasuredLatencies(t *testing.T) {
	const ms = time.Millisecond
	s := new(spy)
	r, watch := newRouter(endpick.Config{Endpoints: named("a"), Policy: scoredBy(s)}) // so that the slot is reused
	for _, c := range []struct {
		name       string
		stream     bool
		drive      func(endpick.Lease, *clock)
		usage      int
		ttft, tpot time.Duration // −1: none
		tokens     int
		responses  int
	}{
		{"a stream", true, func(l endpick.Lease, c *clock) {
			c.advance(200 * ms)
			l.FirstToken()
			l.Tokens(1)
			for range 4 {
				c.advance(10 * ms)
				l.Tokens(1)
			}
			c.advance(time.Second) // time after the last token is not decoding
		}, 5, 200 * ms, 10 * ms, 5, 1},
		{"the engine counts better", true, func(l endpick.Lease, c *clock) {
			c.advance(200 * ms)
			l.Tokens(1)
			c.advance(40 * ms)
			l.Tokens(1) // several tokens in one event
		}, 9, 200 * ms, 5 * ms, 9, 0},
		{"only the engine counts", true, func(l endpick.Lease, c *clock) {
			c.advance(200 * ms)
			l.FirstToken()
			c.advance(100 * ms)
		}, 11, 200 * ms, 10 * ms, 11, 0},
		{"one token", true, func(l endpick.Lease, c *clock) {
			c.advance(50 * ms)
			l.Tokens(1)
			c.advance(10 * ms)
		}, 1, 50 * ms, -1, 1, 0},
		{"no token", true, func(_ endpick.Lease, c *clock) { c.advance(50 * ms) }, 0, -1, -1, 0, 0},
		{"tokens that nobody saw", false, func(_ endpick.Lease, c *clock) { c.advance(50 * ms) }, 7, -1, -1, 7, 0},
		{"several responses beside each other", true, func(l endpick.Lease, c *clock) {
			c.advance(50 * ms)
			l.Tokens(1)
			c.advance(50 * ms)
			l.Tokens(9)
		}, 0, 50 * ms, -1, 10, 2},
		{"no stream", false, func(l endpick.Lease, c *clock) {
			c.advance(500 * ms)
			l.Tokens(20)
		}, 0, -1, -1, 20, 0},
		{"no stream, and the host knows better", false, func(l endpick.Lease, c *clock) {
			c.advance(100 * ms)
			l.FirstToken()
			c.advance(400 * ms)
			l.Tokens(21)
		}, 0, 100 * ms, 20 * ms, 21, 0},
		{"a first token at once", true, func(l endpick.Lease, c *clock) {
			l.Tokens(1)
			c.advance(8 * ms)
			l.Tokens(4)
		}, 0, 0, 2 * ms, 5, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, at := rig.Must(r.Route(endpick.Request{InputTokens: 10, Stream: c.stream, Responses: c.responses})), watch.Now()
			c.drive(l, watch)
			l.Done(endpick.Outcome{OutputTokens: c.usage})
			closed := s.take()
			require.Len(t, closed, 1)
			e := &closed[0].event
			assert.Equal(t, []time.Duration{c.ttft, c.tpot, watch.Now().Sub(e.RoutedAt)}, closed[0].latencies())
			assert.Equal(t, c.tokens, e.OutputTokens)
			unseen := c.ttft < 0 && c.tokens == c.usage // only the engine may know of tokens
			assert.Equal(t, unseen, e.LastTokenAt.IsZero(), "a time of the last token")
			assert.Equal(t, at, e.RoutedAt)
			requireQuiet(t, r)
		})
	}
}

// Impossible values from an engine are not passed on.
func TestOutcomeIsCleaned(t *testing.T) {
	s := new(spy)
	r, _ := newRouter(endpick.Config{Endpoints: named("a"), Policy: scoredBy(s)})
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{
		Status: endpick.Failed, InputTokens: -1, OutputTokens: -2, CachedTokens: -3, HasCachedTokens: true,
	})
	assert.Equal(t, endpick.Outcome{Status: endpick.Failed}, s.take()[0].outcome)
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{HasCachedTokens: true})
	assert.Equal(t, endpick.Outcome{HasCachedTokens: true}, s.take()[0].outcome, "a reported zero is a zero")
	blocks := []uint64{1, 2, 3}
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{Blocks: blocks})
	assert.Equal(t, endpick.Outcome{Blocks: blocks}, s.take()[0].outcome)
	assert.Equal(t, "completed failed canceled lost refused unknown", endpick.Completed.String()+" "+endpick.Failed.String()+" "+
		endpick.Canceled.String()+" "+endpick.Lost.String()+" "+endpick.Refused.String()+" "+endpick.Status(9).String())
}

// However calls collide, each request is counted once, and its observer is
// notified of one end.
func TestExactlyOnce(t *testing.T) {
	s := new(spy)
	r, c := newRouter(endpick.Config{Endpoints: named("a", "b"), LeaseTimeout: time.Minute, Policy: scoredBy(s)})
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	ended := 0
	for round := range rounds {
		l := rig.Must(r.Route(endpick.Request{InputTokens: 100, Stream: round%2 == 0}))
		var wins atomic.Int32
		var group sync.WaitGroup
		start := make(chan struct{})
		end := func(status endpick.Status) func() {
			return func() {
				if l.Done(endpick.Outcome{Status: status}) {
					wins.Add(1)
				}
			}
		}
		for _, call := range []func(){
			l.FirstToken,
			func() { l.Tokens(3) },
			func() { l.Tokens(2) },
			func() { _, _ = l.Candidate() },
			end(endpick.Completed),
			end(endpick.Canceled),
			func() { wins.Add(int32(r.Sweep(c.Now().Add(time.Hour)))) },
			func() { _ = r.Remove("b") },
			func() { _ = r.Add(endpick.Endpoint{ID: "b"}) },
		} {
			group.Go(func() {
				<-start
				call()
			})
		}
		close(start)
		group.Wait()
		require.Equal(t, int32(1), wins.Load())
		require.False(t, l.Done(endpick.Outcome{}))
		ended += len(s.take())
		require.Equal(t, round+1, ended)
		requireQuiet(t, r)
	}
	require.Empty(t, s.faults)
}

// panicker is every kind of stage, and panics in one of them.
type panicker struct{ at string }

func (p *panicker) Name() string                                      { return "panicker" }
func (p *panicker) Admit(*endpick.Request, []endpick.Candidate) error { p.hear("admit"); return nil }
func (p *panicker) Routed(*endpick.Event)                             { p.hear("routed") }
func (p *panicker) FirstToken(*endpick.Event)                         { p.hear("first token") }
func (p *panicker) Done(*endpick.Event, *endpick.Outcome)             { p.hear("done") }
func (p *panicker) EndpointRemoved(endpick.EndpointRef)               { p.hear("removed") }
func (p *panicker) Validate() error                                   { p.hear("validate"); return nil }
func (p *panicker) Pick(*endpick.Request, []endpick.Candidate, []float64) (i int) {
	p.hear("pick")
	return 0
}

func (p *panicker) Match(_ *endpick.Request, c []endpick.Candidate) {
	c[0].PrefixTokens = 2
	p.hear("match")
}

func (p *panicker) Predict(_ *endpick.Request, c []endpick.Candidate) {
	c[0].Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: 1, TTFTUpper: 1}
	p.hear("predict")
}

func (p *panicker) Filter(_ *endpick.Request, c []endpick.Candidate) []endpick.Candidate {
	p.hear("filter")
	return c
}

func (p *panicker) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) {
	dst[len(dst)-1] = 1
	p.hear("score")
}

func (p *panicker) hear(what string) {
	if p.at == what {
		panic(what)
	}
}

// nameless panics in its method and in its Name.
type nameless struct{}

func (nameless) Name() string                                { panic("name") }
func (nameless) Match(*endpick.Request, []endpick.Candidate) { panic("match") }

func TestWarnSeesWhereANamelessStagePanicked(t *testing.T) {
	var told []error
	r, _ := newRouter(endpick.Config{
		Endpoints: named("a"), Policy: endpick.Policy{Matcher: nameless{}}, Warn: func(err error) { told = append(told, err) },
	})
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{})
	require.Len(t, told, 1)
	assert.Equal(t, &endpick.PanicError{Stage: "endpick_test.nameless", Value: "match"}, withoutStack(told[0]))
	assert.Contains(t, string(told[0].(*endpick.PanicError).Stack), "nameless.Match")
	requireQuiet(t, r)
}

// A stage that panics is ignored, and nothing else happens: the request goes
// on, later observers are notified, no lock remains locked, and the host is
// warned, who may call the router.
func TestPanicsCostTheirStage(t *testing.T) {
	for _, at := range []string{"match", "predict", "admit", "filter", "score", "pick", "routed", "first token", "done", "removed"} {
		t.Run(at, func(t *testing.T) {
			p, later := &panicker{at: at}, new(spy)
			var told []error
			var r *endpick.Router
			var l endpick.Lease
			r, _ = newRouter(endpick.Config{
				Endpoints: named("a", "b"),
				Policy: endpick.Policy{
					Matcher: p, Predictor: p, Admitters: []endpick.Admitter{p}, Filters: []endpick.Filter{p}, Picker: p,
					Scorers: []endpick.Weighted{{Scorer: p, Weight: 1}, {Scorer: later, Weight: 1}},
				},
				Warn: func(err error) {
					told = append(told, withoutStack(err))
					r.Stats()
					r.Endpoints()
					_, _ = l.Candidate()
					_ = r.Update(endpick.Endpoint{ID: "b"})
					panic("the host's Warn as well")
				},
			})
			var receipt endpick.Receipt
			l = rig.Must(r.Route(endpick.Request{InputTokens: 3, Stream: true, Receipt: &receipt}))
			require.Len(t, receipt.Verdicts, 2)
			require.Empty(t, receipt.Undecided, "whoever panics has not said that nobody meets it")
			if at == "pick" {
				assert.Equal(t, 0, receipt.Chosen, "the best score, which is not the first endpoint's")
				assert.Equal(t, "b", l.Endpoint().ID)
			}
			if at == "score" {
				assert.Equal(t, []float64{0, 0.5}, receipt.Verdicts[0].Scores, "nothing that was written counts")
			}
			for _, v := range receipt.Verdicts {
				assert.False(t, at == "match" && v.Candidate.PrefixTokens > 0 || at == "predict" && v.Candidate.Prediction.Has > 0)
			}
			l.FirstToken()
			require.True(t, l.Done(endpick.Outcome{}))
			require.NoError(t, r.Remove("a"))

			assert.Equal(t, []error{&endpick.PanicError{Stage: "panicker", Value: at}}, told)
			assert.EqualError(t, told[0], "endpick: stage panicker panicked: "+at)
			assert.Equal(t, uint64(1), r.Stats().Panics)
			heard := later.take()
			require.Len(t, heard, 1)
			assert.True(t, heard[0].first)
			assert.Len(t, later.gone, 1)
			assert.Empty(t, later.faults)
			requireQuiet(t, r)
		})
	}
}

// Calls on one lease wait for each other, those on several leases of one endpoint don't.
func TestTokensCollide(t *testing.T) {
	r, _ := newRouter(endpick.Config{Endpoints: named("a"), Policy: by(leastLoaded)})
	const batch = 1000
	batches := 5000
	if rig.Race || testing.Short() {
		batches = 20
	}
	// An unsynchronized counter beside the router's shows whether anything has collided yet.
	var called, careless atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		l := rig.Must(r.Route(endpick.Request{InputTokens: 3, Stream: true}))
		all.Go(func() {
			for range batches {
				for range batch {
					l.Tokens(1)
					careless.Store(careless.Load() + 1)
				}
				if called.Add(batch)-careless.Load() > batch {
					break
				}
			}
			l.Done(endpick.Outcome{})
		})
	}
	all.Wait()
	requireQuiet(t, r)
}

// A host that never reports a token hears of it, once.
func TestStreamsWithoutATokenAreReported(t *testing.T) {
	whole := func(l endpick.Lease) { l.Done(endpick.Outcome{}) }
	for name, tc := range map[string]struct {
		before func(l endpick.Lease)
		stream bool
		mirror *endpick.Adopted
		end    func(l endpick.Lease)
		want   []error
	}{
		"streams":                   {stream: true, end: whole, want: []error{endpick.ErrNoFirstTokens}},
		"whole responses":           {end: whole},
		"canceled":                  {stream: true, end: func(l endpick.Lease) { l.Done(endpick.Outcome{Status: endpick.Canceled}) }},
		"another router's":          {stream: true, mirror: &endpick.Adopted{Endpoint: "a:80", Mirrored: true}, end: whole},
		"with tokens":               {stream: true, end: func(l endpick.Lease) { l.Tokens(3); whole(l) }},
		"nothing but signs of life": {stream: true, end: func(l endpick.Lease) { l.Tokens(0); whole(l) }, want: []error{endpick.ErrNoFirstTokens}},
		"after a token":             {stream: true, end: whole, before: func(l endpick.Lease) { l.Tokens(1) }},
		"after a first one":         {stream: true, end: whole, before: endpick.Lease.FirstToken},
	} {
		var heard []error
		var current endpick.Lease
		r := rig.Must(endpick.New(endpick.Config{
			Endpoints: []endpick.Endpoint{{Address: "a:80"}},
			Warn: func(err error) {
				heard = append(heard, err)
				current.Done(endpick.Outcome{}) // no lock is held
			},
		}))
		if tc.before != nil {
			tc.before(rig.Must(r.Route(endpick.Request{Model: "m"})))
		}
		for i := range 40 {
			l := rig.Must(r.Route(endpick.Request{Model: "m", Stream: tc.stream, Adopted: tc.mirror}))
			current = l
			if i == 15 {
				assert.Empty(t, heard, "%s: too early", name)
			}
			tc.end(l)
		}
		assert.Equal(t, tc.want, heard, name)
	}
}
