package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	chatBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi!"}]}`
	events   = `data: {"choices":[{"delta":{"content":"Hello!"}}]}` + "\n\n" +
		`data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
		`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n" +
		"data: [DONE]\n\n"
)

var (
	streamHeader = http.Header{"Content-Type": {"text/event-stream"}}
	noDial       = &net.OpError{Op: "dial", Err: errors.New("refused")}
	errBroken    = errors.New("broken off")
)

type driven struct {
	*transport.Dispatcher
	router  *endpick.Router
	monitor *health.Monitor
	heard   *rig.Heard
	at      time.Time
}

// unhealthy is the number of endpoints that get less than their share.
func (w *driven) unhealthy() (n int) {
	for _, s := range w.monitor.Endpoints() {
		if s.State != health.Well {
			n++
		}
	}
	return n
}

// newDriven has endpoints a, b and c, preferred in that order.
func newDriven(config transport.Config) *driven {
	w := &driven{heard: &rig.Heard{Order: "abc"}, at: time.Unix(1000, 0)}
	w.router = rig.Must(endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: w.heard, Weight: 1}}},
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b", Ranked: true, Rank: 3}, {ID: "c"}},
		Clock:     func() time.Time { return w.at },
	}))
	w.monitor = rig.Must(health.New(health.Config{Router: w.router}))
	if config.Pass == nil {
		config.Pass = []string{"/"}
	}
	config.Router, config.Health = w.router, w.monitor
	w.Dispatcher = rig.Must(transport.NewDispatcher(config))
	return w
}

func (w *driven) read(body string) *transport.Call {
	return rig.Must(w.Read(transport.Incoming{Method: "POST", Path: chatPath, Body: []byte(body)}))
}

// start reads a request and routes it.
func (w *driven) start(t testing.TB, body string) (*transport.Call, *transport.Attempt) {
	call := w.read(body)
	return call, rig.Must(call.Route(t.Context()))
}

func (w *driven) idle(t testing.TB) {
	t.Helper()
	assert.Zero(t, w.router.Stats().OpenLeases)
	for _, e := range w.router.Endpoints() {
		assert.Zero(t, e.Candidate.InFlight, e.Candidate.Endpoint.ID)
	}
}

func TestAResponseIsMetered(t *testing.T) {
	w := newDriven(transport.Config{})
	call, a := w.start(t, chatBody)
	defer call.Close()
	assert.Equal(t, "a", a.Endpoint().ID)
	assert.Empty(t, a.Fallbacks)
	assert.Contains(t, string(bytes.Join(call.Body(), nil)), `"include_usage":true`)
	out := http.Header{}
	a.SetHeader(out)
	assert.Equal(t, http.Header{"Accept-Encoding": {"identity"}}, out)

	in := http.Header{"Content-Type": {"text/event-stream"}, "Content-Length": {"9"}}
	require.NoError(t, a.Header(200, in, nil))
	assert.Empty(t, in.Get("Content-Length"))
	w.at = w.at.Add(time.Second)
	var got []byte
	for _, piece := range strings.SplitAfter(events, "e") { // at arbitrary points
		got = a.Feed(got, []byte(piece))
	}
	got = rig.Must(a.End(got))
	assert.NotContains(t, string(got), "usage", "the client did not ask for it")
	assert.Contains(t, string(got), "Hello!")
	assert.Equal(t, "a completed", w.heard.Said())
	o := w.heard.Last().Outcome
	assert.Equal(t, []any{9, 2, true, 4}, []any{o.InputTokens, o.OutputTokens, o.HasCachedTokens, o.CachedTokens})
	assert.True(t, w.heard.Last().Token)
	w.idle(t)
}

// A response that goes on is not lost, however long nothing in it counts as a token.
func TestAResponseThatGoesOnIsNotLost(t *testing.T) {
	w := newDriven(transport.Config{})
	call, a := w.start(t, chatBody)
	defer call.Close()
	require.NoError(t, a.Header(200, http.Header{"Content-Type": {"text/event-stream"}}, nil))
	for range 4 {
		w.at = w.at.Add(w.router.LeaseTimeout() - time.Second)
		a.Feed(nil, []byte(": still there\n\n"))
		require.Zero(t, w.router.Sweep(w.at))
	}
	rig.Must(a.End(a.Feed(nil, []byte(events))))
	assert.Equal(t, "a completed", w.heard.Said())
	w.idle(t)
}

