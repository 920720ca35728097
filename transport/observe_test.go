package transport_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

type nameKey struct{}

// watched is a world that keeps the observed requests.
func watched(t *testing.T, config transport.Config, addresses ...string) (*world, chan *transport.Observation) {
	return watchedOf(t, config, endpick.Config{}, addresses...)
}

func watchedOf(t *testing.T, config transport.Config, of endpick.Config, addresses ...string) (*world, chan *transport.Observation) {
	reported := make(chan *transport.Observation, 100)
	config.Observe = func(r *transport.Observation) { reported <- r }
	if config.Describe == nil {
		config.Describe = func(_ *http.Request, _ []byte, req *endpick.Request) { req.Tenant = "ann" }
	}
	return newWorldOf(t, config, of, addresses...), reported
}

func next(t *testing.T, reported chan *transport.Observation) *transport.Observation {
	t.Helper()
	select {
	case r := <-reported:
		return r
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told")
		return nil
	}
}

// way lists a request's attempts: endpoints, results and statuses.
func way(r *transport.Observation) (all []string) {
	for _, a := range r.Attempts {
		all = append(all, fmt.Sprintf("%s %s %d", a.Candidate.Endpoint.ID, a.Result, a.HTTP))
	}
	return all
}

// failing answers with a status.
func failing(status int) func(http.ResponseWriter, *http.Request, []byte) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.WriteHeader(status)
		return true
	}
}

func TestObserveStream(t *testing.T) {
	e := startEngine(t, nil)
	w, reported := watched(t, transport.Config{}, e.URL)
	req := post(t, chatPath, chatStream)
	w.ok(t, req.WithContext(context.WithValue(t.Context(), nameKey{}, "mine")))
	r := next(t, reported)
	recorded := w.record(t)
	recorded.Blocks = nil
	assert.Equal(t, recorded, r.Request)
	assert.Equal(t, "mine", r.In.Context().Value(nameKey{}))
	assert.Equal(t, "ann", r.Tenant)
	assert.NoError(t, r.Err)
	assert.True(t, r.Completed())
	require.Equal(t, []string{"a served 200"}, way(r))
	a := r.Last()
	assert.Same(t, &r.Attempts[0], a)
	assert.NoError(t, a.Err)
	assert.False(t, a.At.Before(r.Time))
	assert.GreaterOrEqual(t, a.Decision, time.Duration(0))
	assert.NotZero(t, a.Candidate.Ref)
	ttft, tpot, e2e := r.Latencies()
	assert.Zero(t, ttft.Predicted+tpot.Predicted+e2e.Predicted)
	assert.Positive(t, ttft.Actual)
	assert.Positive(t, tpot.Actual)
	assert.GreaterOrEqual(t, e2e.Actual, ttft.Actual)
	assert.Empty(t, reported)
}

func TestObserveTheWay(t *testing.T) {
	dead := httptest.NewServer(nil)
	dead.Close()
	good := startEngine(t, nil)
	status := func(code int) string { return startEngine(t, failing(code)).URL }
	silent := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool { panic(http.ErrAbortHandler) })
	half := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	for name, tc := range map[string]struct {
		addresses []string
		want      []string
		serving   int
		status    int  // as seen by the client
		failed    bool // RoundTrip returns an error
		recorded  string
	}{
		"elsewhere":       {[]string{dead.URL, good.URL}, []string{"a unreachable 0", "b served 200"}, 1, 200, false, "completed"},
		"twice elsewhere": {[]string{status(500), status(429), good.URL}, []string{"a error 500", "b full 429", "c served 200"}, 2, 200, false, "completed"},
		"no answer":       {[]string{silent.URL, good.URL}, []string{"a broken 0", "b served 200"}, 1, 200, false, "completed"},
		"nobody":          {[]string{status(500), status(503)}, []string{"a error 500", "b error 503"}, 1, 503, false, "failed"},
		"nobody there":    {[]string{dead.URL}, []string{"a unreachable 0"}, 0, 0, true, "failed"},
		"the client's":    {[]string{status(400), good.URL}, []string{"a refused 400"}, 0, 400, false, "refused"},
		"half":            {[]string{half.URL, good.URL}, []string{"a broken 200"}, 0, 200, false, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, reported := watched(t, transport.Config{}, tc.addresses...)
			resp, _, err := w.do(t, post(t, chatPath, chatStream))
			r := next(t, reported)
			assert.Equal(t, tc.want, way(r))
			assert.Equal(t, tc.serving, r.Serving)
			assert.Equal(t, tc.recorded, r.Status)
			assert.Equal(t, tc.status, r.HTTP)
			assert.Equal(t, tc.status == 200 && tc.recorded == "completed", r.Completed())
			if tc.failed {
				require.Error(t, err)
				assert.ErrorIs(t, err, r.Err)
				assert.Equal(t, 503, transport.StatusOf(r.Err))
			} else {
				assert.NoError(t, r.Err)
				if resp != nil {
					assert.Equal(t, tc.status, resp.StatusCode)
				}
			}
			for i, a := range r.Attempts {
				if i != r.Serving {
					assert.Error(t, a.Err)
				}
			}
			assert.Empty(t, reported, "once")
		})
	}
}

