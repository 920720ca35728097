package delay

import (
	"cmp"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// lone is a router with one endpoint whose labels a test inspects.
type lone struct {
	t      rapid.TB
	m      *marginal
	router *endpick.Router
	now    time.Time
}

func newLone(t rapid.TB) *lone {
	d := &lone{t: t, m: newMarginal(Config{}), now: time.Unix(1e9, 0)}
	d.router = rig.Must(endpick.New(endpick.Config{
		Seed: 1, Clock: func() time.Time { return d.now }, Endpoints: []endpick.Endpoint{{ID: "a"}},
		Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: d.m, Weight: 1}}},
	}))
	return d
}

func (d *lone) at(seconds float64) {
	d.now = time.Unix(1e9, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func (d *lone) route(input, expected int, stream bool) endpick.Lease {
	return rig.Must(d.router.Route(endpick.Request{Model: "m", InputTokens: input, ExpectedOutputTokens: expected, Stream: stream}))
}

// begin routes a stream, and gives it its first token a second later.
func (d *lone) begin(input, expected int) endpick.Lease {
	l := d.route(input, expected, true)
	d.now = d.now.Add(time.Second)
	l.FirstToken()
	return l
}

// whole completes a response that does not stream, to a prompt of 600 tokens, in a second.
func (d *lone) whole(expected int, o endpick.Outcome) amounts {
	l := d.route(600, expected, false)
	d.now = d.now.Add(time.Second)
	return d.label(requests, 1, func() { l.Done(o) })
}

// label returns the amounts of the one label that do produces, given one amount whose
// value is known; zero if do produces none.
func (d *lone) label(one int, amount float64, do func()) amounts {
	d.t.Helper()
	before := d.m.learned.common.linear
	do()
	after := d.m.learned.common.linear
	if after.labels == before.labels {
		return amounts{}
	}
	const keep = 1 - 1.0/memory
	require.InDelta(d.t, before.labels*keep+1, after.labels, 1e-9, "one label")
	var x amounts
	of := after.answers[one] - before.answers[one]*keep
	for i := range x {
		x[i] = (after.answers[i] - before.answers[i]*keep) / of * amount
	}
	return x
}

func (d *lone) check(name string, want, got amounts) {
	d.t.Helper()
	for i := range want {
		assert.InDelta(d.t, want[i], got[i], 1e-6*max(want[i], 1), "%s: %d", name, i)
	}
}

// The explanation of a measured time, worked out by hand: A has a prompt of 1,000 tokens
// and decodes from the first second to the fifth; B has 500, arrives in the second and
// decodes from the third to the sixth.
func TestLabelsOfStreams(t *testing.T) {
	d := newLone(t)
	a := d.route(1000, 20, true) // 1,010 tokens on average
	d.at(1)
	x := d.label(requests, 1, a.FirstToken)
	d.check("first token of A", amounts{requests: 1, tokens: 1000, attention: 1000 * 500}, x)
	d.at(2)
	b := d.route(500, 40, true) // 520
	d.at(3)
	x = d.label(requests, 1, b.FirstToken)
	d.check("first token of B", amounts{requests: 1, tokens: 500, attention: 500 * 250, steps: 0.5, batches: 1.5, contexts: 1.5 * 1000}, x)

	d.at(5)
	x = d.label(steps, 10, func() { a.Done(endpick.Outcome{OutputTokens: 11}) })
	// A for four seconds and B for two; B's prompt was computed meanwhile.
	d.check("A", amounts{tokens: 500, attention: 500 * 250, steps: 10, batches: 10 * 6 / 4., contexts: 10 * (4*1010 + 2*520) / 4.}, x)
	assert.InDelta(t, 500./10, d.m.learned.common.meanwhile[tokens]/d.m.learned.common.meanSteps, 1e-9)
	assert.InDelta(t, 500*250/10., d.m.learned.common.meanwhile[attention]/d.m.learned.common.meanSteps, 1e-9)
	assert.InDelta(t, 4000, d.m.learned.common.decoding.or(0), 1e-6)
	assert.InDelta(t, 1010, d.m.learned.common.size.or(0), 1e-6)
	assert.InDelta(t, 1000, d.m.learned.first.or(0), 1e-6)
	assert.InDelta(t, 5000, d.m.learned.whole.or(0), 1e-6)
	k := d.m.learned.kinds.known[kindName{model: "m"}]
	alone := k.each[requests] + 1000*k.each[tokens] + 10*(k.each[steps]+k.each[batches]+k.each[contexts]*1010)
	assert.InEpsilon(t, alone, d.m.learned.idle.or(0), 1e-9)

	d.at(6)
	x = d.label(steps, 20, func() { b.Done(endpick.Outcome{Status: endpick.Canceled, OutputTokens: 21}) })
	d.check("B, whose client went away", amounts{steps: 20, batches: 20 * 5 / 3., contexts: 20 * (3*520 + 2*1010) / 3.}, x)
	const keep = 1 - 1.0/memory
	assert.InDelta(t, 500*keep/(10*keep+20), d.m.learned.common.meanwhile[tokens]/d.m.learned.common.meanSteps, 1e-9)
	assert.InDelta(t, 5000, d.m.learned.whole.or(0), 1e-6, "what was canceled is no whole response")
	assert.InDelta(t, (4000*keep+3000)/(keep+1), d.m.learned.common.decoding.or(0), 1e-6, "two votes")

	// A failure teaches nothing of steps, nor does a response of one token.
	for name, o := range map[string]endpick.Outcome{
		"failed": {Status: endpick.Failed, OutputTokens: 21}, "lost": {Status: endpick.Lost, OutputTokens: 21}, "short": {OutputTokens: 1},
	} {
		l := d.begin(100, 10)
		d.now = d.now.Add(time.Second)
		assert.Zero(t, d.label(steps, 1, func() { l.Done(o) }), name)
	}
	l := d.begin(100, 0)
	d.now = d.now.Add(time.Second)
	assert.NotZero(t, d.label(steps, 1, func() { l.Done(endpick.Outcome{OutputTokens: 2}) }), "one step")
	assert.Less(t, d.m.learned.lengths.of(&endpick.Request{}), 300.0, "two tokens are a length, and so is one")
}

// Requests of other routers, known from a report, decode too.
func TestLabelsBesideOthers(t *testing.T) {
	for _, usual := range []float64{0, 500} { // 0: not known; then the three are assumed to have its size
		d := newLone(t)
		d.m.learned.common.size.fade(usual, min(usual, 1), memory)
		require.NoError(t, d.router.Report("a", endpick.Load{Running: 3}))
		l := d.route(1000, 20, true)
		d.at(1)
		x := d.label(requests, 1, l.FirstToken)
		d.check("first token", amounts{requests: 1, tokens: 1000, attention: 5e5, steps: 0.5, batches: 1.5 * 3, contexts: 1.5 * 3 * max(usual, 1)}, x)
		d.at(2)
		x = d.label(steps, 10, func() { l.Done(endpick.Outcome{OutputTokens: 11}) })
		d.check("the rest", amounts{steps: 10, batches: 10 * 4, contexts: 10 * (1010 + 3*cmp.Or(usual, 1010))}, x)
	}
}

// Who decodes beside a response is averaged over the time until it is reported done, which may
// be later than its last token; the time of its tokens ends with that. Only a known length teaches one.
func TestWhatAnEndTells(t *testing.T) {
	d := newLone(t)
	l := d.begin(1000, 20)
	d.at(4)
	l.Tokens(10)
	d.at(5)
	x := d.label(steps, 10, func() { l.Done(endpick.Outcome{OutputTokens: 11}) })
	d.check("alone", amounts{steps: 10, batches: 10, contexts: 10 * 1010}, x)
	assert.InDelta(t, 3000, d.m.learned.common.decoding.or(0), 1e-6)
	once := d.m.learned.lengths
	assert.NotEqual(t, newMarginal(Config{}).learned.lengths, once)
	whole := d.route(1000, 0, false)
	d.at(6)
	whole.Done(endpick.Outcome{})
	assert.Equal(t, once, d.m.learned.lengths, "nobody knows how long it was")
}

// A response is compared with an idle server's if all of it was timed and the server's times
// are known. What was cached takes an idle server no time either.
func TestIdleTimes(t *testing.T) {
	stream := endpick.Request{Model: "m", InputTokens: 1000, ExpectedOutputTokens: 11, Stream: true}
	whole := stream
	whole.Stream = false
	underWay := stream
	underWay.Adopted = &endpick.Adopted{Endpoint: "a"}
	for name, c := range map[string]struct {
		before, req endpick.Request
		load        endpick.Load
		compares    bool
	}{
		"timed":               {before: stream, req: stream, compares: true},
		"not streaming":       {before: stream, req: whole, compares: true},
		"begun by its caller": {before: stream, req: underWay},
		"nothing is known":    {req: stream, load: endpick.Load{Waiting: 9}},
	} {
		d := newLone(t)
		require.NoError(t, d.router.SetPolicy(endpick.Policy{Matcher: holds(600), Scorers: []endpick.Weighted{{Scorer: d.m, Weight: 1}}}))
		serve := func(req endpick.Request) {
			l := rig.Must(d.router.Route(req))
			d.now = d.now.Add(time.Second)
			if req.Stream {
				l.FirstToken()
			}
			d.now = d.now.Add(time.Second)
			l.Done(endpick.Outcome{OutputTokens: 11})
		}
		if c.before.Stream {
			serve(c.before)
			d.m.learned.idle, d.m.learned.whole = mean{}, mean{}
		}
		require.NoError(t, d.router.Report("a", c.load))
		serve(c.req)
		if !c.compares {
			assert.Zero(t, d.m.learned.idle, name)
			assert.Zero(t, d.m.learned.whole, name)
			continue
		}
		k := d.m.learned.kinds.known[kindName{model: "m"}]
		assert.InEpsilon(t, k.each[requests]+400*k.each[tokens]+10*(k.each[steps]+k.each[batches]+k.each[contexts]*1005.5), d.m.learned.idle.or(0), 1e-9)
		assert.InDelta(t, 2000, d.m.learned.whole.or(0), 1e-6)
	}
}

// If nobody reports the first token of a stream, it is taken to have decoded beside those that were there
// when it was routed.
func TestLabelsOfStreamsWithoutFirstToken(t *testing.T) {
	d := newLone(t)
	require.NoError(t, d.router.Report("a", endpick.Load{Running: 3}))
	d.m.learned.common.size.add(500, 1) // of those who run there
	l := d.route(600, 30, true)
	d.at(9)
	x := d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) })
	d.check("label", amounts{
		requests: 1, tokens: 600, attention: 600 * 300, steps: 0.5 + 30, batches: 1.5*3 + 30*4, contexts: 1.5*3*500 + 30*(3*500+615),
	}, x)
}