// How attempts end, and which endpoint is next. Each step is a call by the host: route,
// dial, break, a status, feed (part of the response), end, cut, again, no (not again),
// close, gone (the client).
func TestAttemptsEndOnce(t *testing.T) {
	for _, tc := range []struct{ name, steps, want string }{
		{"whole", "route 200 feed end", "a completed"},
		{"closed twice", "route 200 feed end close close", "a completed"},
		{"never answered", "route close", "a canceled"},
		{"closed in the middle", "route 200 part close", "a canceled"},
		{"closed after the end of the stream", "route 200 feed close", "a completed"},
		{"cut", "route 200 part cut close", "a failed"},
		{"broken off", "route 200 part break no close", "a failed"},
		{"the client has gone", "route gone break no close", "a canceled"},
		{"gone in the middle", "route 200 part gone break close", "a canceled"},
		{"unreachable, then served", "route dial again route 200 feed end", "a failed, b completed"},
		{"broken, then served", "route break again route 200 feed end", "a failed, b completed"},
		{"503, then served", "route 503 again route 200 feed end close", "a failed, b completed"},
		{"429, then served", "route 429 again route 200 feed end", "a refused, b completed"},
		{"begins with an error", "route first again route 200 feed end", "a failed, b completed"},
		{"all fail", "route 503 again route 503 again route 503 no close", "a failed, b failed, c failed"},
		{"nothing said of the first", "route route 200 feed end", "a failed, b completed"},
		{"400 is the client's", "route 400 no end close", "a refused"},
		{"another asked of a failure", "route 500 again no", "a failed"},
		{"end twice", "route 200 feed end end break", "a completed"},
		{"header twice", "route 200 503 feed end", "a completed"},
		{"served by another", "route by-c 200 feed end", "a failed, c completed"},
		{"served by the same", "route by-a 200 feed end", "a completed"},
		{"served by nobody known", "route by-x 200 feed end close", "a failed"},
		{"served by another, badly", "route by-b 503 close", "a failed, b failed"},
		{"served by another, which is closed", "route by-b close", "a failed, b canceled"},
		{"closed first", "close route close", "a canceled"},
		{"nothing has failed", "route no 200 no feed end", "a completed"},
		{"asked twice", "route 503 again no route 200 feed end", "a failed, b completed"},
		{"a header that comes too late", "route break 200 again route 200 feed end", "a failed, b completed"},
		{"served by another, after the header", "route 200 by-b feed end close", "a failed"},
		{"served by another, after the failure was told", "route break by-b close", "a failed, b canceled"},
		{"served by another, since it was full", "route 429 by-b 200 feed end", "a refused, b completed"},
		{"served by nobody known, and asked", "route by-x no", "a failed"},
		{"served by another, but the client has gone", "route gone by-b close", "a canceled"},
		{"ended without a header", "route end close", "a completed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newDriven(transport.Config{Fallbacks: 2})
			call := w.read(chatBody)
			ctx, gone := context.WithCancel(t.Context())
			defer gone()
			var a *transport.Attempt
			var err error
			for _, step := range strings.Fields(tc.steps) {
				switch step {
				case "route":
					a = rig.Must(call.Route(ctx))
				case "dial":
					require.ErrorIs(t, a.Fail(noDial), noDial)
				case "break":
					require.ErrorIs(t, a.Fail(errBroken), errBroken)
				case "200":
					require.NoError(t, a.Header(200, streamHeader.Clone(), []byte(events)))
				case "first":
					require.Error(t, a.Header(200, streamHeader.Clone(), []byte(`data: {"error":{"message":"no"}}`+"\n\n")))
				case "400", "429", "500", "503":
					err = a.Header(map[string]int{"400": 400, "429": 429, "500": 500, "503": 503}[step], http.Header{}, nil)
					if tc.name == "header twice" {
						require.NoError(t, err)
						break
					}
					var failed *transport.UpstreamError
					require.ErrorAs(t, err, &failed)
					assert.Equal(t, a.Endpoint().ID, failed.Endpoint)
					assert.Equal(t, "sorry", string(a.Feed(nil, []byte("sorry"))), "it may be passed on")
				case "part":
					a.Feed(nil, []byte(events[:60]))
				case "feed":
					a.Feed(nil, []byte(events))
				case "end":
					rig.Must(a.End(nil))
				case "cut":
					out, err := a.End(nil)
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
					assert.Equal(t, brokenOff, string(out))
				case "again":
					require.True(t, a.Again())
				case "no":
					require.False(t, a.Again())
				case "close":
					call.Close()
				case "gone":
					gone()
				default:
					id := strings.TrimPrefix(step, "by-")
					require.ErrorIs(t, a.ServedBy(id), map[string]error{"x": endpick.ErrUnknownEndpoint}[id])
				}
			}
			assert.Equal(t, tc.want, w.heard.Said())
			w.idle(t)
			call.Close()
			assert.Equal(t, tc.want, w.heard.Said())
		})
	}
}

