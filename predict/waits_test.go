package predict

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// trained returns a world with two predicted variants, at slots 0 and 1.
func trained(t *testing.T) *world {
	w := newWorld(t, synchronous())
	for i := range 200 {
		w.finish(w.request(), w.candidate([]string{"a", "b"}[i%2], uint32(i%2)))
	}
	return w
}

// send predicts and routes a request.
func (w *world) send(c endpick.Candidate) *endpick.Event {
	req := w.request()
	w.predict(req, &c)
	return w.route(req, &c)
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

// longer is how much longer a candidate's TTFT is than if nothing waited there.
func (w *world) longer(c endpick.Candidate) time.Duration {
	req := w.request()
	p := w.predict(req, &c)
	state := w.latency.states.Find(c.Ref)
	was := *state
	state.oldest, state.remembered = endpick.LeaseRef{}, 0
	q := w.predict(req, &c)
	*state = was
	require.Equal(w.t, p.TTFTUpper-q.TTFTUpper, p.TTFT-q.TTFT, "the bound moves along")
	require.Equal(w.t, p.TPOT, q.TPOT, "the tokens after the first are another matter")
	return p.TTFT - q.TTFT
}

func TestASilentEndpointIsExpectedToStaySilent(t *testing.T) {
	w := trained(t)
	c := w.candidate("a", 0)
	e := w.send(c)
	upper := e.Candidate.Prediction.TTFTUpper
	w.now = e.RoutedAt.Add(2 * upper)
	require.Zero(t, w.longer(c), "twice its upper bound is within its patience")
	w.now = e.RoutedAt.Add(2*upper + 3*time.Second)
	require.InDelta(t, 3, w.longer(c).Seconds(), 0.01)
	require.Zero(t, w.longer(w.candidate("b", 1)), "the other endpoint is another matter")
	w.now = w.now.Add(400 * time.Second)
	require.InDelta(t, 403, w.longer(c).Seconds(), 0.01)

	later := w.send(c)
	w.now = w.now.Add(time.Second)
	require.InDelta(t, 404, w.longer(c).Seconds(), 0.01, "who came later waits for less long")
	w.answer(later)
	require.Zero(t, w.longer(c), "an answer ends it, though the first still waits")
	w.now = w.now.Add(5 * time.Second)
	require.InDelta(t, 5, w.longer(c).Seconds(), 0.01, "nobody has been answered since")
	w.answer(e)
	require.Zero(t, w.longer(c))
	w.now = w.now.Add(time.Hour)
	require.Zero(t, w.longer(c), "nobody waits")
}

func TestWhoLeavesUnansweredIsRemembered(t *testing.T) {
	for _, status := range []endpick.Status{endpick.Canceled, endpick.Failed, endpick.Lost} {
		w := trained(t)
		c := w.candidate("a", 0)
		e := w.send(c)
		w.now = e.RoutedAt.Add(2*e.Candidate.Prediction.TTFTUpper + 10*time.Second)
		w.leave(e, status)
		require.InDelta(t, 10, w.longer(c).Seconds(), 0.01)
		w.now = w.now.Add(4 * time.Second)
		require.InDelta(t, 6, w.longer(c).Seconds(), 0.01, "it fades as fast as it grew")
		w.now = w.now.Add(6 * time.Second)
		require.Zero(t, w.longer(c))

		e = w.send(c)
		w.leave(e, status)
		require.Zero(t, w.longer(c), "who leaves at once has seen nothing")
	}
	// A request that completed without a first token has been answered.
	w := trained(t)
	c := w.candidate("a", 0)
	e := w.send(c)
	w.now = w.now.Add(time.Minute)
	w.leave(e, endpick.Completed)
	require.Zero(t, w.longer(c))
}

func TestSilenceOfAVariantWithoutLabels(t *testing.T) {
	w := trained(t)
	route := func() (*endpick.Event, time.Duration) {
		req := w.request()
		all := []endpick.Candidate{w.candidate("a", 0), w.candidate("new", 2), w.candidate("b", 1)}
		at := req.At(w.now, 0, 1)
		w.latency.Predict(&at, all)
		w.key++
		e := &endpick.Event{Lease: endpick.LeaseRef{Slot: w.key % 1000, Generation: w.key}, Request: &req, Candidate: &all[1], Candidates: all,
			Now: w.now, RoutedAt: w.now}
		w.latency.Routed(e)
		return e, max(all[0].Prediction.TTFTUpper, all[2].Prediction.TTFTUpper)
	}
	e, longest := route()
	require.Zero(t, e.Candidate.Prediction.Has)
	c := w.candidate("new", 2)
	w.now = e.RoutedAt.Add(2*longest + 7*time.Second)
	p := w.predict(w.request(), &c)
	require.Equal(t, endpick.TTFT, p.Has, "its wait is all that is known of it")
	require.InDelta(t, 7, p.TTFT.Seconds(), 0.01)
	require.Equal(t, p.TTFT, p.TTFTUpper)
	again, _ := route()
	require.NotZero(t, again.Candidate.Prediction.Has)
	w.answer(e)
	c.Prediction = endpick.Prediction{}
	require.Zero(t, w.predict(w.request(), &c).Has)
}

func TestSilenceCountsForTheWholeResponseAndIsNoModels(t *testing.T) {
	w := newWorld(t, synchronous())
	for i := range 200 {
		req := w.request()
		req.Stream = i%2 == 0
		w.finish(req, w.candidate("a", 0))
	}
	whole := func() (*endpick.Event, endpick.Prediction) {
		req, c := w.request(), w.candidate("a", 0)
		req.InputTokens, req.ExpectedOutputTokens, req.Stream = 1000, 100, false
		c.Waiting, c.Running, c.KVUsage, c.InFlight = 1, 10, 0.5, endpick.InFlight{}
		w.predict(req, &c)
		return w.route(req, &c), c.Prediction
	}
	e, p := whole()
	w.now = e.RoutedAt.Add(2*p.E2EUpper + 50*time.Second)
	late, q := whole()
	require.InDelta(t, 50, (q.E2E - p.E2E).Seconds(), 0.5*p.E2E.Seconds())
	require.InDelta(t, 50, (q.E2EUpper - p.E2EUpper).Seconds(), 0.5*p.E2E.Seconds())
	require.Zero(t, w.latency.open.Find(late.Lease).predicted, "what a silent endpoint was predicted is not held against the models")
	require.NotZero(t, w.latency.open.Find(e.Lease).predicted)
	streamed := w.send(w.candidate("a", 0))
	require.NotZero(t, w.latency.open.Find(streamed.Lease).predicted[tpot], "but for the tokens after the first")
	require.Zero(t, w.latency.open.Find(streamed.Lease).predicted[ttft])
}

func TestSilenceWhereNothingIsStreamed(t *testing.T) {
	w := newWorld(t, synchronous())
	req := w.request()
	req.Stream = false
	for range 50 {
		w.finish(req, w.candidate("a", 0))
	}
	c := w.candidate("a", 0)
	require.Equal(t, endpick.E2E, w.predict(req, &c).Has)
	e := w.route(req, &c)
	w.now = e.RoutedAt.Add(2*c.Prediction.E2EUpper + 5*time.Second)
	p := w.predict(req, &c)
	require.Equal(t, endpick.TTFT|endpick.E2E, p.Has)
	require.InDelta(t, 5, p.TTFT.Seconds(), 0.01)
	w.leave(e, endpick.Completed)
	c.Prediction = endpick.Prediction{}
	require.Equal(t, endpick.E2E, w.predict(req, &c).Has)
}

func TestClocksThatAreSet(t *testing.T) {
	w := trained(t)
	c := w.candidate("a", 0)
	e := w.send(c)
	now := w.now
	w.now = now.Add(365 * 24 * time.Hour)
	require.LessOrEqual(t, w.longer(c), maxLatency, "ahead: a day is the most that is believed")
	labels := w.latency.Health()[0].TTFT.Labels
	w.answer(e)
	require.Equal(t, labels, w.latency.Health()[0].TTFT.Labels, "a year is no latency")
	require.Zero(t, w.longer(c))
	w.leave(e, endpick.Completed)
	w.now = now // and back
	require.Zero(t, w.longer(c))
	e = w.send(c)
	w.now = w.now.Add(time.Minute)
	require.Zero(t, w.longer(c), "nobody has been answered for less than no time")
	w.answer(e)
	w.send(c)
	w.now = w.now.Add(time.Minute)
	require.Greater(t, w.longer(c), 50*time.Second, "after an answer by the clock as it is now all is as before")
}

// naiveWaits keeps every request in a list and computes an endpoint's silence from its
// definition.
type naiveWaits struct {
	requests []naiveWait
	answered map[uint32]int64
	left     map[uint32][]naiveLeft
}

type naiveWait struct {
	event    *endpick.Event
	slot     uint32
	due      int64
	waiting  bool
	finished bool
}

type naiveLeft struct{ silence, at int64 }

func (n *naiveWaits) silence(slot uint32, now int64) int64 {
	v := int64(0)
	for _, r := range n.requests {
		if r.slot == slot && r.waiting {
			v = min(now-r.due, now-n.answered[slot])
			break // the oldest
		}
	}
	for _, l := range n.left[slot] {
		v = max(v, l.silence-max(0, now-l.at))
	}
	return max(0, v)
}

func TestSilenceEqualsItsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := NewLatency(LatencyConfig{Synchronous: true})
		require.NoError(t, err)
		twin := &naiveWaits{answered: map[uint32]int64{}, left: map[uint32][]naiveLeft{}}
		now := time.Unix(1000, 0)
		open := func(t *rapid.T) *naiveWait {
			var all []*naiveWait
			for i := range twin.requests {
				if !twin.requests[i].finished {
					all = append(all, &twin.requests[i])
				}
			}
			if len(all) == 0 {
				t.Skip("nothing open")
			}
			return rapid.SampledFrom(all).Draw(t, "request")
		}
		t.Repeat(map[string]func(*rapid.T){
			"route": func(t *rapid.T) {
				slot := uint32(rapid.IntRange(0, 2).Draw(t, "endpoint"))
				upper := time.Duration(rapid.SampledFrom([]int{0, 1, 2, 5, 20}).Draw(t, "upper")) * time.Second // most waits are longer than their patience
				c := endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.Ref{Slot: slot, Generation: 1}}
				silence := time.Duration(twin.silence(slot, now.UnixNano()))
				if upper > 0 {
					c.Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: upper + silence, TTFTUpper: upper + silence}
				}
				number := uint32(len(twin.requests) + 1)
				e := &endpick.Event{Lease: endpick.LeaseRef{Slot: number, Generation: 1}, Request: &endpick.Request{InputTokens: 10, Stream: true},
					Candidate: &c, Now: now, RoutedAt: now}
				l.Routed(e)
				twin.requests = append(twin.requests, naiveWait{e, slot, now.Add(2 * upper).UnixNano(), upper > 0, false})
			},
			"answer": func(t *rapid.T) {
				r := open(t)
				if !r.event.FirstTokenAt.IsZero() {
					t.Skip("answered")
				}
				r.event.Now, r.event.FirstTokenAt = now, now
				l.FirstToken(r.event)
				r.waiting = false
				twin.answered[r.slot], twin.left[r.slot] = now.UnixNano(), nil
			},
			"end": func(t *rapid.T) {
				r := open(t)
				status := endpick.Status(rapid.IntRange(0, 3).Draw(t, "status"))
				r.event.Now = now
				silence := twin.silence(r.slot, now.UnixNano())
				l.Done(r.event, &endpick.Outcome{Status: status})
				r.finished, r.waiting = true, false
				switch {
				case !r.event.FirstTokenAt.IsZero():
				case status == endpick.Completed:
					twin.answered[r.slot], twin.left[r.slot] = now.UnixNano(), nil
				case silence > 0:
					twin.left[r.slot] = []naiveLeft{{min(silence, 15e9), now.UnixNano()}}
				}
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(-3, 30).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				candidates := make([]endpick.Candidate, 3)
				for i := range candidates {
					candidates[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.Ref{Slot: uint32(i), Generation: 1}}
				}
				for i, e := range l.endpoints(nil, candidates, now.UnixNano()) {
					require.EqualValues(t, twin.silence(uint32(i), now.UnixNano()), e.silence, "endpoint %d", i)
				}
			},
		})
	})
}
