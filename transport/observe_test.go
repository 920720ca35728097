package transport_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// When an endpoint refuses repeatedly, another one is asked; if that gives no
// answer either, the client gets the first refusal.
func TestObserveTheRefusalThatCounts(t *testing.T) {
	w, reported := watched(t, transport.Config{}, startEngine(t, status(403)).URL, startEngine(t, status(500)).URL)
	for range 2 {
		w.gets(t, 403, post(t, chatPath, chatStream))
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
	first := w.first(t, ctx, g)
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

	ctx, leave = context.WithCancel(t.Context())
	w, reported = watched(t, transport.Config{Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
		leave()
		w.idle(t)
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	})}, "nowhere:1")
	resp, _, _ := w.do(t, post(t, chatPath, chatAtOnce).WithContext(ctx))
	assert.NotNil(t, resp, "it comes, but too late")
	r = next(t, reported)
	assert.Equal(t, []string{"a canceled 0"}, way(r))
	assert.Equal(t, 499, r.Code(), "the client has left, and got no status")
}

func TestObserveTheQueue(t *testing.T) {
	g := startGated(t)
	w, reported := watched(t, transport.Config{Queue: one(queue.Config{MaxRequests: 1})}, g.URL)
	first := w.first(t, t.Context(), g)
	second := w.later(t, t.Context(), "second")
	w.held(t, 1)
	_, _, err := w.do(t, post(t, chatPath, chatStream))
	require.ErrorIs(t, err, queue.ErrFull)
	r := next(t, reported)
	assert.ErrorIs(t, r.Err, queue.ErrFull)
	assert.Empty(t, r.Attempts)
	g.release <- struct{}{}
	require.NoError(t, (<-first).err)
	g.next()
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

// When a response breaks off after its client has received part of it, the cause belongs to the attempt
// that served it, whatever preceded that.
func TestObserveWhyAResponseBreaksOff(t *testing.T) {
	word := delta(`"content":"Hel"`)
	for name, tc := range map[string]struct {
		engine handler
		want   string
		stall  time.Duration
	}{
		"the connection ends": {breaksOff("text/event-stream", word), "unexpected EOF", 0},
		"the stream ends":     {sse(word), "unexpected EOF", 0},
		"it says so":          {sse(word + "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"), "transport: the response ends in an error event", 0},
		"it stalls":           {hangs(word), transport.ErrTimeout.Error(), 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, tc.engine)
			w, reported := watched(t, transport.Config{StallTimeout: tc.stall}, startEngine(t, status(500)).URL, e.URL)
			_, _, _ = w.do(t, post(t, chatPath, chatStream))
			r := next(t, reported)
			require.Equal(t, []string{"a error 500", "b broken 200"}, way(r))
			assert.Equal(t, 1, r.Serving)
			assert.EqualError(t, r.Attempts[0].Err, "answered 500 Internal Server Error")
			assert.Equal(t, "failed", r.Status)
			assert.NoError(t, r.Err, "there was a response")
			assert.EqualError(t, r.Last().Err, tc.want)
		})
	}
}

func ms(v float64) *float64 { return &v }

// stream is one with targets of 100 ms and 10 ms.
func stream(ttft, e2e float64, output int) transport.Observation {
	return transport.Observation{Request: recording.Request{
		Model: "m", Stream: true, HTTP: 200, Status: "completed", TTFTMillis: ms(ttft), E2EMillis: e2e, OutputTokens: output,
		SLOTTFTMillis: 100, SLOTPOTMillis: 10,
	}, Serving: -1}
}

