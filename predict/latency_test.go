package predict

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict/internal/learn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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

func newPredictor(config LatencyConfig) *predictor { return rig.Must(NewLatency(config)).(*predictor) }

func newWorld(t require.TestingT, config LatencyConfig) *world {
	l, rng := newPredictor(config), rand.New(rand.NewPCG(4, 2))
	return &world{t: t, latency: l, rng: rng, now: time.Unix(1000, 0), slow: map[string]float64{}}
}

func (w *world) request() endpick.Request {
	return endpick.Request{Model: "m", InputTokens: 50 + w.rng.IntN(4000), ExpectedOutputTokens: 1 + w.rng.IntN(500), Stream: true}
}

// whole is a request whose response does not stream.
func (w *world) whole() endpick.Request {
	req := w.request()
	req.Stream = false
	return req
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
	if req.Stream {
		w.answer(e, first)
		w.after(e, second*(tokens-1))
		e.LastTokenAt, e.OutputTokens = e.Now, tokens
	} else {
		first, second = 0, first+second*(tokens-1)
		w.after(e, second)
	}
	w.latency.Done(e, &endpick.Outcome{})
	w.now = w.now.Add(100 * time.Millisecond)
	return first, second
}

// many finishes n requests on endpoints of one kind.
func (w *world) many(n int, variant string, slot uint32) {
	for range n {
		w.finish(w.request(), w.candidate(variant, slot))
	}
}

// errors finishes n requests on endpoints of one kind, and returns the mean relative errors of what
// was predicted for them: 0.1 is ten percent.
func (w *world) errors(n int, variant string, slot uint32) (ttft, tpot float64) {
	for range n {
		req, c := w.request(), w.candidate(variant, slot)
		p := w.predict(req, &c)
		require.Equal(w.t, endpick.TTFT|endpick.TPOT, p.Has)
		require.GreaterOrEqual(w.t, p.TTFTUpper, p.TTFT)
		require.GreaterOrEqual(w.t, p.TPOTUpper, p.TPOT)
		a, b := w.finish(req, c)
		ttft += relative(p.TTFT, a) / float64(n)
		tpot += relative(p.TPOT, b) / float64(n)
	}
	return ttft, tpot
}

// route reports a request as routed, with a lease of its own.
func (w *world) route(req endpick.Request, c *endpick.Candidate) *endpick.Event {
	w.key++
	e := &endpick.Event{Lease: endpick.LeaseRef{Slot: w.key % 1000, Generation: w.key}, Request: &req, Candidate: c, Now: w.now, RoutedAt: w.now}
	w.latency.Routed(e)
	return e
}

func (w *world) after(e *endpick.Event, ms float64) { e.Now = e.Now.Add(time.Duration(ms * 1e6)) }

// trained returns a world with two predicted variants, at slots 0 and 1.
func trained(t *testing.T) *world {
	w := newWorld(t, synchronous())
	for i := range 200 {
		w.finish(w.request(), w.candidate([]string{"a", "b"}[i%2], uint32(i%2)))
	}
	return w
}

