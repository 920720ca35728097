package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

// A request without a model is repeated only if its method makes that safe.
func TestMethodsThatMayBeRepeated(t *testing.T) {
	for method, again := range map[string]bool{
		"GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "": true,
		"POST": false, "PUT": false, "PATCH": false, "DELETE": false, "get": false,
	} {
		w := newDriven(t, transport.Config{})
		call := rig.Must(w.Read(transport.Incoming{Method: method, Path: "/v1/other"}))
		a := w.route(t, call)
		require.Error(t, a.Header(503, http.Header{}, nil))
		assert.Equal(t, again, a.Again(), method)
		call.Close()
	}
}

// Health shows why an endpoint has failed its latest request, even after the first byte.
func TestWhatBreaksOffIsShown(t *testing.T) {
	w := newDriven(t, transport.Config{})
	a := w.route(t, w.read(t, chatBody))
	require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
	a.Feed(nil, []byte(events[:60]))
	require.ErrorIs(t, a.Fail(errBroken), errBroken)
	assert.ErrorIs(t, w.monitor.Endpoints()[0].Err, errBroken)
}

// A prompt is read and cut into blocks, by its token IDs, once, however many endpoints are asked.
func TestPromptsAreReadOnce(t *testing.T) {
	asked := 0
	w := newDriven(t, transport.Config{Tokens: func(_ context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
		asked++
		assert.Equal(t, []string{"m", chatPath, chatBody}, []string{req.Model, path, string(body)})
		return make([]uint32, 40), 0
	}})
	call := w.read(t, chatBody)
	call.Request.Receipt = new(endpick.Receipt)
	defer call.Close()
	for range 2 {
		require.Error(t, w.route(t, call).Header(503, http.Header{}, nil))
	}
	assert.Equal(t, []int{40, 40}, []int{call.Request.InputTokens, call.Request.Receipt.InputTokens})
	w.route(t, call)
	assert.Equal(t, 1, asked)
}

// If only one endpoint refuses, the fault is its own: after the second refusal another
// is asked, and if that one serves the requests the first is put out.
func TestRefusalsOfOneEndpoint(t *testing.T) {
	w := newDriven(t, transport.Config{})
	var again []bool
	for range 7 {
		call, a := w.start(t, chatBody)
		if a.Endpoint().ID == "a" {
			require.Error(t, a.Header(400, http.Header{}, nil))
			again = append(again, a.Again())
			if again[len(again)-1] {
				a = w.route(t, call)
				require.Equal(t, "b", a.Endpoint().ID)
			}
		}
		_ = a.Header(200, streamHeader.Clone(), nil)
		a.Feed(nil, []byte(events))
		_, _ = a.End(nil)
		call.Close()
	}
	assert.Equal(t, []bool{false, true, true, true}, again)
	assert.Equal(t, 1, w.unhealthy())
	assert.ErrorContains(t, w.monitor.Endpoints()[0].Err, "400")
	w.idle(t)
}

// An endpoint whose trial has been due for long gets no request for that which must not be sent twice.
func TestTrialsAreOfWhatMayBeRepeated(t *testing.T) {
	w := newDriven(t, transport.Config{})
	call, a := w.start(t, chatBody)
	require.Error(t, a.Fail(noDial))
	require.True(t, a.Again())
	w.serve(t, w.route(t, call))
	w.heard.order, w.at = "bca", w.at.Add(time.Minute)
	once := rig.Must(w.Read(transport.Incoming{Method: "POST", Path: "/v1/responses", Body: []byte(`{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`)}))
	defer once.Close()
	assert.Equal(t, "b", w.route(t, once).Endpoint().ID)
	w.at = w.at.Add(time.Minute)
	call, a = w.start(t, chatBody)
	defer call.Close()
	assert.Equal(t, "a", a.Endpoint().ID)
}

// A stream that ends without a byte has failed, unless the program did not see its body.
func TestAStreamOfNothing(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		unread     bool
		status     int
		said       string
	}{
		{"nothing", chatBody, false, 200, "a failed"},
		{"not seen", chatBody, true, 200, "a completed"},
		{"no stream", strings.Replace(chatBody, "true", "false", 1), false, 200, "a completed"},
		{"no content", chatBody, false, 204, "a completed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newDriven(t, transport.Config{})
			call, a := w.start(t, tc.body)
			defer call.Close()
			require.NoError(t, a.Header(tc.status, streamHeader, nil))
			if tc.unread {
				a.Unread()
			}
			a.Feed(nil, nil)
			_, err := a.End(nil)
			assert.Equal(t, tc.said == "a failed", errors.Is(err, io.ErrUnexpectedEOF))
			assert.Equal(t, tc.said, w.heard.said())
			w.idle(t)
		})
	}
}

// A response from an endpoint that was removed meanwhile belongs to no endpoint's
// accounts, and the client gets it as from any other.
func TestServedByWhoIsGone(t *testing.T) {
	w := newDriven(t, transport.Config{Fallbacks: 2})
	call, a := w.start(t, chatBody)
	require.NoError(t, w.router.Remove("b"))
	require.ErrorIs(t, a.ServedBy("b"), endpick.ErrUnknownEndpoint)
	header := http.Header{"Content-Type": {"text/event-stream"}, "Content-Length": {fmt.Sprint(len(events))}}
	require.NoError(t, a.Header(200, header, nil))
	assert.Empty(t, header.Get("Content-Length"))
	out := a.Feed(nil, []byte(events[:100]))
	out = a.Feed(out, []byte(events[100:]))
	out, err := a.End(out)
	require.NoError(t, err)
	assert.NotContains(t, string(out), "usage")
	assert.Contains(t, string(out), "[DONE]")
	call.Close()
	w.idle(t)
	assert.Equal(t, "a failed", w.heard.said())
}

