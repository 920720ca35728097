package predict_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/stretchr/testify/require"
)

// Many concurrent requests through a real router, while endpoints come and go and models train in
// the background: every label arrives, and predictions are sound.
func TestLearningBehindARouterWithChurn(t *testing.T) {
	latency := rig.Must(predict.NewLatency(predict.LatencyConfig{Trees: 4, Share: 1}))
	var clock atomic.Int64
	config := endpick.Config{
		Policy: endpick.Policy{Predictor: latency},
		Clock:  func() time.Time { return time.Unix(1, clock.Add(int64(time.Millisecond))) },
	}
	for i := range 4 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Variant: fmt.Sprint(i % 2)})
	}
	router := rig.Must(endpick.New(config))

	var streamed, whole atomic.Int64
	serve := func(req endpick.Request) bool {
		lease, err := router.Route(req)
		if err != nil {
			t.Errorf("route: %v", err)
			return false
		}
		if c, ok := lease.Candidate(); ok && c.Prediction.Has&endpick.TTFT != 0 && c.Prediction.TTFTUpper < c.Prediction.TTFT {
			t.Errorf("%+v", c.Prediction)
		}
		if req.Stream {
			lease.FirstToken()
			streamed.Add(1)
		} else {
			whole.Add(1)
		}
		lease.Tokens(5)
		lease.Done(endpick.Outcome{})
		return true
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 0))
			for i := range 400 {
				if !serve(endpick.Request{Model: "m", InputTokens: 1 + rng.IntN(5000), Stream: i%4 > 0}) {
					return
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			id := fmt.Sprint(i % 2) // two stay
			_ = router.Remove(id)
			_ = router.Add(endpick.Endpoint{ID: id, Variant: fmt.Sprint(i % 3)})
		}
	})
	wg.Wait()
	// A fit that is held back starts with a later label, so traffic goes on.
	require.Eventually(t, func() bool {
		return serve(endpick.Request{Model: "m", InputTokens: 100, Stream: true}) && latency.Health()[0].TTFT.Refits > 0
	}, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		h := latency.Health()[0]
		return h.TTFT.Labels+h.TTFT.Dropped == uint64(streamed.Load()) && h.E2E.Labels+h.E2E.Dropped == uint64(whole.Load())
	}, 30*time.Second, time.Millisecond)
}

// Latencies are measured between the events on the lease, the first token and the last one counted,
// not up to the end of the response, which may come long after.
func TestLabelsAreWhatTheLeaseWasTold(t *testing.T) {
	latency := rig.Must(predict.NewLatency(predict.LatencyConfig{Synchronous: true}))
	now := time.Unix(1000, 0)
	router := rig.Must(endpick.New(endpick.Config{
		Policy:    endpick.Policy{Predictor: latency},
		Endpoints: []endpick.Endpoint{{Address: "10.0.0.1:8000"}},
		Clock:     func() time.Time { return now },
	}))
	pass := func(ms int) { now = now.Add(time.Duration(ms) * time.Millisecond) }
	route := func(stream bool) (endpick.Lease, endpick.Prediction) {
		lease := rig.Must(router.Route(endpick.Request{Model: "m", InputTokens: 1000, ExpectedOutputTokens: 21, Stream: stream}))
		c, _ := lease.Candidate()
		return lease, c.Prediction
	}
	for i := range 60 {
		lease, _ := route(true)
		pass(80)
		lease.FirstToken()
		pass(100)
		lease.Tokens(11)
		pass(100)
		lease.Tokens(10) // 21 tokens in 200 ms after the first
		pass(3000)       // time after the last token belongs to no latency
		if i%2 == 0 {
			lease.Done(endpick.Outcome{OutputTokens: 21})
		} else {
			lease.Done(endpick.Outcome{})
		}
		lease, _ = route(false)
		pass(500)
		lease.Done(endpick.Outcome{OutputTokens: 21})
	}
	streamed, p := route(true)
	require.Equal(t, endpick.TTFT|endpick.TPOT, p.Has)
	require.InDelta(t, 80, p.TTFT.Seconds()*1e3, 1)
	require.InDelta(t, 10, p.TPOT.Seconds()*1e3, 0.1)
	streamed.Done(endpick.Outcome{Status: endpick.Failed})
	whole, p := route(false)
	require.Equal(t, endpick.TTFT|endpick.E2E, p.Has)
	require.InDelta(t, 500, p.E2E.Seconds()*1e3, 5)
	whole.Done(endpick.Outcome{Status: endpick.Failed})
	h := latency.Health()[0]
	require.EqualValues(t, 60, h.TTFT.Labels)
	require.EqualValues(t, 60, h.TPOT.Labels)
	require.EqualValues(t, 60, h.E2E.Labels)
}

func TestStagesConform(t *testing.T) {
	newLatency := func() predict.Latency {
		return rig.Must(predict.NewLatency(predict.LatencyConfig{Synchronous: true, Trees: 8}))
	}
	scorertest.RunPredictor(t, func(*testing.T) endpick.Predictor { return newLatency() })
	t.Run("observer", func(t *testing.T) { scorertest.RunObserver(t, func(*testing.T) any { return newLatency() }) })
}