// answer gives a request its first token after so many milliseconds.
func (w *world) answer(e *endpick.Event, ms float64) {
	w.after(e, ms)
	e.FirstTokenAt = e.Now
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
	w.many(learn.FirstFit-1, "", 0)
	c := w.candidate("", 0)
	require.Zero(t, w.predict(w.request(), &c).Has, "24 samples are too few: scorers fall back")
	require.Equal(t, "heuristic", w.latency.Health()[0].TTFT.Phase)
	w.finish(w.request(), w.candidate("", 0))
	require.Equal(t, "prior", w.latency.Health()[0].TTFT.Phase)

	first, second := w.errors(75, "", 0)
	require.Less(t, first, 0.10, "the next 75")
	require.Less(t, second, 0.10)
	w.errors(700, "", 0)
	require.Equal(t, "trees", w.latency.Health()[0].TTFT.Phase)
	first, second = w.errors(500, "", 0)
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
		w.finish(w.whole(), w.candidate("", 0))
	}
	req, c := w.whole(), w.candidate("", 0)
	p := w.predict(req, &c)
	require.Equal(t, endpick.E2E, p.Has, "no first token was ever seen")
	require.GreaterOrEqual(t, p.E2EUpper, p.E2E)
	_, took := w.finish(req, c)
	require.Less(t, relative(p.E2E, took), 0.25)

	// With streams among the labels, the time to first token is known as well; the time per token
	// is left out.
	w.many(300, "", 0)
	require.Equal(t, endpick.TTFT|endpick.E2E, w.predict(req, &c).Has)

	// Each latency has a bound of its own: nine in ten stay below theirs.
	for range 300 {
		w.finish(w.whole(), w.candidate("", 0))
		w.many(2, "", 0)
	}
	h := w.latency.Health()[0]
	for name, one := range map[string]Health{"TTFT": h.TTFT, "TPOT": h.TPOT, "E2E": h.E2E} {
		require.InDelta(t, 0.9, one.Coverage, 0.07, name)
		require.Less(t, one.MAPE, 0.5, name)
	}
}

func TestVariantsAreToldApart(t *testing.T) {
	w := newWorld(t, synchronous())
	w.slow["old"] = 3
	w.many(1000, "new", 0)
	c := w.candidate("old", 1)
	w.many(24, "old", 1)
	require.Zero(t, w.predict(w.request(), &c).Has)
	w.finish(w.request(), w.candidate("old", 1))
	require.NotZero(t, w.predict(w.request(), &c).Has, "known from its 25th sample")
	for range 500 {
		w.finish(w.request(), w.candidate("old", 1))
		w.finish(w.request(), w.candidate("new", 0))
	}
	off, _ := w.errors(200, "old", 1)
	require.Less(t, off, 0.08, "three times as slow, and known to be")
}

func TestRequestsOfUnknownLengthAreNeitherPredictedNorLearned(t *testing.T) {
	w := newWorld(t, synchronous())
	w.many(100, "", 0)
	req, c := w.request(), w.candidate("", 0)
	req.InputTokens = 0
	require.Zero(t, w.predict(req, &c).Has)
	w.finish(req, c)
	require.Equal(t, 100, w.latency.Health()[0].TTFT.Samples)
}

// labels returns the number of labels for each of the three latencies.
func (w *world) labels() [targets]int {
	h := w.latency.Health()[0]
	return [targets]int{int(h.TTFT.Labels), int(h.TPOT.Labels), int(h.E2E.Labels)}
}

