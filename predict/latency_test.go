package predict

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict/internal/learn"
)

// world makes random requests and candidates, and knows how long requests take.
type world struct {
	t       require.TestingT
	latency *predictor
	rng     *rand.Rand
	now     time.Time
	key     uint32
	// slow holds the factors on a variant's latencies, pace those on a slot's.
	slow map[string]float64
	pace map[uint32]float64
}

func newPredictor(t require.TestingT, config LatencyConfig) *predictor {
	l := rig.Must(NewLatency(config))
	return l.(*predictor)
}

func newWorld(t require.TestingT, config LatencyConfig) *world {
	l := newPredictor(t, config)
	return &world{t: t, latency: l, rng: rand.New(rand.NewPCG(4, 2)), now: time.Unix(1000, 0), slow: map[string]float64{}}
}

func (w *world) request() endpick.Request {
	return endpick.Request{Model: "m", InputTokens: 50 + w.rng.IntN(4000), ExpectedOutputTokens: 1 + w.rng.IntN(500), Stream: true}
}

func (w *world) candidate(variant string, slot uint32) endpick.Candidate {
	return endpick.Candidate{
		Endpoint: &endpick.Endpoint{ID: "e", Variant: variant},
		Ref:      endpick.EndpointRef{Slot: slot, Generation: 1},
		Waiting:  float64(w.rng.IntN(5)),
		Running:  float64(w.rng.IntN(64)),
		KVUsage:  w.rng.Float64(),
		InFlight: endpick.InFlight{PrefillTokens: w.rng.IntN(8000), ContextTokens: w.rng.IntN(100_000)},
	}
}

func (w *world) ttft(req *endpick.Request, c *endpick.Candidate) float64 {
	return w.noise() * w.scale(c) * (20 + 0.05*float64(c.NewTokens(req)+c.InFlight.PrefillTokens) + 10*c.Waiting)
}

func (w *world) tpot(c *endpick.Candidate) float64 {
	return w.noise() * w.scale(c) * (8 + 0.2*c.Running + 15*c.KVUsage)
}

func (w *world) noise() float64 { return math.Exp(0.03 * w.rng.NormFloat64()) }

func (w *world) scale(c *endpick.Candidate) float64 {
	scale := 1.0
	if s := w.slow[c.Endpoint.Variant]; s > 0 {
		scale = s
	}
	if s := w.pace[c.Ref.Slot]; s > 0 {
		scale *= s
	}
	return scale
}

// predict returns the prediction for one candidate.
func (w *world) predict(req endpick.Request, c *endpick.Candidate) endpick.Prediction {
	one := []endpick.Candidate{*c}
	req = req.At(w.now, 0, 1)
	w.latency.Predict(&req, one)
	c.Prediction = one[0].Prediction
	return c.Prediction
}

// finish predicts, routes and completes a request, and returns its latencies in milliseconds: to
// the first token and per token, or of the whole if it does not stream.
func (w *world) finish(req endpick.Request, c endpick.Candidate) (first, second float64) {
	w.predict(req, &c)
	first, second = w.ttft(&req, &c), w.tpot(&c)
	const tokens = 101
	e := w.route(req, &c)
	w.after(e, first)
	if req.Stream {
		e.FirstTokenAt = e.Now
		w.latency.FirstToken(e)
		w.after(e, second*(tokens-1))
		e.LastTokenAt, e.OutputTokens = e.Now, tokens
	} else {
		w.after(e, second*(tokens-1))
		first, second = 0, first+second*(tokens-1)
	}
	w.latency.Done(e, &endpick.Outcome{})
	w.now = w.now.Add(100 * time.Millisecond)
	return first, second
}

// route reports a request as routed, with a lease of its own.
func (w *world) route(req endpick.Request, c *endpick.Candidate) *endpick.Event {
	w.key++
	e := &endpick.Event{Lease: endpick.LeaseRef{Slot: w.key % 1000, Generation: w.key}, Request: &req, Candidate: c, Now: w.now, RoutedAt: w.now}
	w.latency.Routed(e)
	return e
}