// When an endpoint refuses repeatedly, another one is asked; if that gives no
// answer either, the client gets the first refusal.
func TestObserveTheRefusalThatCounts(t *testing.T) {
	w, reported := watched(t, transport.Config{}, startEngine(t, failing(403)).URL, startEngine(t, failing(500)).URL)
	for range 2 {
		_, _, err := w.do(t, post(t, chatPath, chatStream))
		require.NoError(t, err)
	}
	r := next(t, reported)
	assert.Equal(t, []string{"a refused 403"}, way(r))
	assert.Zero(t, r.Held, "there is no queue")
	r = next(t, reported)
	require.Equal(t, []string{"a refused 403", "b error 500"}, way(r))
	assert.Equal(t, 0, r.Serving)
	assert.Equal(t, 403, r.HTTP)
}

func TestObserveClientsThatLeave(t *testing.T) {
	g := startGated(t)
	w, reported := watched(t, transport.Config{Queue: one(queue.Config{})}, g.URL)
	ctx, leave := context.WithCancel(t.Context())
	first := w.later(t, ctx, "first")
	<-g.arrived
	waiting, giveUp := context.WithCancel(t.Context())
	second := w.later(t, waiting, "second")
	w.held(t, 1)
	giveUp()
	require.ErrorIs(t, (<-second).err, context.Canceled)
	r := next(t, reported)
	assert.Empty(t, r.Attempts)
	assert.Equal(t, -1, r.Serving)
	assert.Nil(t, r.Last())
	assert.Equal(t, "canceled", r.Status)
	assert.Positive(t, r.Held, "it waited until it left")
	assert.ErrorIs(t, r.Err, context.Canceled)

	leave()
	require.ErrorIs(t, (<-first).err, context.Canceled)
	r = next(t, reported)
	assert.Equal(t, []string{"a canceled 0"}, way(r))
	assert.Equal(t, "canceled", r.Status)
}

func TestObserveTheQueue(t *testing.T) {
	g := startGated(t)
	w, reported := watched(t, transport.Config{Queue: one(queue.Config{MaxRequests: 1})}, g.URL)
	first := w.later(t, t.Context(), "first")
	<-g.arrived
	second := w.later(t, t.Context(), "second")
	w.held(t, 1)
	_, _, err := w.do(t, post(t, chatPath, chatStream))
	require.ErrorIs(t, err, queue.ErrFull)
	r := next(t, reported)
	assert.ErrorIs(t, r.Err, queue.ErrFull)
	assert.Empty(t, r.Attempts)
	g.release <- struct{}{}
	require.NoError(t, (<-first).err)
	<-g.arrived
	g.release <- struct{}{}
	require.NoError(t, (<-second).err)
	one, other := next(t, reported), next(t, reported)
	assert.Equal(t, []string{"a served 200"}, way(one))
	assert.Equal(t, []string{"a served 200"}, way(other))
	if one.Time.After(other.Time) {
		one, other = other, one
	}
	assert.Less(t, one.Held, other.Held, "the second has waited for the first")
	assert.GreaterOrEqual(t, other.Last().At.Sub(other.Time), other.Held)
}

// The time in the queue is not part of the decision time.
func TestObserveDecisionsAfterTheQueue(t *testing.T) {
	start := time.Unix(1e9, 0)
	var passed atomic.Int64
	g := startGated(t)
	w, reported := watchedOf(t, transport.Config{Queue: one(queue.Config{})}, endpick.Config{
		Clock: func() time.Time { return start.Add(time.Duration(passed.Load())) },
	}, g.URL)
	first := w.later(t, t.Context(), "first")
	<-g.arrived
	second := w.later(t, t.Context(), "second")
	w.held(t, 1)
	passed.Add(int64(time.Second))
	g.release <- struct{}{}
	require.NoError(t, (<-first).err)
	<-g.arrived
	g.release <- struct{}{}
	require.NoError(t, (<-second).err)
	held := map[time.Duration]bool{}
	for range 2 {
		r := next(t, reported)
		held[r.Held] = true
		assert.Zero(t, r.Last().Decision)
		assert.Equal(t, r.Held, r.Last().At.Sub(start))
	}
	assert.Equal(t, map[time.Duration]bool{0: true, time.Second: true}, held)
}

