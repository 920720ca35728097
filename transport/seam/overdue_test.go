package seam_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/seam"
)

// warm answers requests until it is known what is slow.
func (w *world) warm(t *testing.T) {
	for range 8 {
		a := w.route(t, w.read(t, chatBody))
		require.NoError(t, a.Header(200, sse.Clone(), nil))
		a.Feed(nil, []byte(events))
		_, err := a.End(nil)
		require.NoError(t, err)
	}
}

// Requests that have ended, one way or the other, are not waited for.
func TestWhatHasEndedIsNotOverdue(t *testing.T) {
	for name, end := range map[string]func(*seam.Call, *seam.Attempt, func()){
		"closed":       func(c *seam.Call, _ *seam.Attempt, _ func()) { c.Close() },
		"gone":         func(_ *seam.Call, _ *seam.Attempt, gone func()) { gone() },
		"gone, failed": func(_ *seam.Call, a *seam.Attempt, gone func()) { gone(); _ = a.Fail(errBroken) },
		"moved": func(c *seam.Call, a *seam.Attempt, _ func()) {
			if err := a.ServedBy("b"); err != nil {
				panic(err)
			}
			c.Close()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seam.Config{})
			w.warm(t)
			for i := range 3 {
				ctx, gone := context.WithCancel(t.Context())
				call := w.read(t, chatBody)
				a, err := call.Route(ctx)
				require.NoError(t, err)
				if name == "moved" && i == 2 {
					gone() // two failures put nobody out
					break
				}
				end(call, a, gone)
				gone()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Zero(t, w.Unhealthy(), name)
			w.idle(t)
		})
	}
}

// Until it is known what is slow, nobody is overdue.
func TestNobodyIsOverdueAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
		var calls []*seam.Call
		for range 4 {
			call := w.read(t, chatBody)
			w.route(t, call)
			calls = append(calls, call)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, w.Unhealthy())
		for _, c := range calls {
			c.Close()
		}
	})
}

// While an endpoint streams to one client, it is not silent to those that wait.
func TestAStreamIsASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
		w.warm(t)
		streaming := w.route(t, w.read(t, chatBody))
		require.NoError(t, streaming.Header(200, sse.Clone(), nil))
		for range 3 {
			w.route(t, w.read(t, chatBody))
		}
		time.Sleep(2 * time.Second)
		streaming.Feed(nil, []byte(events[:60]))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, w.Unhealthy())
	})
}

// An attempt that has failed is not overdue as well.
func TestFailuresAreNotOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
		w.warm(t)
		for range 3 { // nobody has said yet whether another serves them
			require.Error(t, w.route(t, w.read(t, chatBody)).Fail(errBroken))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, w.Unhealthy())
	})
}

// How long responses take that come at once says nothing of streams.
func TestStreamsHaveAPatienceOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
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
		assert.Zero(t, w.Unhealthy())
	})
}

// How long the slowest have waited is known: whoever waits no longer than twice as long is
// not overdue.
func TestPatienceIsThatOfTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
		for range 8 {
			a := w.route(t, w.read(t, chatBody))
			w.at = w.at.Add(2 * time.Second)
			require.NoError(t, a.Header(200, sse.Clone(), nil))
			a.Feed(nil, []byte(events))
			_, err := a.End(nil)
			require.NoError(t, err)
		}
		for unhealthy, passed := range []time.Duration{3900 * time.Millisecond, 4100 * time.Millisecond} {
			var calls []*seam.Call
			for range 3 {
				call := w.read(t, chatBody)
				w.route(t, call)
				calls = append(calls, call)
			}
			time.Sleep(passed)
			synctest.Wait()
			assert.Equal(t, unhealthy, w.Unhealthy(), passed)
			for _, c := range calls {
				c.Close()
			}
		}
		w.idle(t)
	})
}

// Whoever has been moved to another endpoint waits there, from then on.
func TestMovedRequestsWaitWhereTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
		w.warm(t)
		var calls []*seam.Call
		for range 3 {
			call := w.read(t, chatBody)
			require.NoError(t, w.route(t, call).ServedBy("b"))
			calls = append(calls, call)
		}
		before := w.Unhealthy() // a has failed them
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, before+1, w.Unhealthy())
		for _, c := range calls {
			c.Close()
		}
	})
}

// A request that has moved has waited only since then for the endpoint that serves it: others are expected to be as fast.
func TestMovedRequestsTeachNoPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seam.Config{})
		w.warm(t)
		call := w.read(t, chatBody)
		a := w.route(t, call)
		w.at = w.at.Add(20 * time.Second)
		require.NoError(t, a.ServedBy("b"))
		w.at = w.at.Add(time.Second)
		require.NoError(t, a.Header(200, sse.Clone(), []byte(events)))
		call.Close()
		before := w.Unhealthy()
		var calls []*seam.Call
		for range 3 {
			calls = append(calls, w.read(t, chatBody))
			w.route(t, calls[len(calls)-1])
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		assert.Equal(t, before+1, w.Unhealthy())
		for _, c := range calls {
			c.Close()
		}
	})
}

// A stream in which the engine tells of an error has failed, though it ends as it should.
func TestErrorsWithinStreamsAreFailures(t *testing.T) {
	w := newWorld(t, seam.Config{})
	for range 3 {
		a := w.route(t, w.read(t, chatBody))
		require.NoError(t, a.Header(200, sse.Clone(), nil))
		a.Feed(nil, []byte("data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\ndata: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n"))
		_, err := a.End(nil)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, w.Unhealthy())
	w.idle(t)
}