func TestFallbacksAreInOrder(t *testing.T) {
	ids := func(endpoints []*endpick.Endpoint) (all string) {
		for _, e := range endpoints {
			all += e.ID
		}
		return all
	}
	for n, want := range map[int]string{0: "", 1: "c", 2: "ca", 5: "ca"} {
		w := newDriven(transport.Config{Fallbacks: n})
		w.heard.Order = "bca"
		call, a := w.start(t, chatBody)
		assert.Equal(t, want, ids(a.Fallbacks))
		out := http.Header{}
		a.SetHeader(out)
		assert.Equal(t, "3", out.Get("X-Data-Parallel-Rank"))
		call.Close()

		call = w.read(chatBody)
		var receipt endpick.Receipt
		call.Request.Receipt, call.Request.Exclude = &receipt, []string{"c"}
		a = rig.Must(call.Route(t.Context()))
		assert.Equal(t, strings.ReplaceAll(want, "c", ""), ids(a.Fallbacks)[:min(n, len(strings.ReplaceAll(want, "c", "")))])
		require.NoError(t, a.ServedBy("a"))
		assert.Len(t, receipt.Verdicts, 2, "what the host excludes is no candidate, and the receipt is the host's")
		assert.Equal(t, "b", receipt.Verdicts[receipt.Chosen].Candidate.Endpoint.ID, "of the decision, not of what a proxy has done")
		call.Close()

		call = w.read(chatBody)
		call.Request.Avoid = []string{"c"}
		assert.Equal(t, map[int]string{0: "", 1: "a", 2: "ac", 5: "ac"}[n], ids(rig.Must(call.Route(t.Context())).Fallbacks), "what is avoided comes last")
		call.Close()

		call = rig.Must(w.Read(transport.Incoming{Method: "POST", Path: "/v1/responses", Body: []byte(`{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`)}))
		assert.Empty(t, rig.Must(call.Route(t.Context())).Fallbacks, "the second might do it again")
		call.Close()
		w.idle(t)
	}

	w := newDriven(transport.Config{Fallbacks: 5})
	require.NoError(t, w.router.SetPolicy(endpick.Policy{Filters: []endpick.Filter{notA{}}, Scorers: []endpick.Weighted{{Scorer: w.heard, Weight: 1}}}))
	call, a := w.start(t, chatBody)
	assert.Equal(t, "bca", a.Endpoint().ID+ids(a.Fallbacks), "an endpoint that a filter removed can still serve if all others fail")
	call.Close()
	w.idle(t)
}

// notA filters a out.
type notA struct{}

func (notA) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return c.Endpoint.ID != "a" })
}

// A host that routes again without sending, because the first endpoint fails, does not
// make it look as if no endpoint could have served the request: that is still open
// when the client leaves.
func TestWhatNobodyHasServedIsUndecided(t *testing.T) {
	w := newDriven(transport.Config{})
	for range 20 {
		call := w.read(chatBody)
		require.Error(t, rig.Must(call.Route(t.Context())).Header(503, http.Header{}, nil))
		require.Equal(t, "b", rig.Must(call.Route(t.Context())).Endpoint().ID)
		call.Close() // the client has left
	}
	assert.Zero(t, w.unhealthy())
	for range 5 {
		call := w.read(chatBody)
		require.Error(t, rig.Must(call.Route(t.Context())).Header(503, http.Header{}, nil))
		call.Close()
	}
	assert.Equal(t, 1, w.unhealthy(), "there it was the only one that was asked")
	w.idle(t)
}

func TestMaxItems(t *testing.T) {
	_, err := newDriven(transport.Config{MaxItems: 1}).read(`{"model":"m","messages":[{},{}]}`).Route(t.Context())
	assert.ErrorAs(t, err, new(*endpick.RequestError))
}