// The first tokens of a stream that is held back come together, and teach what a whole response does. The
// next one is there from when it is routed.
func TestLabelsOfStreamsThatAreHeldBack(t *testing.T) {
	d := newLone(t)
	ref, _ := d.router.Ref("a")
	decoding := func() float64 { return d.m.endpoints.Find(ref).decoding }
	l := d.route(600, 30, true)
	d.at(9)
	assert.Zero(t, d.label(requests, 1, func() { l.Tokens(9) }))
	assert.Zero(t, decoding())
	held := d.route(600, 30, true)
	assert.Equal(t, 1.0, decoding())
	x := d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) })
	d.check("as of a whole response", amounts{requests: 1, tokens: 600, attention: 600 * 300, steps: 30, batches: 30, contexts: 30 * 615}, x)

	d.at(10)
	assert.NotZero(t, d.label(requests, 1, func() { held.Tokens(8) }), "a few may come together")
	d.at(12)
	x = d.label(steps, 30, func() { held.Done(endpick.Outcome{OutputTokens: 31}) })
	d.check("since its first token", amounts{steps: 30, batches: 30, contexts: 30 * 615}, x)
	several := rig.Must(d.router.Route(endpick.Request{InputTokens: 600, Stream: true, Responses: 2}))
	assert.Zero(t, decoding())
	d.at(13)
	assert.NotZero(t, d.label(requests, 1, func() { several.Tokens(16) }), "of two responses")
}