func TestObserveWhatIsRefused(t *testing.T) {
	w, reported := watched(t, transport.Config{})
	_, _, err := w.do(t, post(t, chatPath, chatStream))
	require.ErrorAs(t, err, new(*endpick.NoEndpointError))
	r := next(t, reported)
	assert.ErrorAs(t, r.Err, new(*endpick.NoEndpointError))
	assert.Equal(t, "m", r.Model)
	_, _, err = w.do(t, post(t, "/../x", "{}"))
	require.ErrorIs(t, err, transport.ErrUnknownPath)
	assert.ErrorIs(t, next(t, reported).Err, transport.ErrUnknownPath)
	_, _, err = w.do(t, post(t, "/v1/models", ""))
	require.Error(t, err)
	assert.Len(t, reported, 1, "a POST there is a request like any other")

	w, reported = watched(t, transport.Config{Queue: one(queue.Config{})})
	_, _, err = w.do(t, post(t, "/../x", "{}"))
	require.ErrorIs(t, err, transport.ErrUnknownPath)
	assert.Zero(t, next(t, reported).Held, "it was not queued")
}

// Whatever the clock does, nothing takes less than no time.
func TestObserveUnderAClockThatIsSetBack(t *testing.T) {
	e := startEngine(t, nil)
	var looks atomic.Int64
	w, reported := watchedOf(t, transport.Config{}, endpick.Config{Clock: func() time.Time {
		return time.Unix(1e9, 0).Add(-time.Duration(looks.Add(1)) * time.Hour)
	}}, e.URL)
	w.ok(t, post(t, chatPath, chatStream))
	r := next(t, reported)
	assert.Zero(t, r.Held)
	assert.Zero(t, r.Last().Decision)
}

// When a response breaks off after its client has received part of it, the attempt has the
// cause.
func TestObserveWhyAResponseBreaksOff(t *testing.T) {
	begin := func(w http.ResponseWriter, more string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"+more)
		_ = http.NewResponseController(w).Flush()
	}
	for name, tc := range map[string]struct {
		engine func(http.ResponseWriter, *http.Request)
		want   string
		stall  time.Duration
	}{
		"the connection ends": {func(w http.ResponseWriter, _ *http.Request) { begin(w, ""); panic(http.ErrAbortHandler) }, "unexpected EOF", 0},
		"the stream ends":     {func(w http.ResponseWriter, _ *http.Request) { begin(w, "") }, "unexpected EOF", 0},
		"it says so": {func(w http.ResponseWriter, _ *http.Request) {
			begin(w, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n")
		}, "transport: the response ends in an error event", 0},
		"it stalls": {func(w http.ResponseWriter, r *http.Request) { begin(w, ""); <-r.Context().Done() }, transport.ErrTimeout.Error(), 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool { tc.engine(w, r); return true })
			e.Config.ErrorLog = log.New(io.Discard, "", 0)
			w, reported := watched(t, transport.Config{StallTimeout: tc.stall}, e.URL)
			_, _, _ = w.do(t, post(t, chatPath, chatStream))
			r := next(t, reported)
			require.Equal(t, []string{"a broken 200"}, way(r))
			assert.Equal(t, "failed", r.Status)
			assert.NoError(t, r.Err, "there was a response")
			assert.EqualError(t, r.Last().Err, tc.want)
		})
	}
}

// The cause belongs to the attempt that served the request, whatever preceded it.
func TestObserveWhoBreaksOff(t *testing.T) {
	good := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n")
		return true
	})
	w, reported := watched(t, transport.Config{}, startEngine(t, failing(500)).URL, good.URL)
	_, _, _ = w.do(t, post(t, chatPath, chatStream))
	r := next(t, reported)
	assert.Equal(t, []string{"a error 500", "b broken 200"}, way(r))
	assert.Equal(t, 1, r.Serving)
	assert.EqualError(t, r.Last().Err, "unexpected EOF")
	assert.EqualError(t, r.Attempts[0].Err, "answered 500 Internal Server Error")
}
