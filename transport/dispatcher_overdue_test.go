package transport_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport"
)

// waiting routes so many requests.
func (w *driven) waiting(t *testing.T, n int) (calls []*transport.Call) {
	for range n {
		call := w.read(t, chatBody)
		w.route(t, call)
		calls = append(calls, call)
	}
	return calls
}

// warm completes requests until there is a notion of slow.
func (w *driven) warm(t *testing.T) {
	for range 8 {
		a := w.route(t, w.read(t, chatBody))
		require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
		a.Feed(nil, []byte(events))
		_, err := a.End(nil)
		require.NoError(t, err)
	}
}

// Requests that have ended, in whatever way, are not waited for.
func TestWhatHasEndedIsNotOverdue(t *testing.T) {
	for name, end := range map[string]func(*transport.Call, *transport.Attempt, func()){
		"closed":       func(c *transport.Call, _ *transport.Attempt, _ func()) { c.Close() },
		"gone":         func(_ *transport.Call, _ *transport.Attempt, gone func()) { gone() },
		"gone, failed": func(_ *transport.Call, a *transport.Attempt, gone func()) { gone(); _ = a.Fail(errBroken) },
		"moved": func(c *transport.Call, a *transport.Attempt, _ func()) {
			if err := a.ServedBy("b"); err != nil {
				panic(err)
			}
			c.Close()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newDriven(t, transport.Config{})
			w.warm(t)
			for i := range 3 {
				ctx, gone := context.WithCancel(t.Context())
				call := w.read(t, chatBody)
				a, err := call.Route(ctx)
				require.NoError(t, err)
				if name == "moved" && i == 2 {
					gone() // two failures put no endpoint out
					break
				}
				end(call, a, gone)
				gone()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Zero(t, w.unhealthy(), name)
			w.idle(t)
		})
	}
}

// While an endpoint streams to one client, it is not silent to those waiting.
func TestAStreamIsASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(t, transport.Config{})
		w.warm(t)
		streaming := w.route(t, w.read(t, chatBody))
		require.NoError(t, streaming.Header(200, streamHeader.Clone(), nil))
		for range 3 {
			w.route(t, w.read(t, chatBody))
		}
		time.Sleep(2 * time.Second)
		streaming.Feed(nil, []byte(events[:60]))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, w.unhealthy())
	})
}

// The latency of responses that do not stream says nothing of streams.
func TestStreamsHaveAPatienceOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(t, transport.Config{})
		for range 20 {
			call := w.read(t, strings.Replace(chatBody, `"stream":true,`, "", 1))
			a := w.route(t, call)
			require.NoError(t, a.Header(200, http.Header{"Content-Type": {"application/json"}}, nil))
			a.Feed(nil, []byte(`{"choices":[]}`))
			_, err := a.End(nil)
			require.NoError(t, err)
		}
		for range 3 {
			w.route(t, w.read(t, chatBody))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, w.unhealthy())
	})
}

// The longest waits are known: a request that has waited less than twice as long is not
// overdue.
func TestPatienceIsThatOfTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(t, transport.Config{})
		for range 8 {
			a := w.route(t, w.read(t, chatBody))
			w.at = w.at.Add(2 * time.Second)
			require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
			a.Feed(nil, []byte(events))
			_, err := a.End(nil)
			require.NoError(t, err)
		}
		for unhealthy, passed := range []time.Duration{3900 * time.Millisecond, 4100 * time.Millisecond} {
			calls := w.waiting(t, 3)
			time.Sleep(passed)
			synctest.Wait()
			assert.Equal(t, unhealthy, w.unhealthy(), passed)
			for _, c := range calls {
				c.Close()
			}
		}
		w.idle(t)
	})
}

// A request that has been moved waits at its new endpoint from then on.
func TestMovedRequestsWaitWhereTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(t, transport.Config{})
		w.warm(t)
		var calls []*transport.Call
		for range 3 {
			call := w.read(t, chatBody)
			require.NoError(t, w.route(t, call).ServedBy("b"))
			calls = append(calls, call)
		}
		before := w.unhealthy() // a has failed them
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, before+1, w.unhealthy())
		for _, c := range calls {
			c.Close()
		}
	})
}