// How long a request of another router took is known from its outcome alone; of one that a proxy has sent,
// nobody knows it.
func TestLabelsOfAdoptedResponses(t *testing.T) {
	for _, adopted := range []endpick.Adopted{{Mirrored: true}, {Mirrored: true, Took: 4 * time.Second}, {}} {
		adopted.Endpoint = "a"
		d := newLone(t)
		l := rig.Must(d.router.Route(endpick.Request{Model: "m", InputTokens: 600, ExpectedOutputTokens: 30, Adopted: &adopted}))
		d.at(9)
		x := d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) })
		assert.Equal(t, adopted.Took > 0, x != amounts{}, "%+v", adopted)
		assert.InDelta(t, milliseconds(adopted.Took), d.m.learned.common.decoding.or(0), 1e-6)
		for _, stream := range []bool{false, true} { // what came long ago, of which a new gateway hears, is no arrival
			d := newLone(t)
			l := rig.Must(d.router.Route(endpick.Request{Model: "m", InputTokens: 600, Stream: stream, Adopted: &adopted}))
			d.at(1)
			l.FirstToken()
			d.at(2)
			l.Done(endpick.Outcome{OutputTokens: 31})
			assert.Equal(t, !adopted.Mirrored, d.m.learned.common.labels > 0, "%+v", adopted)
			want := map[bool]float64{true: 1}[adopted.Took > 0 || !adopted.Mirrored]
			assert.Equal(t, want, d.m.learned.common.arrivals.count+d.m.learned.find(kindName{model: "m"}).arrivals.count, "%+v", adopted)
		}
	}
}

