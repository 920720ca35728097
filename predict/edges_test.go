package predict

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/learn"
	"github.com/endpick/endpick/internal/pace"
	"github.com/endpick/endpick/internal/portable"
)

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

// An overdue request counts in the model that predicted it, and in no other.
func TestWaitsCountInTheirOwnModel(t *testing.T) {
	w := newWorld(t, synchronous())
	of := func(model string) endpick.Request {
		req := w.request()
		req.Model = model
		return req
	}
	for range 300 {
		w.finish(of("m"), w.candidate("", 0))
		w.finish(of("n"), w.candidate("", 0))
	}
	for range 5 {
		c := w.candidate("", 0)
		require.NotZero(t, w.predict(of("n"), &c).Has&endpick.TTFT)
		w.route(of("n"), &c)
	}
	for model, want := range map[string]int{"m": 0, "n": 5} {
		got := 0
		w.latency.overdue((*w.latency.models.Load())[model], ttft, w.now.Add(time.Hour), func([]float64, float64) { got++ })
		require.Equal(t, want, got, model)
	}
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

// How long an overdue request has waited counts relative to the pace that its endpoint has now.
func TestOverdueAtThePaceOfItsEndpoint(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 300 {
		w.finish(w.request(), w.candidate("", 0))
	}
	c := w.candidate("", 0)
	p := w.predict(w.request(), &c)
	e := w.route(w.request(), &c)
	state := w.latency.states.Find(c.Ref)
	state.pace = pace.Pace{}
	for range 50 {
		state.pace.Add(nanoseconds(e.RoutedAt), 3, 0.1)
	}
	part := state.pace.Factor(nanoseconds(e.RoutedAt)) // does not fade while the request waits
	require.Greater(t, part, 2.0)
	var waited []float64
	w.latency.overdue((*w.latency.models.Load())["m"], ttft, e.RoutedAt.Add(2*p.TTFT), func(_ []float64, atLeast float64) { waited = append(waited, atLeast) })
	require.Len(t, waited, 1)
	require.InEpsilon(t, inMilliseconds(2*p.TTFT)/part, waited[0], 0.01)
}

// An overdue request is overdue in the latency that it waits for.
func TestOverdueByWhatIsAwaited(t *testing.T) {
	w := newWorld(t, synchronous())
	for i := range 300 {
		req := w.request()
		req.Stream = i%2 == 0
		w.finish(req, w.candidate("", 0))
	}
	overdue := func() (n [targets]int) {
		m := (*w.latency.models.Load())["m"]
		for target := range learn.Target(targets) {
			w.latency.overdue(m, target, w.now.Add(time.Hour), func([]float64, float64) { n[target]++ })
		}
		return n
	}
	var open []*endpick.Event
	for i := range 7 {
		req, c := w.request(), w.candidate("", 0)
		req.Stream = i < 4
		require.NotZero(t, w.predict(req, &c).Has&endpick.TTFT, "also where it is not awaited")
		open = append(open, w.route(req, &c))
	}
	require.Equal(t, [targets]int{ttft: 4, e2e: 3}, overdue())
	w.answer(open[0])
	require.Equal(t, [targets]int{ttft: 3, e2e: 3}, overdue())
	for _, e := range open {
		w.leave(e, endpick.Failed)
	}
	require.Zero(t, overdue())
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
		w.latency.admitModel(fmt.Sprint(i))
		require.Equal(t, had, models)
	}
	for i := range maxVariants + 3 {
		variants := *w.latency.variants.Load()
		had := slices.Clone(variants)
		v := w.latency.admitVariant(fmt.Sprint(i))
		v.used.Store(uint64(i + 1))
		require.Equal(t, had, variants)
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
	a, b := endpick.Ref{Slot: 0, Generation: 1}, endpick.Ref{Slot: 1, Generation: 1}
	require.NotNil(t, w.latency.states.Find(a))
	w.latency.EndpointRemoved(a)
	require.Nil(t, w.latency.states.Find(a))
	require.NotNil(t, w.latency.states.Find(b))
}

// While a response is awaited, what is known of an endpoint's pace does not fade, since
// the response will tell. When nothing is awaited, it does.
func TestPaceWhileAnAnswerIsAwaited(t *testing.T) {
	w := trained(t)
	c := w.candidate("a", 0)
	s := w.latency.states.At(c.Ref)
	for range 50 {
		s.pace.Add(w.now.UnixNano(), 3, 0.1)
	}
	req := w.request()
	req.InputTokens, c.Waiting = 100_000, 4
	now := func() (factor, predicted, routed, overdue float64) {
		all := []endpick.Candidate{c}
		at := req.At(w.now, 0, 1)
		w.latency.Predict(&at, all)
		own := s.pace
		s.pace = pace.Pace{}
		alike := []endpick.Candidate{c}
		w.latency.Predict(&at, alike)
		s.pace = own
		e := w.route(req, &all[0])
		o := w.latency.open.Find(e.Lease)
		age := w.now.Add(time.Minute)
		whole := 0.0
		m := (*w.latency.models.Load())["m"]
		w.latency.overdue(m, ttft, age, func(_ []float64, atLeast float64) { whole = max(whole, atLeast) })
		routed = o.pace
		w.latency.leave(o, w.now.UnixNano(), false)
		w.latency.open.Drop(e.Lease)
		return s.pace.Factor(w.now.UnixNano()), all[0].Prediction.TPOT.Seconds() / alike[0].Prediction.TPOT.Seconds(), routed, whole
	}
	factor, predicted, routed, _ := now()
	require.InDelta(t, 3, factor, 0.3)
	require.InDelta(t, factor, predicted, 0.01)
	require.InDelta(t, factor, routed, 0.01)
	waits := c
	w.predict(req, &waits)
	e := w.route(req, &waits)
	w.now = w.now.Add(15 * time.Second)
	faded, predicted, routed, overdue := now()
	require.Less(t, faded, 1.5)
	require.InDelta(t, factor, predicted, 0.01)
	require.InDelta(t, factor, routed, 0.01)
	require.InDelta(t, 75_000/factor, overdue, 0.02*75_000)
	w.leave(e, endpick.Failed)
	faded, predicted, routed, _ = now()
	require.InDelta(t, faded, predicted, 0.01)
	require.InDelta(t, faded, routed, 0.01)
}

// The pace of an endpoint is relative to earlier labels of others of its kind.
func TestTheOffsetIsThatOfOthers(t *testing.T) {
	l, err := NewLatency(synchronous())
	require.NoError(t, err)
	ref := endpick.Ref{Slot: 1, Generation: 1}
	s := l.states.At(ref)
	o := openRequest{ref: ref, pace: 1}
	var off offset
	for range 4 {
		l.paceOf(&off, 1, &o, 100, 100, 150, 1e18)
	}
	require.Zero(t, s.pace, "until there is enough to compare with")
	l.paceOf(&off, 1, &o, 200, 100, 150, 1e18)
	require.NotZero(t, s.pace)
	var want pace.Pace
	want.Add(1e18, 2, portable.Ln(1.5)/deviations)
	require.Equal(t, want, s.pace)
}

// A restored predictor predicts whatever the saved one had enough labels for.
func TestARestartKnowsWhatItKnew(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 100 {
		w.finish(w.request(), w.candidate("known", 0))
	}
	for range learn.FirstFit - 1 {
		w.finish(w.request(), w.candidate("new", 1))
	}
	for range learn.FirstFit {
		w.finish(w.request(), w.candidate("just", 2))
	}
	restored := func() *world {
		saved, err := w.latency.AppendBinary(nil)
		require.NoError(t, err)
		l, err := Restore(synchronous(), saved)
		require.NoError(t, err)
		again := newWorld(t, synchronous())
		again.latency = l
		return again
	}
	r := restored()
	require.True(t, r.predicts("m", "known"))
	require.True(t, r.predicts("m", "just"))
	require.False(t, r.predicts("m", "new"))
	r.finish(r.request(), r.candidate("new", 1))
	require.True(t, r.predicts("m", "new"), "that was the last that it took")

	// A variant that took over another's place has its own labels only.
	for i := range maxVariants - 1 {
		w.finish(w.ask("other"), w.candidate(fmt.Sprint(i), 0))
	}
	require.Nil(t, findVariant(*w.latency.variants.Load(), "known"))
	r = restored()
	for i := range maxVariants - 1 {
		require.False(t, r.predicts("m", fmt.Sprint(i)), "%d", i)
	}
}