func TestWhatCannotBeRead(t *testing.T) {
	w := newDriven(transport.Config{Pass: []string{"/x"}})
	for _, tc := range []struct {
		path, body string
		status     int
		want       string
	}{
		{chatPath, `{"model":7}`, 400, "invalid_request_error"},
		{"/v1/messages", `{"model":7}`, 400, `{"type":"error","error":{"type":"invalid_request_error"`},
		{chatPath, `{"model":"m"`, 400, "is not a JSON object"},
		{"/sleep", ``, 404, "nothing here"},
		{"/v2/unheard-of", ``, 404, "nothing here"},
	} {
		_, err := w.Read(transport.Incoming{Method: "POST", Path: tc.path, Body: []byte(tc.body)})
		require.Error(t, err)
		status, header, body := transport.ErrorResponse(tc.path, err)
		assert.Equal(t, tc.status, status)
		assert.Equal(t, "application/json", header.Get("Content-Type"))
		assert.Contains(t, string(body), tc.want)
	}
	call := w.read(chatBody)
	call.Request.Tenant = strings.Repeat("x", 300)
	require.ErrorAs(t, rig.Err(call.Route(t.Context())), new(*endpick.RequestError))
	call.Close()
	call = w.read(chatBody)
	call.Request.Model = "other"
	require.NoError(t, w.router.Update(endpick.Endpoint{ID: "a", Models: []string{"m"}}))
	require.NoError(t, w.router.Remove("b"))
	require.NoError(t, w.router.Remove("c"))
	require.ErrorAs(t, rig.Err(call.Route(t.Context())), new(*endpick.NoEndpointError))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, rig.Err(call.Route(gone)), context.Canceled)
	w.idle(t)
}

func TestARequestThatWasAnsweredGoesNowhereElse(t *testing.T) {
	w := newDriven(transport.Config{})
	call, a := w.start(t, strings.Replace(chatBody, "Hi!", strings.Repeat("Hi! ", 100), 1))
	require.NotEmpty(t, call.Body())
	require.NotEmpty(t, call.Request.Blocks)
	require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
	assert.Nil(t, call.Body(), "prompts are not kept while the response streams")
	assert.Nil(t, call.Request.Blocks, "nor is what stands for them")
	require.Error(t, rig.Err(call.Route(t.Context())))
	assert.False(t, a.Again())
	call.Close()
	assert.Equal(t, "a canceled", w.heard.Said())
}