// Whoever takes a mirrored request for lost does not look at its times, which its replica may be setting.
func TestLostTimesAreNotRead(t *testing.T) {
	d := newLone(t)
	for range 20 {
		a := &endpick.Adopted{Endpoint: "a", Mirrored: true}
		l := rig.Must(d.router.Route(endpick.Request{Model: "m", InputTokens: 10, Adopted: a}))
		d.now = d.now.Add(time.Hour)
		var both sync.WaitGroup
		both.Go(func() { d.router.Sweep(d.now) })
		both.Go(func() {
			a.Took = time.Second
			l.Done(endpick.Outcome{})
		})
		both.Wait()
	}
}

// A response that does not stream is one label as a whole.
func TestLabelsOfWholeResponses(t *testing.T) {
	d := newLone(t)
	a := d.begin(1000, 20)
	l := d.route(600, 30, false) // 615
	d.at(9)
	x := d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) })
	// A decodes beside it all the time, with 1,010 tokens.
	d.check("beside A", amounts{requests: 1, tokens: 600, attention: 600 * 300, steps: 0.5 + 30, batches: 1.5 + 30*2, contexts: 1.5*1000 + 30*(1010+615)}, x)
	assert.InDelta(t, 8000, d.m.learned.common.decoding.or(0), 1e-6)
	assert.InDelta(t, 615, d.m.learned.common.size.or(0), 1e-6)
	const keep = 1 - 1.0/memory
	assert.InDelta(t, (1000*keep+600)/(keep+1), d.m.learned.common.fresh.or(0), 1e-6)
	a.Done(endpick.Outcome{Status: endpick.Failed})

	l = d.route(600, 30, false)
	d.at(12)
	x = d.label(requests, 1, func() { l.Done(endpick.Outcome{OutputTokens: 31}) })
	// A guess of 30 turned out to be 31, which adds to the correct one assumed at the start.
	ratio := (8*keep + 31/30.) / (8*keep + 1)
	d.check("alone", amounts{requests: 1, tokens: 600, attention: 600 * 300, steps: 30, batches: 30, contexts: 30 * (600 + 15*ratio)}, x)
	for name, o := range map[string]endpick.Outcome{
		"canceled": {Status: endpick.Canceled, OutputTokens: 31}, "failed": {Status: endpick.Failed, OutputTokens: 31}, "of unknown length": {},
	} {
		assert.Zero(t, d.whole(30, o), name)
	}
	none := amounts{requests: 1, tokens: 600, attention: 600 * 300}
	d.check("of no length, like an embedding", none, d.whole(1, endpick.Outcome{}))
	assert.Zero(t, d.whole(0, endpick.Outcome{}), "its length is not known")
	d.check("of no length, by its usage", none, d.whole(0, endpick.Outcome{InputTokens: 600}))
}

