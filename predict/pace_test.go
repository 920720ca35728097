package predict

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/internal/learn"
	"github.com/endpick/endpick/predict/pace"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// off returns the mean relative error of a slot's predictions: 0.1 is ten percent.
func (w *world) off(slot uint32) (ttft, tpot float64) {
	const n = 20
	for range n {
		req, c := w.request(), w.candidate("", slot)
		p := w.predict(req, &c)
		require.Equal(w.t, endpick.TTFT|endpick.TPOT, p.Has)
		ttft += relative(p.TTFT, w.ttft(&req, &c)) / n
		tpot += relative(p.TPOT, w.tpot(&c)) / n
	}
	return ttft, tpot
}

// rounds are n requests to each of four servers.
func (w *world) rounds(n int) {
	for range n {
		for slot := range uint32(4) {
			w.finish(w.request(), w.candidate("", slot))
		}
	}
}

// A server that becomes three times as slow as others of its kind is predicted to be, and
// no other is; the models learn nothing of it, and it does not count as their error. After
// half a minute without requests the server counts as ordinary again.
func TestPaceOfAnEndpoint(t *testing.T) {
	w := newWorld(t, synchronous())
	w.pace = map[uint32]float64{}
	w.rounds(150)
	w.pace[1] = 3
	w.rounds(30)
	for round := range 2 { // before the next refits and after
		for slot := range uint32(4) {
			ttft, tpot := w.off(slot)
			most := 0.2
			if slot == 1 {
				most = 0.3 // its own labels help to define the usual: a factor of 3^(1/4)
			}
			assert.Less(t, ttft, most, "TTFT of %d, round %d", slot, round)
			assert.Less(t, tpot, most, "TPOT of %d, round %d", slot, round)
		}
		h := w.latency.Health()[0]
		assert.Less(t, h.TTFT.MAPE, 0.2, "TTFT, round %d", round)
		assert.Less(t, h.TPOT.MAPE, 0.2, "TPOT, round %d", round)
		w.rounds(60)
	}
	w.now = w.now.Add(time.Minute)
	w.pace[1] = 1
	ttft, tpot := w.off(1)
	assert.Less(t, ttft, 0.2)
	assert.Less(t, tpot, 0.2)
}

// The features of a prediction and of a sample, worked out by hand: no two figures are alike.
func TestFeaturesByHand(t *testing.T) {
	req := endpick.Request{InputTokens: 1000, ExpectedOutputTokens: 50}
	c := endpick.Candidate{
		KVUsage: 0.25, Waiting: 3, Running: 5, PrefixTokens: 500, InFlight: endpick.InFlight{PrefillTokens: 700, ContextTokens: 9000, OutputTokens: 11},
	}
	got := features(&req, &c)
	assert.True(t, math.IsNaN(got.PrefillRate))
	got.PrefillRate = 0
	assert.Equal(t, learn.Features{
		KVUsage: 0.25, InputTokens: 1000, Waiting: 3, Running: 5, PrefixShare: 0.5, PrefillTokens: 700, ResidentTokens: 9000, ExpectedOutputTokens: 50,
	}, got)
	c.PrefixTokens = 999
	assert.EqualValues(t, 1, features(&req, &c).PrefixShare, "all but the last token, which engines compute again")
	req.ExpectedOutputTokens = 0
	assert.True(t, math.IsNaN(features(&req, &c).ExpectedOutputTokens), "unknown is not zero")
	req.ExpectedOutputTokens, req.Responses = 120, 4
	assert.EqualValues(t, 30, features(&req, &c).ExpectedOutputTokens, "of one of them")
}

// Only a time that is possible, with a bound, is predicted.
func TestPossiblePredictions(t *testing.T) {
	for _, x := range []struct {
		ms, upper float64
		has       endpick.Latencies
	}{{2, 3, endpick.TTFT}, {0, 3, 0}, {-1, 3, 0}, {math.NaN(), 3, 0}, {2, math.Inf(1), 0}} {
		var p endpick.Prediction
		set(&p, ttft, x.ms, x.upper)
		assert.Equal(t, x.has, p.Has, "%+v", x)
	}
	var p endpick.Prediction
	set(&p, ttft, 1e300, 1e300)
	assert.Equal(t, 24*time.Hour, p.TTFT, "the longest")
}

