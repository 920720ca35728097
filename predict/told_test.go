package predict

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/pace"
)

// Whatever an endpoint's pace, a latency is within its bound, or off its prediction, exactly as a
// caller with both figures would see it: the learner gets all three figures without the pace.
func TestALabelKeepsItsBoundWhateverThePace(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, pace := range []float64{1. / 3, 1, 3} {
		for _, took := range []float64{0.7, 0.95, 1, 1.45, 1.55, 2} {
			l, err := NewLatency(synchronous())
			require.NoError(t, err)
			m, v := l.admitModel("m"), l.admitVariant("")
			ref := endpick.Ref{Slot: 1, Generation: 1}
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

// An endpoint's silence when a request is routed there does not add to that request's patience:
// once the requests that revealed the silence are gone, it shows as soon as it would have by this
// request alone.
func TestSilenceIsNoPatience(t *testing.T) {
	for _, status := range []endpick.Status{endpick.Canceled, endpick.Failed, endpick.Lost} {
		w := trained(t)
		c := w.candidate("a", 0)
		first := w.send(c)
		w.now = first.RoutedAt.Add(2*first.Candidate.Prediction.TTFTUpper + 100*time.Second)
		second := w.send(c)
		own := second.Candidate.Prediction.TTFTUpper - 100*time.Second
		require.Positive(t, own)
		require.Less(t, own, 10*time.Second)
		w.leave(first, status)
		w.now = second.RoutedAt.Add(2 * own)
		w.now = w.now.Add(maxRemembered) // the first request's silence is forgotten by now
		require.InDelta(t, maxRemembered.Seconds(), w.longer(c).Seconds(), 0.01)
		w.answer(second)
		require.Zero(t, w.longer(c))
	}
}

// An endpoint may be removed while a request is routed there. The request goes on and teaches
// as usual.
func TestWhatGoesToARemovedEndpointIsLearned(t *testing.T) {
	for _, stream := range []bool{true, false} {
		w := newWorld(t, synchronous())
		c := w.candidate("h100", 3)
		w.latency.EndpointRemoved(c.Ref)
		for range 30 {
			req := w.request()
			req.Stream = stream
			w.finish(req, c)
		}
		want := [targets]int{ttft: 30, tpot: 30}
		if !stream {
			want = [targets]int{e2e: 30}
		}
		require.Equal(t, want, w.labels())
		require.Equal(t, []string{"m"}, w.known())
		require.NotNil(t, findVariant(*w.latency.variants.Load(), "h100"))
		require.Len(t, *w.latency.variants.Load(), 1)
		req := w.request()
		req.Stream = stream
		next := w.candidate("h100", 0)
		require.NotZero(t, w.predict(req, &next).Has, "others of its kind are predicted")
		require.Nil(t, w.latency.states.Find(c.Ref), "and nothing is kept of it")
	}
}

// The patience for an endpoint without a prediction is what is predicted for endpoints that
// respond; a silent one's prediction says nothing of others.
func TestPatienceIsOfThoseThatAnswer(t *testing.T) {
	w := trained(t)
	stuck := w.send(w.candidate("a", 0))
	w.now = stuck.RoutedAt.Add(2*stuck.Candidate.Prediction.TTFTUpper + 100*time.Second)
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}} {
		all := []endpick.Candidate{w.candidate("a", 0), w.candidate("b", 1), w.candidate("new", 2)}
		candidates := []endpick.Candidate{all[order[0]], all[order[1]], all[order[2]]}
		req := w.request()
		at := req.At(w.now, 0, 1)
		w.latency.Predict(&at, candidates)
		var chosen *endpick.Candidate
		var answers time.Duration
		for i := range candidates {
			switch c := &candidates[i]; c.Endpoint.Variant {
			case "a":
				require.Greater(t, c.Prediction.TTFTUpper, 100*time.Second)
			case "b":
				answers = c.Prediction.TTFTUpper
			default:
				chosen = c
			}
		}
		require.Zero(t, chosen.Prediction.Has)
		w.key++
		e := &endpick.Event{Lease: endpick.LeaseRef{Slot: w.key % 1000, Generation: w.key}, Request: &req, Candidate: chosen, Candidates: candidates,
			Now: w.now, RoutedAt: w.now}
		w.latency.Routed(e)
		w.now = w.now.Add(2*answers + 7*time.Second)
		c := w.candidate("new", 2)
		require.InDelta(t, 7, w.predict(w.request(), &c).TTFT.Seconds(), 0.01)
		w.answer(e)
		w.leave(e, endpick.Failed)
	}
}

// Known names survive a restart in full.
func TestLongNamesSurviveARestart(t *testing.T) {
	name := func(end string) string { return strings.Repeat("x", maxName-1) + end }
	w := newWorld(t, synchronous())
	for range 100 {
		w.finish(w.ask(name("m")), w.candidate(name("v"), 0))
	}
	saved, err := w.latency.AppendBinary(nil)
	require.NoError(t, err)
	w.latency, err = Restore(synchronous(), saved)
	require.NoError(t, err)
	require.True(t, w.predicts(name("m"), name("v")))
	require.False(t, w.predicts(name("n"), name("v")))
	require.False(t, w.predicts(name("m"), name("w")))
}

// Each served model gets a number of its own, also one that comes again or is restored: what is
// keyed by the number belongs to no other model.
func TestNumbersOfModels(t *testing.T) {
	config := synchronous()
	config.MaxModels = 3
	l, err := NewLatency(config)
	require.NoError(t, err)
	seen := map[uint32]bool{}
	meet := func(l *Latency, name string) {
		n := l.admitModel(name).number
		require.False(t, seen[n], name)
		require.Equal(t, n, l.admitModel(name).number)
		seen[n] = true
	}
	for _, name := range []string{"a", "b", "c", "d", "a"} { // one of them has given way
		meet(l, name)
		l.admitModel(name).used.Store(l.completed.Add(1))
	}
	saved, err := l.AppendBinary(nil)
	require.NoError(t, err)
	l, err = Restore(config, saved)
	require.NoError(t, err)
	clear(seen)
	for _, name := range []string{"a", "c", "d"} {
		meet(l, name)
	}
}

// A label is compared with the pace in its prediction, whatever has been learned of the
// endpoint since.
func TestAPaceIsThatOfThePrediction(t *testing.T) {
	for _, then := range []float64{0.5, 1, 2} {
		l, err := NewLatency(synchronous())
		require.NoError(t, err)
		ref := endpick.Ref{Slot: 1, Generation: 1}
		s := l.states.At(ref)
		var off offset
		for range 4 {
			l.paceOf(&off, 1, &openRequest{ref: ref, pace: 1}, 100, 100, 150, 1e18)
		}
		require.Zero(t, s.pace)
		// The model says 100; the prediction was 100 times the pace, and it took 300.
		l.paceOf(&off, 1, &openRequest{ref: ref, pace: then}, 300, 100*then, 150*then, 1e18)
		var want pace.Pace
		want.Add(1e18, 3, math.Log(1.5)/deviations)
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
}