// A Reader with a buffer of any size returns the same as Feed and End, and ends the attempt as
// they do.
func TestReader(t *testing.T) {
	whole := strings.ReplaceAll(events, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`+"\n\n", "")
	for _, tc := range []struct {
		name  string
		body  func() io.Reader
		want  string
		err   error
		ended string
	}{
		{"whole", func() io.Reader { return strings.NewReader(events) }, whole, nil, "a completed"},
		{"a byte at a time", func() io.Reader { return iotest.OneByteReader(strings.NewReader(events)) }, whole, nil, "a completed"},
		{"the end with the last bytes", func() io.Reader { return iotest.DataErrReader(strings.NewReader(events)) }, whole, nil, "a completed"},
		{"cut", func() io.Reader { return strings.NewReader(events[:60]) }, events[:52] + brokenOff, io.ErrUnexpectedEOF, "a failed"},
		{"broken off", func() io.Reader { return io.MultiReader(strings.NewReader(events[:60]), iotest.ErrReader(errBroken)) }, events[:52] + brokenOff, errBroken, "a failed"},
	} {
		for _, size := range []int{1, 7, 4096} {
			w := newDriven(transport.Config{})
			call, a := w.start(t, chatBody)
			require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
			body := a.Reader(io.NopCloser(tc.body()))
			n, err := body.Read(nil)
			assert.Zero(t, n)
			require.NoError(t, err)
			var got []byte
			for p := make([]byte, size); err == nil; {
				n, err = body.Read(p)
				got = append(got, p[:n]...)
			}
			assert.Equal(t, tc.want, string(got), tc.name)
			if tc.err == nil {
				assert.Equal(t, io.EOF, err)
			} else {
				require.ErrorIs(t, err, tc.err)
			}
			assert.Equal(t, tc.ended, w.heard.Said(), tc.name)
			body.Close()
			call.Close()
			w.idle(t)
		}
	}
}

func TestPackedBodies(t *testing.T) {
	w := newDriven(transport.Config{MaxBodyBytes: 1 << 20})
	read := func(body string) (*transport.Call, error) {
		return w.Read(transport.Incoming{Method: "POST", Path: chatPath, Header: http.Header{"Content-Encoding": {"gzip"}}, Body: []byte(body)})
	}
	call := rig.Must(read(zipped(chatBody)))
	defer call.Close()
	assert.Equal(t, "m", call.Request.Model)
	out := http.Header{"Content-Encoding": {"gzip"}}
	rig.Must(call.Route(t.Context())).SetHeader(out)
	assert.NotContains(t, out, "Content-Encoding")
	assert.Contains(t, string(bytes.Join(call.Body(), nil)), `"Hi!"`)

	for want, body := range map[string]string{
		"400 .*, or is not in its Content-Encoding": "no gzip",
		"413 .*longer than":                         zipped(strings.Repeat(" ", 512<<10)), // a bomb: packed to a thousandth of that
	} {
		_, err := read(body)
		got, _, text := transport.ErrorResponse(chatPath, err)
		assert.Regexp(t, want, fmt.Sprint(got, " ", string(text)), "%v", err)
	}
	full, err := w.Read(transport.Incoming{Method: "POST", Path: chatPath, Body: []byte(chatBody + strings.Repeat(" ", 1<<20-len(chatBody)))})
	require.NoError(t, err, "as long as the limit")
	full.Close()
	_, err = read(strings.Repeat(" ", 1<<20+1))
	require.ErrorAs(t, err, new(*transport.BodyError))
}

// Every method may be called from any goroutine at any time; a request is
// accounted for once.
func TestManyGoroutines(t *testing.T) {
	w := newDriven(transport.Config{Fallbacks: 1, RetryBurst: 1 << 20})
	var all sync.WaitGroup
	for range 50 {
		call, old := w.start(t, chatBody)
		a := rig.Must(call.Route(t.Context()))
		for _, f := range []func(){
			func() { old.ServedBy("c"); old.Header(200, streamHeader.Clone(), nil) },
			func() { a.Header(200, streamHeader.Clone(), nil) },
			func() { a.Feed(nil, []byte(events[:100])) },
			func() { a.Fail(errBroken) },
			func() { a.Again() },
			func() { a.Endpoint(); call.Body() },
			func() { a.ServedBy("b") },
			func() { call.Close() },
		} {
			all.Go(f)
		}
		all.Wait()
		call.Close()
	}
	w.idle(t)
}

// A request without a model is repeated only if its method makes that safe.
func TestMethodsThatMayBeRepeated(t *testing.T) {
	for method, again := range map[string]bool{
		"GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "": true,
		"POST": false, "PUT": false, "PATCH": false, "DELETE": false, "get": false,
	} {
		call := rig.Must(newDriven(transport.Config{}).Read(transport.Incoming{Method: method, Path: "/v1/other"}))
		a := rig.Must(call.Route(t.Context()))
		require.Error(t, a.Header(503, http.Header{}, nil))
		assert.Equal(t, again, a.Again(), method)
		call.Close()
	}
}

// Health shows why an endpoint has failed its latest request, even after the first byte.
func TestWhatBreaksOffIsShown(t *testing.T) {
	w := newDriven(transport.Config{})
	a := rig.Must(w.read(chatBody).Route(t.Context()))
	require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
	a.Feed(nil, []byte(events[:60]))
	require.ErrorIs(t, a.Fail(errBroken), errBroken)
	assert.ErrorIs(t, w.monitor.Endpoints()[0].Err, errBroken)
}

// A prompt is read and cut into blocks, by its token IDs, once, however many endpoints are asked.
func TestPromptsAreReadOnce(t *testing.T) {
	asked := 0
	w := newDriven(transport.Config{Tokens: func(_ context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
		asked++
		assert.Equal(t, []string{"m", chatPath, chatBody}, []string{req.Model, path, string(body)})
		return make([]uint32, 40), 0
	}})
	call := w.read(chatBody)
	call.Request.Receipt = new(endpick.Receipt)
	defer call.Close()
	for range 2 {
		require.Error(t, rig.Must(call.Route(t.Context())).Header(503, http.Header{}, nil))
	}
	assert.Equal(t, []int{40, 40}, []int{call.Request.InputTokens, call.Request.Receipt.InputTokens})
	rig.Must(call.Route(t.Context()))
	assert.Equal(t, 1, asked)
}

// If only one endpoint refuses, the fault is its own: after the second refusal another
// is asked, and if that one serves the requests the first is put out.
func TestRefusalsOfOneEndpoint(t *testing.T) {
	w := newDriven(transport.Config{})
	var again []bool
	for range 7 {
		call, a := w.start(t, chatBody)
		if a.Endpoint().ID == "a" {
			require.Error(t, a.Header(400, http.Header{}, nil))
			again = append(again, a.Again())
			if again[len(again)-1] {
				a = rig.Must(call.Route(t.Context()))
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
	w := newDriven(transport.Config{})
	call, a := w.start(t, chatBody)
	require.Error(t, a.Fail(noDial))
	require.True(t, a.Again())
	w.serve(t, rig.Must(call.Route(t.Context())))
	w.heard.Order, w.at = "bca", w.at.Add(time.Minute)
	once := rig.Must(w.Read(transport.Incoming{Method: "POST", Path: "/v1/responses", Body: []byte(`{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`)}))
	defer once.Close()
	assert.Equal(t, "b", rig.Must(once.Route(t.Context())).Endpoint().ID)
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
			w := newDriven(transport.Config{})
			call, a := w.start(t, tc.body)
			defer call.Close()
			require.NoError(t, a.Header(tc.status, streamHeader, nil))
			if tc.unread {
				a.Unread()
			}
			a.Feed(nil, nil)
			_, err := a.End(nil)
			assert.Equal(t, tc.said == "a failed", errors.Is(err, io.ErrUnexpectedEOF))
			assert.Equal(t, tc.said, w.heard.Said())
			w.idle(t)
		})
	}
}

// A response from an endpoint that was removed meanwhile belongs to no endpoint's
// accounts, and the client gets it as from any other.
func TestServedByWhoIsGone(t *testing.T) {
	w := newDriven(transport.Config{Fallbacks: 2})
	call, a := w.start(t, chatBody)
	require.NoError(t, w.router.Remove("b"))
	require.ErrorIs(t, a.ServedBy("b"), endpick.ErrUnknownEndpoint)
	header := http.Header{"Content-Type": {"text/event-stream"}, "Content-Length": {fmt.Sprint(len(events))}}
	require.NoError(t, a.Header(200, header, nil))
	assert.Empty(t, header.Get("Content-Length"))
	out := a.Feed(nil, []byte(events[:100]))
	out = a.Feed(out, []byte(events[100:]))
	out = rig.Must(a.End(out))
	assert.NotContains(t, string(out), "usage")
	assert.Contains(t, string(out), "[DONE]")
	call.Close()
	w.idle(t)
	assert.Equal(t, "a failed", w.heard.Said())
}

// Who serves a moved request takes what it asks for; whether the endpoint that it has left would, nobody knows.
func TestServedByWhoTakesIt(t *testing.T) {
	w := newDriven(transport.Config{})
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
	rig.Must(a.End(nil))
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
		w := newDriven(transport.Config{})
		for range 8 {
			w.serve(t, rig.Must(w.read(chatBody).Route(t.Context())))
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
				call := w.read(chatBody)
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
		next := rig.Must(w.read(chatBody).Route(t.Context()))
		assert.Equal(t, "b", next.Endpoint().ID)
		w.serve(t, next)
		for _, a := range waiting {
			assert.Equal(t, "a", a.Endpoint().ID)
			w.serve(t, a)
		}
		w.at = w.at.Add(time.Minute)
		assert.Equal(t, "a", rig.Must(w.read(chatBody).Route(t.Context())).Endpoint().ID, "any byte brings it back")
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
		streaming := rig.Must(w.read(chatBody).Route(t.Context()))
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

// The latency of responses that do not stream says nothing of streams, and little of those with other limits.
func TestStreamsHaveAPatienceOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(transport.Config{})
		for range 20 {
			a := rig.Must(w.read(strings.Replace(chatBody, `"stream":true,`, "", 1)).Route(t.Context()))
			require.NoError(t, a.Header(200, http.Header{"Content-Type": {"application/json"}}, nil))
			a.Feed(nil, []byte(`{"choices":[]}`))
			rig.Must(a.End(nil))
		}
		w.asked(t, 3)
		assert.Zero(t, w.unhealthyAfter(time.Minute))
		for range 3 {
			rig.Must(w.read(strings.Replace(chatBody, `"stream":true,`, `"max_tokens":1000,`, 1)).Route(t.Context()))
		}
		assert.Zero(t, w.unhealthyAfter(49*time.Second), "they may be longer")
		assert.Equal(t, 1, w.unhealthyAfter(2*time.Second))
	})
}

// The longest waits are known: a request that has waited less than twice as long is not
// overdue.
func TestPatienceIsThatOfTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDriven(transport.Config{})
		for range 8 {
			a := rig.Must(w.read(chatBody).Route(t.Context()))
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
