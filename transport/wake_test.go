package transport_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server that sleeps is woken once by the first request that does not reach it; that one and the others
// wait until it is there, and are served.
func TestWake(t *testing.T) {
	address := nobody()
	var woken atomic.Int32
	var e *engine
	var ready sync.WaitGroup
	w := newWorld(t, transport.Config{Wake: func(to *endpick.Endpoint) {
		assert.Equal(t, "a", to.ID)
		if woken.Add(1) == 1 {
			ready.Go(func() {
				time.Sleep(300 * time.Millisecond)
				e = &engine{}
				server := &http.Server{Handler: e}
				t.Cleanup(func() { server.Close() })
				go server.Serve(rig.Must(net.Listen("tcp", address)))
			})
		}
	}}, address)
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = time.Second })
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			resp, _, err := w.do(t, post(t, chatPath, chatAtOnce))
			if assert.NoError(t, err) {
				assert.Equal(t, http.StatusOK, resp.StatusCode)
			}
		})
	}
	all.Wait()
	ready.Wait()
	assert.EqualValues(t, 1, woken.Load())
	assert.EqualValues(t, 5, e.requests.Load())
	before, _ := w.t.Queue()
	for range 5 {
		all.Go(func() { _, _, _ = w.do(t, post(t, chatPath, chatAtOnce)) })
	}
	all.Wait()
	after, _ := w.t.Queue()
	assert.Equal(t, before.Pushed, after.Pushed, "nobody waits for it any more")
}

// One that sleeps so deeply that connections to it are not even refused is waited for as well, however long it takes to wake.
func TestWakeTheMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var awake atomic.Bool
		base := rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
			if in.URL.Host != "a" || !awake.Load() {
				return nil, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
			}
			return answered(http.StatusOK, "application/json", "{}")
		})
		router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{
			{Address: "b", WakeTime: time.Hour}, {Address: "a", WakeTime: time.Minute}, {Address: "c", WakeTime: time.Second},
			{Address: "d", WakeTime: time.Second, Models: []string{"another"}},
		}}))
		require.NoError(t, router.Drain("c"))
		monitor := rig.Must(health.New(health.Config{Router: router, Client: &http.Client{Transport: base}}))
		tr := rig.Must(transport.New(transport.Config{Router: router, Health: monitor, Base: base, Wake: func(e *endpick.Endpoint) {
			assert.Equal(t, "a", e.Address, "which takes less than b, is not drained, and has the model")
			time.Sleep(time.Minute)
			awake.Store(true)
			panic("the host's own affair")
		}}))
		monitor.Check(t.Context())
		monitor.Check(t.Context())
		assert.Equal(t, http.StatusOK, rig.Must(tr.RoundTrip(post(t, chatPath, chatAtOnce))).StatusCode)
	})
}

// A server that does not wake up is waited for no longer than that may take, however often it is tried.
func TestAsleepForGood(t *testing.T) {
	w := newWorld(t, transport.Config{LoadTimeout: 1500 * time.Millisecond, Wake: func(*endpick.Endpoint) {}}, "127.0.0.1:1")
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = time.Second })
	_, _, err := w.do(t, post(t, chatPath, chatAtOnce))
	assert.Equal(t, http.StatusServiceUnavailable, transport.StatusOf(err), err)
	assert.Equal(t, 2, w.record(t).Attempts)
}

// A server that sleeps is left alone while another one is expected to answer sooner than it would wake.
func TestWakeIfItIsSooner(t *testing.T) {
	for expected, calls := range map[time.Duration]int32{0: 0, time.Second: 0, 3 * time.Second: 1} {
		var woken atomic.Int32
		w := newWorldOf(t, transport.Config{Wake: func(*endpick.Endpoint) { woken.Add(1) }}, endpick.Config{Policy: endpick.Policy{Predictor: ttft(expected)}},
			"127.0.0.1:1", startEngine(t, nil).URL)
		w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = 2 * time.Second })
		for range 5 {
			w.ok(t, post(t, chatPath, chatStream))
		}
		assert.Eventually(t, func() bool { return woken.Load() >= calls }, 10*time.Second, time.Millisecond, "%v", expected)
		time.Sleep(10 * time.Millisecond) // for a call too many
		assert.Equal(t, calls, woken.Load(), "%v", expected)
	}
}

// One that sleeps is woken as well while it is avoided because of its failures, some time after it was last tried.
func TestWakeWhoIsAvoided(t *testing.T) {
	var now, woken atomic.Int64
	w := newWorldOf(t, transport.Config{Wake: func(*endpick.Endpoint) { woken.Add(1) }}, endpick.Config{
		Clock: func() time.Time { return time.Unix(1000, now.Load()) }, Policy: endpick.Policy{Predictor: ttft(3 * time.Second)},
	}, "127.0.0.1:1", startEngine(t, nil).URL)
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = 5 * time.Second }) // the other is sooner
	for range 5 {
		w.ok(t, post(t, chatPath, chatStream))
		now.Add(int64(1500 * time.Millisecond))
	}
	assert.Zero(t, woken.Load())
	tried := len(w.observer.all())
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = 2 * time.Second })
	w.ok(t, post(t, chatPath, chatStream))
	require.Len(t, w.observer.all(), tried+1, "it was not tried again")
	assert.Eventually(t, func() bool { return woken.Load() == 1 }, 10*time.Second, time.Millisecond)
}

// ttft predicts this; 0: nothing.
type ttft time.Duration

func (d ttft) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		if d > 0 {
			candidates[i].Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: time.Duration(d)}
		}
	}
}