// Who serves a moved request takes what it asks for; whether the endpoint that it has left would, nobody knows.
func TestServedByWhoTakesIt(t *testing.T) {
	w := newDriven(t, transport.Config{})
	for _, by := range []string{"b", "a"} {
		call, a := w.start(t, chatBody)
		require.NoError(t, a.ServedBy(by))
		if by == "b" {
			w.serve(t, a)
		} else if assert.Error(t, a.Header(400, http.Header{}, []byte("unknown parameter"))) {
			assert.True(t, a.Again())
		}
		call.Close()
	}
}

// serve answers a request with a whole stream.
func (w *driven) serve(t testing.TB, a *transport.Attempt) {
	require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
	a.Feed(nil, []byte(events))
	_, err := a.End(nil)
	require.NoError(t, err)
}

// asked routes so many requests.
func (w *driven) asked(t testing.TB, n int) (calls []*transport.Call, attempts []*transport.Attempt) {
	for range n {
		call, a := w.start(t, chatBody)
		calls, attempts = append(calls, call), append(attempts, a)
	}
	return calls, attempts
}

// unhealthyAfter is how many endpoints are unhealthy when that has passed.
func (w *driven) unhealthyAfter(passed time.Duration) int {
	time.Sleep(passed)
	synctest.Wait()
	return w.unhealthy()
}

// silent runs a test with endpoints that have served so many requests at once, which is a notion of slow.
func silent(t *testing.T, test func(*testing.T, *driven)) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(t, transport.Config{})
		for range 8 {
			w.serve(t, w.route(t, w.read(t, chatBody)))
		}
		test(t, w)
	})
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
		silent(t, func(t *testing.T, w *driven) {
			for i := range 3 {
				ctx, gone := context.WithCancel(t.Context())
				call := w.read(t, chatBody)
				a := rig.Must(call.Route(ctx))
				if name == "moved" && i == 2 {
					gone() // two failures put no endpoint out
					break
				}
				end(call, a, gone)
				gone()
			}
			assert.Zero(t, w.unhealthyAfter(time.Minute), name)
			w.idle(t)
		})
	}
}

// An endpoint that is silent to all requests is avoided even if Fail is never called; a
// byte from it brings it back.
func TestSilentEndpointsAreAvoided(t *testing.T) {
	silent(t, func(t *testing.T, w *driven) {
		_, waiting := w.asked(t, 3)
		assert.Zero(t, w.unhealthyAfter(2*time.Second), "they may take their time")
		assert.Equal(t, 1, w.unhealthyAfter(2*time.Second))
		next := w.route(t, w.read(t, chatBody))
		assert.Equal(t, "b", next.Endpoint().ID)
		w.serve(t, next)
		for _, a := range waiting {
			assert.Equal(t, "a", a.Endpoint().ID)
			w.serve(t, a)
		}
		w.at = w.at.Add(time.Minute)
		assert.Equal(t, "a", w.route(t, w.read(t, chatBody)).Endpoint().ID, "any byte brings it back")
	})
}

// A header is a sign of life, even of a failure, and so is a byte of a stream to another client: an
// endpoint that has said something since requests were sent is not silent to those that wait.
func TestSignsOfLife(t *testing.T) {
	silent(t, func(t *testing.T, w *driven) {
		_, waiting := w.asked(t, 4)
		time.Sleep(2 * time.Second)
		require.Error(t, waiting[0].Header(400, http.Header{}, nil))
		assert.Zero(t, w.unhealthyAfter(2*time.Second))
		for _, a := range waiting {
			assert.Equal(t, "a", a.Endpoint().ID)
			a.Fail(errBroken)
		}
	})
	silent(t, func(t *testing.T, w *driven) {
		streaming := w.route(t, w.read(t, chatBody))
		require.NoError(t, streaming.Header(200, streamHeader.Clone(), nil))
		_, waiting := w.asked(t, 3)
		for range 5 {
			streaming.Feed(nil, []byte(events[:60]))
			assert.Zero(t, w.unhealthyAfter(2*time.Second))
		}
		assert.Equal(t, 1, w.unhealthyAfter(30*time.Second), "but it is from then on")
		for _, a := range waiting {
			w.serve(t, a) // whoever sends them gives none up
		}
	})
}

// The latency of responses that do not stream says nothing of streams.
func TestStreamsHaveAPatienceOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(t, transport.Config{})
		for range 20 {
			a := w.route(t, w.read(t, strings.Replace(chatBody, `"stream":true,`, "", 1)))
			require.NoError(t, a.Header(200, http.Header{"Content-Type": {"application/json"}}, nil))
			a.Feed(nil, []byte(`{"choices":[]}`))
			_, err := a.End(nil)
			require.NoError(t, err)
		}
		w.asked(t, 3)
		assert.Zero(t, w.unhealthyAfter(time.Minute))
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
			w.serve(t, a)
		}
		for unhealthy, passed := range []time.Duration{3900 * time.Millisecond, 4100 * time.Millisecond} {
			calls, _ := w.asked(t, 3)
			assert.Equal(t, unhealthy, w.unhealthyAfter(passed), passed)
			for _, c := range calls {
				c.Close()
			}
		}
		w.idle(t)
	})
}

// A request that has been moved waits at its new endpoint from then on.
func TestMovedRequestsWaitWhereTheyAre(t *testing.T) {
	silent(t, func(t *testing.T, w *driven) {
		calls, attempts := w.asked(t, 3)
		for _, a := range attempts {
			require.NoError(t, a.ServedBy("b"))
		}
		before := w.unhealthy() // a has failed them
		assert.Equal(t, before+1, w.unhealthyAfter(time.Minute))
		for _, c := range calls {
			c.Close()
		}
	})
}