func (w *world) after(e *endpick.Event, ms float64) {
	e.Now = e.Now.Add(time.Duration(ms * 1e6))
}

// trained returns a world with two predicted variants, at slots 0 and 1.
func trained(t *testing.T) *world {
	w := newWorld(t, synchronous())
	for i := range 200 {
		w.finish(w.request(), w.candidate([]string{"a", "b"}[i%2], uint32(i%2)))
	}
	return w
}

// answer gives a request its first token now.
func (w *world) answer(e *endpick.Event) {
	e.Now, e.FirstTokenAt = w.now, w.now
	w.latency.FirstToken(e)
}

func (w *world) leave(e *endpick.Event, status endpick.Status) {
	e.Now = w.now
	w.latency.Done(e, &endpick.Outcome{Status: status})
}

func synchronous() LatencyConfig {
	trees := 32
	if rig.Race {
		trees = 24 // training takes a tenth of the time
	}
	return LatencyConfig{Trees: trees, Synchronous: true}
}

func relative(got time.Duration, want float64) float64 {
	return math.Abs(got.Seconds()*1e3-want) / want
}

func TestColdStartFromTheTwentyFifthSample(t *testing.T) {
	w := newWorld(t, synchronous())
	for range learn.FirstFit - 1 {
		w.finish(w.request(), w.candidate("", 0))
	}
	c := w.candidate("", 0)
	require.Zero(t, w.predict(w.request(), &c).Has, "24 samples are too few: scorers fall back")
	require.Equal(t, "heuristic", w.latency.Health()[0].TTFT.Phase)
	w.finish(w.request(), w.candidate("", 0))
	require.Equal(t, "prior", w.latency.Health()[0].TTFT.Phase)

	errorOf := func(n int) (ttft, tpot float64) {
		for range n {
			req, c := w.request(), w.candidate("", 0)
			p := w.predict(req, &c)
			require.Equal(t, endpick.TTFT|endpick.TPOT, p.Has)
			require.GreaterOrEqual(t, p.TTFTUpper, p.TTFT)
			require.GreaterOrEqual(t, p.TPOTUpper, p.TPOT)
			a, b := w.finish(req, c)
			ttft += relative(p.TTFT, a) / float64(n)
			tpot += relative(p.TPOT, b) / float64(n)
		}
		return ttft, tpot
	}
	first, second := errorOf(75)
	require.Less(t, first, 0.10, "the next 75")
	require.Less(t, second, 0.10)
	errorOf(700)
	require.Equal(t, "trees", w.latency.Health()[0].TTFT.Phase)
	first, second = errorOf(500)
	require.Less(t, first, 0.05, "noise alone is 0.024")
	require.Less(t, second, 0.05)
	h := w.latency.Health()[0]
	require.Equal(t, "m", h.Model)
	require.Less(t, h.TTFT.MAPE, 0.05)
	require.Less(t, h.TPOT.MAPE, 0.05)
	require.InDelta(t, 0.9, h.TTFT.Coverage, 0.04)
	require.Equal(t, 1300, h.TTFT.Samples)
	require.Zero(t, h.E2E.Samples)
}

func TestWhatIsNotStreamedIsPredictedAsAWhole(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 300 {
		req := w.request()
		req.Stream = false
		w.finish(req, w.candidate("", 0))
	}
	req, c := w.request(), w.candidate("", 0)
	req.Stream = false
	p := w.predict(req, &c)
	require.Equal(t, endpick.E2E, p.Has, "no first token was ever seen")
	require.GreaterOrEqual(t, p.E2EUpper, p.E2E)
	_, took := w.finish(req, c)
	require.Less(t, relative(p.E2E, took), 0.25)

	// With streams among the labels, the time to first token is known as well; the time per token
	// is left out.
	for range 300 {
		w.finish(w.request(), w.candidate("", 0))
	}
	require.Equal(t, endpick.TTFT|endpick.E2E, w.predict(req, &c).Has)
}

