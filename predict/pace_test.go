package predict

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/learn"
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

// A server that becomes three times as slow as others of its kind is predicted to be, and
// no other is; the models learn nothing of it, and it does not count as their error. After
// half a minute without requests the server counts as ordinary again.
func TestPaceOfAnEndpoint(t *testing.T) {
	w := newWorld(t, synchronous())
	w.pace = map[uint32]float64{}
	rounds := func(n int) {
		for range n {
			for slot := range uint32(4) {
				w.finish(w.request(), w.candidate("", slot))
			}
		}
	}
	rounds(150)
	w.pace[1] = 3
	rounds(30)
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
		rounds(60)
	}
	w.now = w.now.Add(time.Minute)
	w.pace[1] = 1
	ttft, tpot := w.off(1)
	assert.Less(t, ttft, 0.2)
	assert.Less(t, tpot, 0.2)
	// A new endpoint in the slot has no history.
	w.pace[1] = 3
	rounds(30)
	w.latency.EndpointRemoved(endpick.Ref{Slot: 1, Generation: 1})
	w.pace[1] = 1
	req, c := w.request(), w.candidate("", 1)
	c.Ref.Generation = 2
	assert.Less(t, relative(w.predict(req, &c).TTFT, w.ttft(&req, &c)), 0.25)
}

// If all servers of a kind are slower than the model predicts, the model is off, and no
// server counts as slow.
func TestPaceIsAgainstTheKind(t *testing.T) {
	w := newWorld(t, synchronous())
	w.pace = map[uint32]float64{}
	rounds := func(n int) {
		for range n {
			for slot := range uint32(4) {
				w.finish(w.request(), w.candidate("", slot))
			}
		}
	}
	rounds(150)
	for slot := range uint32(4) {
		w.pace[slot] = 1.5
	}
	rounds(5)
	for slot := range uint32(4) {
		s := w.latency.states.Find(endpick.Ref{Slot: slot, Generation: 1})
		assert.Equal(t, 1.0, s.pace.Factor(w.now.UnixNano()), "slot %d", slot)
	}
	// A refit corrects the model; a slow server is then three times as slow as predicted, and
	// 3/3^(1/4) times as slow as usual.
	rounds(200)
	w.pace[1] = 4.5
	rounds(30)
	assert.InDelta(t, 2.4, w.latency.states.Find(endpick.Ref{Slot: 1, Generation: 1}).pace.Factor(w.now.UnixNano()), 0.5)
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
}

// The learning settings reach the learners.
func TestConfigReachesTheLearners(t *testing.T) {
	c := LatencyConfig{Trees: 7, Samples: 1234, MaxAge: time.Hour, RefitEvery: 99, Share: 0.5, Synchronous: true}
	for target := range learn.Target(targets) {
		l := c.learner(target)
		assert.Equal(t, []any{7, 1234, time.Hour, 99}, []any{l.Boost.Trees, l.Window.Samples, l.Window.MaxAge, l.RefitEvery})
		assert.NotNil(t, l.Window.Strata)
		plain := c
		plain.DisableStrata = true
		assert.Nil(t, plain.learner(target).Window.Strata)
	}
	l, err := NewLatency(c)
	require.NoError(t, err)
	assert.Equal(t, learn.Trainer{Synchronous: true, Share: 0.5}.Share, l.trainer.Share)
	assert.True(t, l.trainer.Synchronous)
}

// A silence lengthens TTFT, or E2E for a response that does not stream; where nothing is
// predicted, the silence is the prediction.
func TestSilenceOfPredictions(t *testing.T) {
	const ms = time.Millisecond
	for _, x := range []struct{ before, after endpick.Prediction }{
		{endpick.Prediction{}, endpick.Prediction{Has: endpick.TTFT, TTFT: 7 * ms, TTFTUpper: 7 * ms}},
		{endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: ms, TTFTUpper: 2 * ms, TPOT: 3 * ms, TPOTUpper: 4 * ms},
			endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 8 * ms, TTFTUpper: 9 * ms, TPOT: 3 * ms, TPOTUpper: 4 * ms}},
		{endpick.Prediction{Has: endpick.E2E, E2E: ms, E2EUpper: 2 * ms},
			endpick.Prediction{Has: endpick.TTFT | endpick.E2E, TTFT: 7 * ms, TTFTUpper: 7 * ms, E2E: 8 * ms, E2EUpper: 9 * ms}},
	} {
		addSilence(&x.before, 7*ms)
		assert.Equal(t, x.after, x.before)
	}
}

// listedWait is a waiting request.
type listedWait struct {
	lease endpick.LeaseRef
	due   int64
}