func TestConfigReachesTheLearners(t *testing.T) {
	c := LatencyConfig{Trees: 7, Samples: 1234, MaxAge: time.Hour, RefitEvery: 99, Share: 0.5, Synchronous: true}
	for target := range learn.Target(targets) {
		l := c.learner(target)
		assert.Equal(t, []any{7, 1234, time.Hour, 99}, []any{l.Boost.Trees, l.Window.Samples, l.Window.MaxAge, l.RefitEvery})
	}
	l := newPredictor(c)
	assert.Equal(t, 0.5, l.trainer.Share)
	assert.True(t, l.trainer.Synchronous)
	assert.Equal(t, LatencyConfig{MaxModels: 64}, newPredictor(LatencyConfig{}).config)
}

// paceOf labels a slot's requests by hand, each predicted by a model with that pace in it.
func (w *world) paceOf(times int, all *offset, refits uint64, pace, ms, predicted float64) *endpointState {
	ref := endpick.EndpointRef{Slot: 1, Generation: 1}
	s := w.latency.states.At(ref)
	for range times {
		w.latency.paceOf(all, refits, &openRequest{ref: ref, pace: pace}, ms, predicted, 1.5*predicted, 1e18)
	}
	return s
}

func TestOffsetsEndWithTheirModel(t *testing.T) {
	w := newWorld(t, synchronous())
	var off offset
	w.paceOf(10, &off, 1, 2, 200, 200)
	mean, ok := off.Mean()
	assert.True(t, ok)
	assert.InDelta(t, 2, mean, 1e-9)
	for _, predicted := range []float64{100, 0} { // what was not predicted tells nothing
		w.paceOf(1, &off, 2, 1, 100, predicted)
		mean, ok = off.Mean()
		assert.False(t, ok, "one label is too little to say")
		assert.InDelta(t, 1, mean, 1e-9)
	}
}

// Whatever an endpoint's pace, a latency is within its bound, or off its prediction, exactly as a
// caller with both figures would see it: the learner gets all three figures without the pace.
func TestALabelKeepsItsBoundWhateverThePace(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, pace := range []float64{1. / 3, 1, 3} {
		for _, took := range []float64{0.7, 0.95, 1, 1.45, 1.55, 2} {
			l := newPredictor(synchronous())
			m, v := l.admitModel("m"), l.admitVariant("")
			ref := endpick.EndpointRef{Slot: 1, Generation: 1}
			s := l.states.At(ref)
			for range 50 {
				s.pace.Add(at.UnixNano(), pace, 0.1)
			}
			o := openRequest{ref: ref, pace: s.pace.Factor(at.UnixNano())}
			o.predicted[tpot], o.upper[tpot] = 100*o.pace, 150*o.pace
			ms := took * o.predicted[tpot]
			l.label(m, tpot, v, &o, time.Duration(ms*1e6), at)
			h := m.learners[tpot].Health()
			require.EqualValues(t, 1, h.Labels)
			covered := 0.0
			if took <= 1.5 {
				covered = 1
			}
			require.Equal(t, covered, h.Coverage, "pace %v, %v times as long as predicted", pace, took)
			off := max(1/took-1, 1-1/took)
			require.InDelta(t, min(off, 1), h.MAPE, 1e-6, "pace %v, %v times as long as predicted", pace, took)
		}
	}
}

// An endpoint may be removed while a request is routed there. It is forgotten, and nothing else is;
// the request goes on and teaches as usual.
func TestWhatGoesToARemovedEndpointIsLearned(t *testing.T) {
	w := newWorld(t, synchronous())
	c, next := w.candidate("h100", 3), w.candidate("h100", 0)
	w.latency.states.At(next.Ref)
	w.finish(w.request(), c)
	require.NotNil(t, w.latency.states.Find(c.Ref))
	w.latency.EndpointRemoved(c.Ref)
	require.NotNil(t, w.latency.states.Find(next.Ref))
	for range 30 {
		w.finish(w.request(), c)
	}
	require.Equal(t, [targets]int{ttft: 31, tpot: 31}, w.labels())
	require.Equal(t, []string{"m"}, w.known())
	require.NotNil(t, findVariant(*w.latency.variants.Load(), "h100"))
	require.Len(t, *w.latency.variants.Load(), 1)
	require.NotZero(t, w.predict(w.request(), &next).Has, "others of its kind are predicted")
	require.Nil(t, w.latency.states.Find(c.Ref), "and nothing is left of it")
}