func TestVariantsAreToldApart(t *testing.T) {
	w := newWorld(t, synchronous())
	w.slow["old"] = 3
	for range 1000 {
		w.finish(w.request(), w.candidate("new", 0))
	}
	c := w.candidate("old", 1)
	require.Zero(t, w.predict(w.request(), &c).Has, "a variant that has never been seen is not predicted")
	both := []endpick.Candidate{w.candidate("new", 0), w.candidate("old", 1), w.candidate("new", 2)}
	req := w.request().At(w.now, 0, 1)
	w.latency.Predict(&req, both)
	require.NotZero(t, both[0].Prediction.Has)
	require.Zero(t, both[1].Prediction.Has, "and costs the others nothing")
	require.NotZero(t, both[2].Prediction.Has)
	for range 24 {
		w.finish(w.request(), w.candidate("old", 1))
	}
	require.Zero(t, w.predict(w.request(), &c).Has)
	w.finish(w.request(), w.candidate("old", 1))
	require.NotZero(t, w.predict(w.request(), &c).Has, "known from its 25th sample")
	for range 500 {
		w.finish(w.request(), w.candidate("old", 1))
		w.finish(w.request(), w.candidate("new", 0))
	}
	sum := 0.0
	for range 200 {
		req, c := w.request(), w.candidate("old", 1)
		p := w.predict(req, &c)
		a, _ := w.finish(req, c)
		sum += relative(p.TTFT, a) / 200
	}
	require.Less(t, sum, 0.08, "three times as slow, and known to be")
}

func TestRequestsOfUnknownLengthAreNeitherPredictedNorLearned(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 100 {
		w.finish(w.request(), w.candidate("", 0))
	}
	req, c := w.request(), w.candidate("", 0)
	req.InputTokens = 0
	require.Zero(t, w.predict(req, &c).Has)
	w.finish(req, c)
	require.Equal(t, 100, w.latency.Health()[0].TTFT.Samples)
}

func TestWhatFailedTeachesNothing(t *testing.T) {
	w := newWorld(t, synchronous())
	w.finish(w.request(), w.candidate("", 0)) // gives the model its place
	c := w.candidate("", 0)
	for i, c2 := range []struct {
		status     endpick.Status
		ttft, tpot int
	}{{endpick.Failed, 2, 1}, {endpick.Lost, 3, 1}, {endpick.Canceled, 4, 2}, {endpick.Completed, 5, 3}} {
		e := w.route(w.request(), &c)
		w.after(e, 100)
		e.FirstTokenAt = e.Now
		w.latency.FirstToken(e)
		w.after(e, 500)
		e.LastTokenAt, e.OutputTokens = e.Now, 10
		w.latency.Done(e, &endpick.Outcome{Status: c2.status})
		w.latency.Done(e, &endpick.Outcome{Status: c2.status}) // the request is no longer known
		h := w.latency.Health()[0]
		require.Equal(t, c2.ttft, h.TTFT.Samples, "case %d", i)
		require.Equal(t, c2.tpot, h.TPOT.Samples, "case %d", i)
	}
	// The duration of an incomplete response teaches nothing of whole ones.
	for _, status := range []endpick.Status{endpick.Failed, endpick.Lost, endpick.Canceled, endpick.Completed} {
		req := w.request()
		req.Stream = false
		e := w.route(req, &c)
		w.after(e, 500)
		w.latency.Done(e, &endpick.Outcome{Status: status})
		want := 0
		if status == endpick.Completed {
			want = 1
		}
		require.Equal(t, want, w.latency.Health()[0].E2E.Samples, "%v", status)
	}
}

func TestNewLatencyRefusesABadConfig(t *testing.T) {
	for _, c := range []struct {
		config LatencyConfig
		want   string
	}{
		{LatencyConfig{MaxModels: -1}, "endpick: config: predict.LatencyConfig.MaxModels is -1, want 0 or more"},
		{LatencyConfig{Trees: 5000}, "endpick: config: predict.LatencyConfig.Trees is 5000, want 0 to 1024"},
		{LatencyConfig{Samples: -1}, "endpick: config: predict.LatencyConfig.Samples is -1, want 0 to 1048575"},
		{LatencyConfig{MaxAge: -1}, "endpick: config: predict.LatencyConfig.MaxAge is -1ns, want 0 or more"},
		{LatencyConfig{RefitEvery: -1}, "endpick: config: predict.LatencyConfig.RefitEvery is -1, want 0 or more"},
		{LatencyConfig{Share: 2}, "endpick: config: predict.LatencyConfig.Share is 2, want 0 to 1"},
		{LatencyConfig{Share: math.NaN()}, "endpick: config: predict.LatencyConfig.Share is NaN, want 0 to 1"},
	} {
		_, err := NewLatency(c.config)
		require.EqualError(t, err, c.want)
	}
}