// Which latencies a response teaches: a stream its first token and the ones after it, any other
// response the whole, whatever else is known; less if it ended early. A first token counts when it
// comes or, if its model had no place then, at the end, unless the response failed.
func TestWhatAResponseTeaches(t *testing.T) {
	for _, tc := range []struct {
		name          string
		status        endpick.Status
		stream, first bool
		tokens        int
		adopted       *endpick.Adopted
		want          [targets]int
	}{
		{"streamed", endpick.Completed, true, true, 10, nil, [targets]int{1, 1, 0}},
		{"streamed, of one token", endpick.Completed, true, true, 1, nil, [targets]int{1, 0, 0}},
		{"streamed, without a first", endpick.Completed, true, false, 10, nil, [targets]int{}},
		{"streamed and failed", endpick.Failed, true, true, 10, nil, [targets]int{1, 0, 0}},
		{"streamed and lost", endpick.Lost, true, true, 10, nil, [targets]int{1, 0, 0}},
		{"streamed and canceled", endpick.Canceled, true, true, 10, nil, [targets]int{1, 1, 0}},
		{"whole", endpick.Completed, false, false, 10, nil, [targets]int{0, 0, 1}},
		{"whole, and the host knows more", endpick.Completed, false, true, 10, nil, [targets]int{1, 0, 1}},
		{"whole and failed", endpick.Failed, false, false, 10, nil, [targets]int{}},
		{"whole and lost", endpick.Lost, false, false, 10, nil, [targets]int{}},
		{"whole and canceled", endpick.Canceled, false, false, 10, nil, [targets]int{}},
		{"whole, and under way before", endpick.Completed, false, false, 10, &endpick.Adopted{Endpoint: "a"}, [targets]int{}},
	} {
		for _, late := range []bool{false, true} { // the model gets its place after the first token
			w := newWorld(t, synchronous())
			req, c := w.request(), w.candidate("", 0)
			req.Stream, req.Adopted = tc.stream, tc.adopted
			if !late {
				w.many(1, "", 0)
			}
			e := w.route(req, &c)
			if tc.first {
				w.answer(e, 100)
			}
			if late {
				w.many(1, "", 0)
			}
			w.after(e, 900)
			if tc.first {
				e.LastTokenAt = e.Now
			}
			e.OutputTokens = tc.tokens
			want := tc.want
			if late && (tc.status == endpick.Failed || tc.status == endpick.Lost) {
				want[ttft] = 0
			}
			want[ttft]++ // that of the other request
			want[tpot]++
			for range 2 { // the second time, the request is no longer known
				w.latency.Done(e, &endpick.Outcome{Status: tc.status})
				require.Equal(t, want, w.labels(), "%s, late: %v", tc.name, late)
			}
		}
	}
}

func TestNewLatencyRefusesABadConfig(t *testing.T) {
	for want, config := range map[string]LatencyConfig{
		"endpick: config: predict.LatencyConfig.MaxModels is negative":                 {MaxModels: -1},
		"endpick: config: predict.LatencyConfig.Trees is 5000, want 0 to 1024":         {Trees: 5000},
		"endpick: config: predict.LatencyConfig.Samples is -1, want 0 to 1048575":      {Samples: -1},
		"endpick: config: predict.LatencyConfig.Samples is 1048576, want 0 to 1048575": {Samples: 1 << 20},
		"endpick: config: predict.LatencyConfig.MaxAge is negative":                    {MaxAge: -1},
		"endpick: config: predict.LatencyConfig.RefitEvery is negative":                {RefitEvery: -1},
		"endpick: config: predict.LatencyConfig.Share is -1, want 0 to 1":              {Share: -1},
		"endpick: config: predict.LatencyConfig.Share is 2, want 0 to 1":               {Share: 2},
		"endpick: config: predict.LatencyConfig.Share is NaN, want 0 to 1":             {Share: math.NaN()},
	} {
		require.EqualError(t, rig.Err(NewLatency(config)), want)
	}
	newPredictor(LatencyConfig{Share: 1, Trees: 1024, Samples: 1_048_575})
}