func TestTarget(t *testing.T) {
	type kept struct{ asked, met bool }
	met, missed, unasked := kept{true, true}, kept{true, false}, kept{}
	for name, tc := range map[string]struct {
		change     func(*transport.Observation)
		ttft, tpot kept
	}{
		"met":               {nil, met, met}, // (190 − 100)/9 = 10
		"late":              {func(r *transport.Observation) { r.TTFTMillis = ms(101) }, missed, met},
		"slow":              {func(r *transport.Observation) { r.E2EMillis = 191 }, met, missed},
		"one token":         {func(r *transport.Observation) { r.OutputTokens = 1 }, met, unasked},
		"no token":          {func(r *transport.Observation) { r.OutputTokens, r.TTFTMillis = 0, nil }, missed, unasked},
		"TTFT alone":        {func(r *transport.Observation) { r.SLOTPOTMillis = 0 }, met, unasked},
		"nothing asked for": {func(r *transport.Observation) { r.SLOTPOTMillis, r.SLOTTFTMillis = 0, 0 }, unasked, unasked},
		"rejected": {func(r *transport.Observation) {
			*r = stream(0, 1, 0)
			r.TTFTMillis, r.HTTP, r.Status = nil, 0, "failed"
		}, missed, missed},
		"refused there": {func(r *transport.Observation) { r.HTTP = 400 }, missed, missed},
		"cut":           {func(r *transport.Observation) { r.Status = "failed" }, missed, missed},
		"left":          {func(r *transport.Observation) { r.Status = "canceled" }, unasked, unasked},
		"at once":       {func(r *transport.Observation) { r.Stream, r.TTFTMillis, r.E2EMillis = false, nil, 100 }, met, unasked},
		"at once, late": {func(r *transport.Observation) { r.Stream, r.TTFTMillis = false, nil }, missed, unasked},
	} {
		t.Run(name, func(t *testing.T) {
			r := stream(100, 190, 10)
			if tc.change != nil {
				tc.change(&r)
			}
			asked, ok := r.Target(endpick.TTFT)
			assert.Equal(t, tc.ttft, kept{asked, ok})
			asked, ok = r.Target(endpick.TPOT)
			assert.Equal(t, tc.tpot, kept{asked, ok})
			asked, ok = r.Target(endpick.E2E)
			assert.Equal(t, unasked, kept{asked, ok})
		})
	}
}

// Predictions count from the routing, and so do the latencies compared with them.
func TestLatencies(t *testing.T) {
	at := time.Unix(100, 0)
	r := stream(100, 190, 10)
	r.Time, r.Held = at, 20*time.Millisecond // part of the time until the routing
	ttft, tpot, e2e := r.Latencies()
	assert.Zero(t, ttft, "it was sent nowhere")
	assert.Zero(t, tpot)
	assert.Zero(t, e2e)

	prediction := endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 50 * time.Millisecond, TPOT: 0, E2E: time.Hour}
	r.Attempts = []transport.ObservedAttempt{{}, {At: at.Add(30 * time.Millisecond), Candidate: endpick.Candidate{Prediction: prediction}}}
	r.Serving = 1
	ttft, tpot, e2e = r.Latencies()
	assert.Equal(t, transport.Latency{Predicted: 50 * time.Millisecond, Actual: 70 * time.Millisecond}, ttft)
	assert.Equal(t, transport.Latency{Predicted: 1, Actual: 10 * time.Millisecond}, tpot, "0 would be unknown")
	assert.Equal(t, transport.Latency{Actual: 160 * time.Millisecond}, e2e)

	r.Responses = 5 // of two tokens each
	_, tpot, _ = r.Latencies()
	assert.Equal(t, 90*time.Millisecond, tpot.Actual)
	r.SLOTPOTMillis = 80
	_, met := r.Target(endpick.TPOT)
	assert.False(t, met)
	r.SLOTPOTMillis = 100
	_, met = r.Target(endpick.TPOT)
	assert.True(t, met)
	r.Responses = 6 // of one token
	asked, _ := r.Target(endpick.TPOT)
	assert.False(t, asked)
	r.Responses = 0

	r.Status = "canceled"
	ttft, _, e2e = r.Latencies()
	assert.Equal(t, 70*time.Millisecond, ttft.Actual, "what was seen was seen")
	assert.Zero(t, e2e.Actual)

	r.Stream, r.Status, r.TTFTMillis = false, "completed", nil
	r.Attempts[1].Candidate.Prediction.Has = endpick.TTFT | endpick.E2E
	ttft, tpot, e2e = r.Latencies()
	assert.Zero(t, ttft)
	assert.Zero(t, tpot)
	assert.Equal(t, transport.Latency{Predicted: time.Hour, Actual: 160 * time.Millisecond}, e2e)

	r.Serving = 2
	assert.Nil(t, r.Last())
	r.Serving = -1
	assert.Nil(t, r.Last())
}