func TestPredictorAllocatesNothing(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 200 {
		w.finish(w.request(), w.candidate("", 0))
	}
	candidates := make([]endpick.Candidate, 100)
	for i := range candidates {
		candidates[i] = w.candidate("", uint32(i))
	}
	req := w.request().At(w.now, 0, 1)
	if rig.Race {
		t.Skip("the race detector makes sync.Pool forget")
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { w.latency.Predict(&req, candidates) }))
	e := w.route(w.request(), &candidates[0])
	require.Zero(t, testing.AllocsPerRun(100, func() { w.latency.Routed(e) }))
}

// Whatever events arrive, in whatever order, with whatever keys: nothing panics, predictions are
// finite and ordered, and equal calls give equal predictions.
func TestAnyEventsLeavePredictionsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := synchronous()
		config.Trees = 2
		w, twin := newWorld(t, config), newWorld(t, config)
		var events []*endpick.Event
		event := func(t *rapid.T) *endpick.Event {
			if len(events) == 0 {
				t.Skip("nothing open")
			}
			return rapid.SampledFrom(events).Draw(t, "event")
		}
		both := func(f func(l *predictor)) { f(w.latency); f(twin.latency) }
		odd := rapid.SampledFrom([]float64{0, 1, -1, 1e9, math.NaN(), math.Inf(1)})
		t.Repeat(map[string]func(*rapid.T){
			"finish many": func(t *rapid.T) {
				for range rapid.IntRange(1, 15).Draw(t, "n") {
					variant := string(rune('a' + w.rng.IntN(3)))
					twin.rng.IntN(3)
					w.finish(w.request(), w.candidate(variant, 0))
					twin.finish(twin.request(), twin.candidate(variant, 0))
				}
			},
			"route": func(t *rapid.T) {
				req := endpick.Request{Model: rapid.SampledFrom([]string{"m", "n", ""}).Draw(t, "model"),
					InputTokens: rapid.IntRange(0, 100_000).Draw(t, "input"), Stream: rapid.Bool().Draw(t, "stream")}
				c := endpick.Candidate{Endpoint: &endpick.Endpoint{Variant: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "variant")},
					Waiting: odd.Draw(t, "waiting"), KVUsage: odd.Draw(t, "kv"), PrefixTokens: rapid.IntRange(-1, 10).Draw(t, "prefix")}
				e := &endpick.Event{Lease: endpick.LeaseRef{Slot: uint32(rapid.IntRange(0, 600).Draw(t, "slot")), Generation: uint32(len(events))},
					Request: &req, Candidate: &c, Now: w.now, RoutedAt: w.now}
				events = append(events, e)
				both(func(l *predictor) { l.Routed(e) })
			},
			"first token": func(t *rapid.T) {
				e := event(t)
				e.Now = e.Now.Add(time.Duration(rapid.IntRange(-5, 1e9).Draw(t, "passed")))
				e.FirstTokenAt = e.Now
				both(func(l *predictor) { l.FirstToken(e) })
			},
			"done": func(t *rapid.T) {
				e := event(t)
				e.LastTokenAt, e.OutputTokens = e.Now, rapid.IntRange(0, 3).Draw(t, "tokens")
				o := endpick.Outcome{Status: endpick.Status(rapid.IntRange(0, 4).Draw(t, "status"))}
				both(func(l *predictor) { l.Done(e, &o) })
			},
			"remove": func(t *rapid.T) {
				ref := endpick.EndpointRef{Slot: uint32(rapid.IntRange(0, 600).Draw(t, "slot")), Generation: uint32(rapid.IntRange(0, 2).Draw(t, "generation"))}
				both(func(l *predictor) { l.EndpointRemoved(ref) })
			},
			"": func(t *rapid.T) {
				req := w.request().At(w.now, 0, 1)
				req.Stream = w.key%2 == 0
				candidates := []endpick.Candidate{w.candidate("a", 0), w.candidate("zzz", 1), w.candidate("b", 2)}
				candidates[2].KVUsage = odd.Draw(t, "kv")
				same := append([]endpick.Candidate(nil), candidates...)
				twin.rng = rand.New(rand.NewPCG(uint64(w.key), 1))
				w.rng = rand.New(rand.NewPCG(uint64(w.key), 1))
				w.latency.Predict(&req, candidates)
				twin.latency.Predict(&req, same)
				require.Equal(t, predictions(same), predictions(candidates))
				require.Zero(t, candidates[1].Prediction.Has, "its variant is unknown")
				for _, c := range candidates {
					p := c.Prediction
					require.True(t, p.Has&endpick.TTFT == 0 || p.TTFT > 0 && p.TTFTUpper >= p.TTFT, "%+v", p)
					require.True(t, p.Has&endpick.TPOT == 0 || p.TPOT > 0 && p.TPOTUpper >= p.TPOT, "%+v", p)
					require.True(t, p.Has&endpick.E2E == 0 || p.E2E > 0 && p.E2EUpper >= p.E2E, "%+v", p)
				}
			},
		})
	})
}