// A response that does not stream is there to those beside it from when it was routed, worked
// out by hand: A and B begin together and A streams; C comes in the third second; A ends in
// the fifth, B in the ninth and C in the eleventh.
func TestWhoDoesNotStreamIsThere(t *testing.T) {
	d := newLone(t)
	a := d.route(1000, 20, true) // 1,010 tokens in the middle
	b := d.route(600, 30, false) // 615
	d.at(1)
	x := d.label(requests, 1, a.FirstToken)
	d.check("first token of A", amounts{requests: 1, tokens: 1000, attention: 1000 * 500}, x)
	d.at(3)
	c := d.route(200, 40, false) // 220
	d.at(5)
	x = d.label(steps, 10, func() { a.Done(endpick.Outcome{OutputTokens: 11}) })
	// Beside B for four seconds and C for two; meanwhile C was computed.
	d.check("A", amounts{tokens: 200, attention: 200 * 100, steps: 10, batches: 10 * 10 / 4., contexts: 10 * (4*(1010+615) + 2*220) / 4.}, x)
	d.at(9)
	for _, l := range d.m.leases.All() {
		l.crowded = false // there was a prompt to compute when they came
	}
	k := d.m.learned.kinds.known[kindName{model: "m"}]
	again := k.each[tokens] + k.each[attention]*300
	x = d.label(steps, 0.5+30, func() { b.Done(endpick.Outcome{OutputTokens: 31}) })
	// Beside A from the first second to the fifth, and C from the third to the ninth; behind A's prompt.
	d.check("B", amounts{
		requests: 1, tokens: 1600 + 1000 + 200, attention: 1000*500 + 600*300 + 1000*500 + 200*100, steps: 0.5 + 30, batches: 1.5*1 + 30*(9+4+6)/9., contexts: 1.5*1000 + 30*(9*615+4*1010+6*220)/9.,
	}, x)
	const keep = 1 - 1.0/memory
	assert.InDelta(t, (200*keep+1000+200)/(10*keep+30), k.meanwhile[tokens]/k.meanSteps, 1e-9, "computed beside A and B, for each step")
	assert.InEpsilon(t, again, d.m.learned.again.or(0), 1e-9, "the time of B's tokens, by what was known before")
	embedding, beside := d.route(10, 1, false), d.route(50, 9, false)
	d.at(10)
	embedding.Done(endpick.Outcome{InputTokens: 10})
	assert.InDelta(t, (200*keep+1000+200)/(10*keep+30), k.meanwhile[tokens]/k.meanSteps, 1e-9, "without a step")
	d.at(11)
	c.Done(endpick.Outcome{Status: endpick.Canceled, OutputTokens: 5})
	beside.Done(endpick.Outcome{Status: endpick.Failed})
	ref, _ := d.router.Ref("a")
	e := d.m.endpoints.Find(ref)
	assert.Equal(t, []float64{0, 0, 0}, []float64{e.decoding, e.size, e.pairs})
}