// An endpoint has been silent for as long as its oldest waiting request is overdue, or
// since its last response if that is shorter; checked against a plain list.
func TestWaitsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := NewLatency(LatencyConfig{})
		require.NoError(t, err)
		ref := endpick.Ref{Slot: 3, Generation: 1}
		var waits []listedWait
		var untimed []endpick.LeaseRef // with unknown patience
		var since, answered, remembered, rememberedAt int64
		now, leases := int64(1e18), uint32(0)
		silence := func(now int64) int64 {
			v := int64(0)
			if len(waits) > 0 {
				v = min(now-waits[0].due, now-answered)
			}
			if remembered > 0 {
				v = max(v, remembered-max(now-rememberedAt, 0))
			}
			return max(v, 0)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1e6, 400e6, 5e9, 40e9, -2e9}).Draw(t, "passed")
			s := l.states.At(ref)
			n := len(waits) + len(untimed)
			if what := rapid.IntRange(0, 3).Draw(t, "what"); what < 2 || n == 0 {
				leases++
				lease := endpick.LeaseRef{Slot: leases, Generation: 1}
				o := l.open.At(lease)
				*o = openRequest{ref: ref, routedAt: time.Unix(0, now)}
				may := time.Duration(rapid.SampledFrom([]int64{0, 1e6, 1e9}).Draw(t, "may"))
				l.wait(lease, o, s, may)
				if may == 0 {
					untimed = append(untimed, lease)
				} else {
					if len(waits) == 0 {
						since = now
					}
					waits = append(waits, listedWait{lease, now + 2*int64(may)})
				}
			} else {
				i := rapid.IntRange(0, n-1).Draw(t, "who")
				was := silence(now)
				var lease endpick.LeaseRef
				if i < len(waits) {
					lease = waits[i].lease
					waits = append(waits[:i], waits[i+1:]...)
				} else {
					i -= len(waits)
					lease = untimed[i]
					untimed = append(untimed[:i], untimed[i+1:]...)
				}
				o := l.open.Find(lease)
				l.leave(o, now, what == 2)
				if what == 2 {
					answered, remembered = now, 0
				} else if was > 0 {
					remembered, rememberedAt = min(was, 15e9), now
				}
				if rapid.Bool().Draw(t, "twice") && what == 2 {
					l.leave(o, now, true) // no longer in the list
				}
				l.open.Drop(lease)
			}
			for _, later := range []int64{-60e9, 0, 1e6, 2e9, 30e9} {
				at := now + later
				require.Equal(t, silence(at), s.silence(at))
				want := at
				if len(waits) > 0 {
					want = min(max(since, answered), at)
				}
				require.Equal(t, want, s.asked(at))
			}
		}
	})
}

// A candidate's pace is its own, even after a candidate without any data.
func TestPaceBehindTheUnknown(t *testing.T) {
	w := newWorld(t, synchronous())
	for range 100 {
		w.finish(w.request(), w.candidate("", 1))
	}
	s := w.latency.states.At(endpick.Ref{Slot: 1, Generation: 1})
	for range 50 {
		s.pace.Add(w.now.UnixNano(), 3, 0.1)
	}
	req := w.request().At(w.now, 0, 1)
	alone := []endpick.Candidate{w.candidate("", 1)}
	both := []endpick.Candidate{w.candidate("unknown", 0), alone[0]}
	w.latency.Predict(&req, alone)
	w.latency.Predict(&req, both)
	assert.Zero(t, both[0].Prediction)
	assert.Equal(t, alone[0].Prediction, both[1].Prediction)
}

// An endpoint's pace is part of what is measured and what is predicted there; the model is
// judged and trained without it.
func TestPaceIsNoPartOfLabels(t *testing.T) {
	l, err := NewLatency(synchronous())
	require.NoError(t, err)
	m, v := l.admitModel("m"), l.admitVariant("")
	at := time.Unix(1e9, 0)
	ref := endpick.Ref{Slot: 1, Generation: 1}
	s := l.states.At(ref)
	for range 50 {
		s.pace.Add(at.UnixNano(), 3, 0.1)
	}
	o := openRequest{ref: ref, pace: s.pace.Factor(at.UnixNano())}
	o.predicted[ttft], o.upper[ttft] = 300, 450
	for range 3 { // more of them would become the usual
		l.label(m, ttft, v, &o, 300*time.Millisecond, at)
	}
	h := m.learners[ttft].Health()
	assert.Less(t, h.MAPE, 0.01)
	assert.Equal(t, 1.0, h.Coverage)
	assert.InDelta(t, 3, s.pace.Factor(at.UnixNano()), 0.3, "what was predicted with it agrees with it")
}

// A model's offset is forgotten together with the model.
func TestOffsetsEndWithTheirModel(t *testing.T) {
	l, err := NewLatency(synchronous())
	require.NoError(t, err)
	ref := endpick.Ref{Slot: 1, Generation: 1}
	l.states.At(ref)
	o := openRequest{ref: ref, pace: 1}
	var off offset
	for range 10 {
		l.paceOf(&off, 1, &o, 200, 100, 150, 1e18)
	}
	mean, ok := off.Mean()
	assert.True(t, ok)
	assert.InDelta(t, 2, mean, 1e-9)
	l.paceOf(&off, 2, &o, 100, 100, 150, 1e18)
	mean, ok = off.Mean()
	assert.False(t, ok, "one label is too little to say")
	assert.InDelta(t, 1, mean, 1e-9)
	l.paceOf(&off, 2, &o, 100, 0, 0, 1e18)
	mean, _ = off.Mean()
	assert.InDelta(t, 1, mean, 1e-9, "what was not predicted tells nothing")
}