func predictions(candidates []endpick.Candidate) (all []endpick.Prediction) {
	for _, c := range candidates {
		all = append(all, c.Prediction)
	}
	return all
}

// A request that was already under way has no known duration, so it is no label.
func TestWhatWasUnderWayIsNoLabel(t *testing.T) {
	w := newWorld(t, synchronous())
	for _, adopted := range []*endpick.Adopted{{Endpoint: "a"}, nil} {
		req := w.request()
		req.Stream, req.Adopted = false, adopted
		w.finish(req, w.candidate("", 0))
	}
	require.EqualValues(t, 1, w.latency.Health()[0].E2E.Samples)
}

// labels returns the number of labels for each of the three latencies.
func (w *world) labels() [targets]int {
	h := w.latency.Health()[0]
	return [targets]int{int(h.TTFT.Labels), int(h.TPOT.Labels), int(h.E2E.Labels)}
}

// Which latencies a response teaches: a stream its first token and the ones after it, any
// other response the whole, whatever else is known.
func TestWhatAResponseTeaches(t *testing.T) {
	for name, tc := range map[string]struct {
		stream, first bool
		tokens        int
		want          [targets]int
	}{
		"streamed":                       {true, true, 10, [targets]int{1, 1, 0}},
		"streamed, of one token":         {true, true, 1, [targets]int{1, 0, 0}},
		"streamed, without a first":      {true, false, 10, [targets]int{}},
		"whole":                          {false, false, 10, [targets]int{0, 0, 1}},
		"whole, and the host knows more": {false, true, 10, [targets]int{1, 0, 1}},
	} {
		w := newWorld(t, synchronous())
		req, c := w.request(), w.candidate("", 0)
		req.Stream = tc.stream
		e := w.route(req, &c)
		w.after(e, 100)
		if tc.first {
			e.FirstTokenAt = e.Now
			w.latency.FirstToken(e)
		}
		w.after(e, 900)
		if tc.first {
			e.LastTokenAt = e.Now
		}
		e.OutputTokens = tc.tokens
		w.latency.Done(e, &endpick.Outcome{})
		require.Equal(t, tc.want, w.labels(), name)
	}
}

// The first token of a request that was then canceled teaches, although its model had no place
// when it came.
func TestAFirstTokenBeforeItsModel(t *testing.T) {
	w := newWorld(t, synchronous())
	c := w.candidate("", 0)
	first := w.route(w.request(), &c)
	w.after(first, 100)
	first.FirstTokenAt = first.Now
	w.latency.FirstToken(first)
	w.finish(w.request(), c) // which gives the model its place
	labels := w.labels()
	first.Now, first.OutputTokens = w.now, 1
	w.latency.Done(first, &endpick.Outcome{Status: endpick.Canceled})
	labels[ttft]++
	require.Equal(t, labels, w.labels())
}