// Estimates have a common part, for all kinds, and a part per kind: a new kind starts from
// the common part alone.
func TestKindsBeginWithWhatAllHaveInCommon(t *testing.T) {
	d := newLone(t)
	for range 20 {
		l := rig.Must(d.router.Route(endpick.Request{Model: "m", InputTokens: 1000, Stream: true}))
		d.now = d.now.Add(2 * time.Second)
		l.FirstToken()
		d.now = d.now.Add(time.Second)
		l.Done(endpick.Outcome{OutputTokens: 11})
	}
	common := d.m.learned.common
	l := rig.Must(d.router.Route(endpick.Request{Model: "other", InputTokens: 1000, Stream: true}))
	l.Done(endpick.Outcome{}) // completed, with nothing observed
	k := d.m.learned.kinds.known[kindName{"other", ""}]
	require.NotNil(t, k)
	assert.Equal(t, common.each, k.each)
	assert.Zero(t, k.labels)
	assert.Zero(t, k.products)
	assert.Equal(t, common.decoding, k.decoding)
	assert.Equal(t, common.late, k.late)
}

// Where servers differ, a kind has its place with the first token: the first responses would
// otherwise go to slow servers as to fast ones for as long as one takes.
func TestKindsThatDifferAreToldApartEarly(t *testing.T) {
	for _, c := range []struct {
		variant       string
		stream, early bool
	}{{"slow", true, true}, {"", true, false}, {"slow", false, false}} {
		d := newLone(t)
		require.NoError(t, d.router.SetEndpoints([]endpick.Endpoint{{ID: "a", Variant: c.variant}}))
		l := d.route(1000, 20, c.stream)
		name := kindName{"m", c.variant}
		d.at(1)
		assert.Empty(t, d.m.learned.kinds.known)
		if c.stream {
			l.FirstToken()
		}
		assert.Equal(t, c.early, d.m.learned.kinds.known[name] != nil, "%+v", c)
		if c.early {
			assert.Equal(t, 1.0, d.m.learned.kinds.known[name].labels, "its first label is that of this token")
		}
		d.at(2)
		l.Done(endpick.Outcome{OutputTokens: 11})
		assert.Len(t, d.m.learned.kinds.known, 1)
	}
}

// An adapter counts as its base model, where that is named.
func TestNamesOfKinds(t *testing.T) {
	for _, x := range []struct {
		req  endpick.Request
		want string
	}{
		{endpick.Request{Model: "m"}, "m"}, {endpick.Request{Model: "m", Adapter: "a"}, "m"}, {endpick.Request{Adapter: "a"}, "a"}, {endpick.Request{}, ""},
	} {
		assert.Equal(t, kindName{x.want, "v"}, nameOf(&x.req, "v"))
	}
}

// holds is a matcher: each server holds this many tokens of a prompt.
type holds int

func (h holds) Match(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].PrefixTokens = int(h)
	}
}