// A recording contains no word of a prompt or a response.
func TestRecordingHoldsNoText(t *testing.T) {
	e := startEngine(t, nil)
	var b bytes.Buffer
	write, end := recording.NewWriter(&b)
	w := newWorld(t, transport.Config{}, e.URL)
	prompt := strings.Repeat("the secret ingredient is cardamom, ", 10)
	w.ok(t, post(t, completions, `{"model":"m","stream":true,"user":"ann","prompt":"`+prompt+`"}`, transport.SessionHeader, "session-of-ann"))
	write(w.record(t))
	require.NoError(t, end())
	for _, word := range []string{"secret", "cardamom", "Once", "upon", "ann"} {
		assert.NotContains(t, b.String(), word)
	}
	r := w.record(t)
	require.Len(t, r.Blocks, len(prompt)/64)
	last := len(r.Blocks) - 1
	assert.EqualValues(t, w.observer.blocks[0][last], r.Blocks[last])
}

func TestRefusedRequestsAreRecorded(t *testing.T) {
	w := newWorld(t, transport.Config{}, startEngine(t, nil).URL)
	_, _, err := w.do(t, post(t, chatPath, chatStream, transport.PriorityHeader, "5", transport.SessionHeader, strings.Repeat("x", 300)))
	require.ErrorAs(t, err, new(*endpick.RequestError))
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Len(t, w.records, 1)
	assert.Equal(t, [3]any{5, 0, "refused"}, [3]any{w.records[0].Priority, w.records[0].Attempts, w.records[0].Status}, "with what was read of it")
}

// A request lasts until its response has ended, however long the host's calls take:
// here each look at the clock takes an hour, and that of Done is the last.
func TestARecordedRequestEndsWithItsResponse(t *testing.T) {
	start := time.Unix(1e9, 0)
	var passed, perCall, atDone atomic.Int64
	now := func() time.Time { return start.Add(time.Duration(passed.Load())) }
	w := newWorldOf(t, transport.Config{}, endpick.Config{Clock: func() time.Time {
		atDone.Store(passed.Load())
		passed.Add(perCall.Load())
		return now()
	}}, startEngine(t, nil).URL)
	resp := rig.Must(w.client.Do(post(t, completions, `{"model":"m","prompt":"x"}`)))
	passed.Add(int64(3 * time.Second))
	perCall.Store(int64(time.Hour))
	rig.Must(io.Copy(io.Discard, resp.Body))
	require.NoError(t, resp.Body.Close())
	require.GreaterOrEqual(t, passed.Load(), int64(time.Hour))
	assert.Equal(t, float64(atDone.Load()-int64(time.Hour))/1e6, w.record(t).E2EMillis)
}

// Whatever the host changes, the recorded model is the client's; tenant, parameters and latencies
// are recorded, with fractions of a millisecond.
func TestWhatIsRecorded(t *testing.T) {
	start := time.Unix(1e9, 0)
	var passed atomic.Int64
	w := newWorldOf(t, transport.Config{
		Describe: func(_ *http.Request, _ []byte, req *endpick.Request) {
			req.Model, req.Tenant, req.Adapter = "pool", "ann", "ada"
			passed.Add(int64(time.Second)) // before it is sent
		},
	}, endpick.Config{Clock: func() time.Time { return start.Add(time.Duration(passed.Load())) }}, startEngine(t, nil).URL)
	resp := rig.Must(w.client.Do(post(t, chatPath, chatStream, transport.SessionHeader, "s1", "X-Slo-Ttft-Ms", "1.5", "X-Slo-Tpot-Ms", "2.25")))
	passed.Add(int64(2500 * time.Microsecond))
	rig.Must(io.Copy(io.Discard, resp.Body))
	require.NoError(t, resp.Body.Close())
	r := w.record(t)
	assert.Equal(t, []string{"m", "ada"}, []string{r.Model, r.Adapter})
	assert.Equal(t, recording.NameHash("ann"), r.Tenant)
	assert.Equal(t, recording.NameHash("s1"), r.Session)
	require.NotNil(t, r.TTFTMillis)
	assert.Equal(t, []float64{1002.5, 1002.5, 1.5, 2.25}, []float64{*r.TTFTMillis, r.E2EMillis, r.SLOTTFTMillis, r.SLOTPOTMillis})
}