func TestPredictorAllocatesNothing(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector makes sync.Pool forget")
	w := newWorld(t, synchronous())
	w.many(200, "", 0)
	candidates := make([]endpick.Candidate, 100)
	for i := range candidates {
		candidates[i] = w.candidate("", uint32(i))
	}
	req := w.request().At(w.now, 0, 1)
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
		twins := [2]*world{newWorld(t, config), newWorld(t, config)}
		both := func(f func(l *predictor)) { f(twins[0].latency); f(twins[1].latency) }
		var events []*endpick.Event
		event := func(t *rapid.T) *endpick.Event {
			if len(events) == 0 {
				t.Skip("nothing open")
			}
			return rapid.SampledFrom(events).Draw(t, "event")
		}
		odd := rapid.SampledFrom([]float64{0, 1, -1, 1e9, math.NaN(), math.Inf(1)})
		slot := rapid.Uint32Range(0, 600)
		t.Repeat(map[string]func(*rapid.T){
			"finish many": func(t *rapid.T) {
				n, variant := rapid.IntRange(1, 15).Draw(t, "n"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "variant")
				for _, w := range twins {
					w.many(n, variant, 0)
				}
			},
			"route": func(t *rapid.T) {
				req := endpick.Request{Model: rapid.SampledFrom([]string{"m", "n", ""}).Draw(t, "model"),
					InputTokens: rapid.IntRange(0, 100_000).Draw(t, "input"), Stream: rapid.Bool().Draw(t, "stream")}
				c := endpick.Candidate{Endpoint: &endpick.Endpoint{Variant: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "variant")},
					Waiting: odd.Draw(t, "waiting"), KVUsage: odd.Draw(t, "kv"), PrefixTokens: rapid.IntRange(-1, 10).Draw(t, "prefix")}
				now := twins[0].now
				e := &endpick.Event{Lease: endpick.LeaseRef{Slot: slot.Draw(t, "slot"), Generation: uint32(len(events))},
					Request: &req, Candidate: &c, Now: now, RoutedAt: now}
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
				ref := endpick.EndpointRef{Slot: slot.Draw(t, "slot"), Generation: rapid.Uint32Range(0, 2).Draw(t, "generation")}
				both(func(l *predictor) { l.EndpointRemoved(ref) })
			},
			"": func(t *rapid.T) {
				kv := odd.Draw(t, "kv")
				var seen [2][]endpick.Prediction
				for i, w := range twins {
					req := w.request().At(w.now, 0, 1)
					req.Stream = w.key%2 == 0
					candidates := []endpick.Candidate{w.candidate("a", 0), w.candidate("zzz", 1), w.candidate("b", 2)}
					candidates[2].KVUsage = kv
					w.latency.Predict(&req, candidates)
					require.Zero(t, candidates[1].Prediction.Has, "its variant is unknown")
					for _, c := range candidates {
						p := c.Prediction
						require.True(t, p.Has&endpick.TTFT == 0 || p.TTFT > 0 && p.TTFTUpper >= p.TTFT, "%+v", p)
						require.True(t, p.Has&endpick.TPOT == 0 || p.TPOT > 0 && p.TPOTUpper >= p.TPOT, "%+v", p)
						require.True(t, p.Has&endpick.E2E == 0 || p.E2E > 0 && p.E2EUpper >= p.E2E, "%+v", p)
						seen[i] = append(seen[i], p)
					}
				}
				require.Equal(t, seen[0], seen[1])
			},
		})
	})
}

// A latency that is set in a prediction without its Has flag was not predicted.
func TestWhatWasNotPredictedIsNoError(t *testing.T) {
	w := newWorld(t, synchronous())
	c := w.candidate("", 0)
	c.Prediction = endpick.Prediction{Has: endpick.TPOT, TTFT: time.Hour, TTFTUpper: time.Hour, TPOT: time.Millisecond, TPOTUpper: time.Hour, E2E: time.Hour}
	require.Equal(t, [targets]float64{tpot: 1}, w.latency.open.Find(w.route(w.request(), &c).Lease).predicted)
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

// A latency of more than a day, or of nothing, is discarded, and does not count towards the labels that a
// kind of endpoint needs to be predicted.
func TestDaysAreNoLabels(t *testing.T) {
	for _, ms := range []float64{25 * 3600 * 1e3, 0} {
		w := newWorld(t, synchronous())
		w.many(100, "known", 0)
		c := w.candidate("new", 1)
		for range learn.FirstFit {
			e := w.route(w.request(), &c)
			w.answer(e, ms)
			w.leave(e, endpick.Completed)
		}
		for range 200 { // and fits follow
			require.Zero(t, w.predict(w.request(), &c).Has, "%v", ms)
			w.finish(w.request(), w.candidate("known", 0))
		}
		for range learn.FirstFit {
			require.Zero(t, w.predict(w.request(), &c).Has, "%v", ms)
			w.finish(w.request(), c)
		}
		require.NotZero(t, w.predict(w.request(), &c).Has)
	}
}