// Several responses beside each other count with the length of one, and how long they took
// teaches nothing about steps, of which nobody knows how many there were.
func TestSeveralResponses(t *testing.T) {
	for responses, ends := range map[int]float64{0: 1, 1: 1, 2: 0, 4: 0} { // how many labels the end gives
		for _, stream := range []bool{true, false} {
			d := newLone(t)
			l := rig.Must(d.router.Route(endpick.Request{
				Model: "m", InputTokens: 100, ExpectedOutputTokens: 400 * max(responses, 1), Stream: stream, Responses: responses,
			}))
			d.at(1)
			labels := ends
			if stream {
				labels++
				l.FirstToken()
				d.at(2)
				l.Tokens(200)
			}
			l.Done(endpick.Outcome{OutputTokens: 200 * max(responses, 1)})
			assert.InDelta(t, labels, d.m.learned.common.labels, 0.01, "%d responses", responses)
			const keep = 1 - 1.0/memory // the half of what was expected, beside eight assumed to be as expected
			length := d.m.learned.lengths.of(&endpick.Request{ExpectedOutputTokens: 100})
			assert.InDelta(t, 100*(8*keep+0.5)/(8*keep+1), length, 1e-9, "%d responses", responses)
		}
	}
}

// While others wait at the engine, times depend on these. A server whose memory is nearly full is slow
// because requests wait and its cache is evicted, not because it computes slowly: if that were learned
// as speed, a token would seem cheap just when it costs others most. But an engine can't have evicted
// what the index did not count on: as long as nobody knows how large requests are, all of them teach.
func TestCrowdedServersTeachNothing(t *testing.T) {
	for _, x := range []struct {
		load    endpick.Load
		size    float64 // of requests there; 0: not known
		teaches bool
	}{
		{endpick.Load{Running: 3}, 0, true}, {endpick.Load{Waiting: 2, Running: 3}, 0, false},
		{endpick.Load{KVUsage: 0.5}, 1000, true}, {endpick.Load{KVUsage: 0.95}, 1000, false}, {endpick.Load{KVUsage: 0.95}, 0, true},
	} {
		d := newLone(t)
		require.NoError(t, d.router.Update(endpick.Endpoint{ID: "a", KVTokens: 100_000, Residents: []endpick.Resident{{Model: "m", State: endpick.InMemory}}}))
		require.NoError(t, d.router.Report("a", x.load))
		if x.size > 0 {
			d.m.learned.common.size.add(x.size, 1)
		}
		l := d.route(1000, 20, true)
		d.at(1)
		first := d.label(requests, 1, l.FirstToken)
		d.at(2)
		rest := d.label(steps, 10, func() { l.Done(endpick.Outcome{OutputTokens: 11}) })
		assert.Equal(t, []bool{x.teaches, x.teaches}, []bool{first != amounts{}, rest != amounts{}}, "%+v", x)
	}
}

// What else a removed server did is unknown: a response that ends after the removal teaches nothing of
// steps.
func TestWhoIsRemovedTeachesNothingOfSteps(t *testing.T) {
	for _, removed := range []bool{false, true} {
		d := newLone(t)
		l := d.begin(1000, 20)
		if removed {
			require.NoError(t, d.router.Remove("a"))
			require.NoError(t, d.router.Add(endpick.Endpoint{ID: "a"}))
		}
		d.at(2)
		x := d.label(steps, 10, func() { l.Done(endpick.Outcome{OutputTokens: 11}) })
		assert.Equal(t, removed, x == amounts{})
	}
}

// What took no time, or longer than a day, was the clock's doing.
func TestImpossibleTimesTeachNothing(t *testing.T) {
	for days, teaches := range map[float64]bool{0: false, 1: true, 1.1: false} {
		d := newLone(t)
		l := d.route(1000, 20, true)
		first := days * 24 * 3600
		d.at(first)
		x := d.label(requests, 1, l.FirstToken)
		assert.Equal(t, teaches, x != amounts{}, "first token after %v days", days)
		d.at(2 * first)
		x = d.label(steps, 10, func() { l.Done(endpick.Outcome{OutputTokens: 11}) })
		assert.Equal(t, teaches, x != amounts{}, "%v days of tokens", days)
		whole := d.route(1000, 20, false)
		d.at(3 * first)
		x = d.label(requests, 1, func() { whole.Done(endpick.Outcome{OutputTokens: 11}) })
		assert.Equal(t, teaches, x != amounts{}, "response of %v days", days)
	}
}