// A label is compared with the pace in its prediction, whatever has been learned of the
// endpoint since.
func TestAPaceIsThatOfThePrediction(t *testing.T) {
	for _, then := range []float64{0.5, 1, 2} {
		w := newWorld(t, synchronous())
		var off offset
		s := w.paceOf(4, &off, 1, 1, 200, 100)
		require.Zero(t, s.pace, "all of the kind are slower than the model says")
		// The model says 100; the prediction was 100 times the pace, and it took 300, where 200 is usual.
		w.paceOf(1, &off, 1, then, 300, 100*then)
		var want pace.Pace
		want.Add(1e18, 1.5, math.Log(1.5)/1.28) // nine in ten are within 1.28 standard deviations
		require.Equal(t, want, s.pace, "pace %v", then)
	}
}

// The upper bound of a prediction is as many times the prediction on an endpoint with a pace of
// its own as on others.
func TestUpperBoundsGoWithThePace(t *testing.T) {
	w := trained(t)
	slow, other := w.candidate("a", 0), w.candidate("a", 1)
	other.Waiting, other.Running, other.KVUsage, other.InFlight = slow.Waiting, slow.Running, slow.KVUsage, slow.InFlight
	for range 50 {
		w.latency.states.At(slow.Ref).pace.Add(w.now.UnixNano(), 3, 0.1)
	}
	req := w.request()
	p, q := w.predict(req, &slow), w.predict(req, &other)
	pace := p.TTFT.Seconds() / q.TTFT.Seconds()
	require.Greater(t, pace, 2.5)
	require.InEpsilon(t, pace, p.TPOT.Seconds()/q.TPOT.Seconds(), 1e-4)
	require.InEpsilon(t, pace, p.TTFTUpper.Seconds()/q.TTFTUpper.Seconds(), 1e-4)
	require.InEpsilon(t, pace, p.TPOTUpper.Seconds()/q.TPOTUpper.Seconds(), 1e-4)
	other.Ref.Slot = 9
	require.Equal(t, q, w.predict(req, &other), "an endpoint of which nothing is known is like the others")
}

// While a response is awaited, what is known of an endpoint's pace does not fade, since
// the response will show it. When nothing is awaited, it does.
func TestPaceWhileAnAnswerIsAwaited(t *testing.T) {
	w := trained(t)
	c := w.candidate("a", 0)
	s := w.latency.states.At(c.Ref)
	for range 50 {
		s.pace.Add(nanoseconds(w.now), 3, 0.1)
	}
	predicted := func() float64 {
		c := c
		return w.predict(endpick.Request{Model: "m", InputTokens: 1000, Stream: true}, &c).TPOT.Seconds()
	}
	before := predicted()
	e := w.route(w.request(), &c)
	w.now = w.now.Add(15 * time.Second)
	require.InEpsilon(t, before, predicted(), 1e-9)
	late := w.route(w.request(), &c)
	require.Greater(t, w.latency.open.Find(late.Lease).pace, 2.5, "what a request is compared with")
	w.leave(late, endpick.Canceled)
	require.InEpsilon(t, before, predicted(), 1e-9, "the first still waits")
	w.leave(e, endpick.Failed)
	require.Less(t, predicted(), 0.7*before)

	w.route(w.request(), &c)
	e = w.route(w.request(), &c)
	w.answer(e, 0)
	require.Equal(t, 1, s.waiting, "the other one")
	w.leave(e, endpick.Failed)
	require.Equal(t, 1, s.waiting, "each is counted out once")
}

// The pace of an endpoint is that of when it was asked: when the first of those came that wait, or
// one of them was answered last.
func TestSinceWhenAnEndpointIsAsked(t *testing.T) {
	var s endpointState
	s.wait(10)
	s.wait(20)
	assert.EqualValues(t, 10, s.asked(30))
	s.wait(30)
	s.leave(40, true)
	assert.EqualValues(t, 40, s.asked(60))
	s.leave(50, false)
	assert.EqualValues(t, 40, s.asked(60))
	assert.EqualValues(t, 35, s.asked(35), "an earlier call is late")
	s.leave(60, false)
	s.leave(60, false)
	assert.EqualValues(t, 70, s.asked(70))
	assert.EqualValues(t, int64(math.MinInt64/2), nanoseconds(time.Time{}), "differences don't overflow")
	assert.EqualValues(t, int64(math.MaxInt64/2), nanoseconds(time.Unix(5e9, 0)))
	assert.EqualValues(t, int64(4e18), nanoseconds(time.Unix(4e9, 0)), "the year 2096")
}
