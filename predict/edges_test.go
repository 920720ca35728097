package predict

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/internal/learn"
	"github.com/endpick/endpick/predict/pace"
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

// The pace of an endpoint is relative to earlier labels of others of its kind.
func TestTheOffsetIsThatOfOthers(t *testing.T) {
	l := newPredictor(t, synchronous())
	ref := endpick.EndpointRef{Slot: 1, Generation: 1}
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
	want.Add(1e18, 2, math.Log(1.5)/deviations)
	require.Equal(t, want, s.pace)
}