// Each latency has a bound of its own: nine in ten first tokens and nine in ten times
// per token stay below theirs.
func TestCoverageIsThatOfEachLatency(t *testing.T) {
	w := newWorld(t, synchronous())
	for i := range 900 {
		req := w.request()
		req.Stream = i%3 > 0
		w.finish(req, w.candidate("", 0))
	}
	h := w.latency.Health()[0]
	for name, one := range map[string]Health{"TTFT": h.TTFT, "TPOT": h.TPOT, "E2E": h.E2E} {
		require.InDelta(t, 0.9, one.Coverage, 0.07, name)
		require.Less(t, one.MAPE, 0.5, name)
	}
}

// A latency that is set in a prediction without its Has flag was not predicted.
func TestWhatWasNotPredictedIsNoError(t *testing.T) {
	w := newWorld(t, synchronous())
	c := w.candidate("", 0)
	c.Prediction = endpick.Prediction{Has: endpick.TPOT, TTFT: time.Hour, TTFTUpper: time.Hour, TPOT: time.Millisecond, TPOTUpper: time.Hour, E2E: time.Hour}
	e := w.route(w.request(), &c)
	require.Equal(t, [targets]float64{tpot: 1}, w.latency.open.Find(e.Lease).predicted)
}

// If a model has a name, the names of endpoints and adapters do not matter.
func TestModelsAreKnownByTheirName(t *testing.T) {
	for want, req := range map[string]endpick.Request{
		"m": {Model: "m"}, "base": {Model: "base", Adapter: "lora"}, "lora": {Adapter: "lora"}, "": {},
	} {
		require.Equal(t, want, modelName(&req))
	}
}

// A reader of the tables keeps the ones it started with while a new name is added.
func TestTablesAreReplaced(t *testing.T) {
	config := synchronous()
	config.MaxModels = 3
	w := newWorld(t, config)
	for i := range 5 {
		models := *w.latency.models.Load()
		had := maps.Clone(models)
		for range learn.FirstFit {
			w.latency.admitModel(fmt.Sprint(i))
		}
		require.Equal(t, had, models)
		require.NotNil(t, (*w.latency.models.Load())[fmt.Sprint(i)])
	}
	for i := range maxVariants + 3 {
		variants := *w.latency.variants.Load()
		had := slices.Clone(variants)
		for range learn.FirstFit {
			w.latency.admitVariant(fmt.Sprint(i))
		}
		require.Equal(t, had, variants)
		require.NotNil(t, findVariant(*w.latency.variants.Load(), fmt.Sprint(i)))
	}
}

// A latency of more than a day is discarded, and does not count towards the labels that a
// kind of endpoint needs to be predicted.
func TestDaysAreNoLabels(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 100 {
		w.finish(w.request(), w.candidate("known", 0))
	}
	c := w.candidate("new", 1)
	for range learn.FirstFit {
		e := w.route(w.request(), &c)
		w.after(e, 25*3600*1e3)
		e.FirstTokenAt = e.Now
		w.latency.FirstToken(e)
		w.leave(e, endpick.Completed)
	}
	for range 200 { // and fits follow
		require.Zero(t, w.predict(w.request(), &c).Has)
		w.finish(w.request(), w.candidate("known", 0))
	}
	for range learn.FirstFit {
		require.Zero(t, w.predict(w.request(), &c).Has)
		w.finish(w.request(), c)
	}
	require.NotZero(t, w.predict(w.request(), &c).Has)
}

// A removed endpoint is forgotten, and nothing else is.
func TestARemovedEndpointIsForgotten(t *testing.T) {
	w := trained(t)
	a, b := endpick.EndpointRef{Slot: 0, Generation: 1}, endpick.EndpointRef{Slot: 1, Generation: 1}
	require.NotNil(t, w.latency.states.Find(a))
	w.latency.EndpointRemoved(a)
	require.Nil(t, w.latency.states.Find(a))
	require.NotNil(t, w.latency.states.Find(b))
}
