package transport_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nobody returns an address at which nothing listens.
func nobody() string {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}

func TestRetryOnAnotherEndpoint(t *testing.T) {
	for name, handle := range map[string]handler{
		"429": status(429), "500": status(500), "502": status(502), "503": status(503), "504": status(504), "529": status(529),
		"no header in time":            hangs(),
		"a header and nothing in time": hangs(""),
		"a long error in pieces": func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, piece := range []string{"event: err", "or\r\n", "data: {\"error\":{\"message\":\"" + strings.Repeat("no memory ", 100), "\"}}", "\r\n\r\n"} {
				_, _ = io.WriteString(w, piece)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
			return true
		},
		"breaks in its first event":   breaksOff("text/event-stream", "data: {\"choices\":[{\"del"),
		"an error as the first event": sse(": hello\n\ndata: {\"error\":{\"message\":\"no memory\"}}\n\n"),
		"breaks before the header":    breaksOff(""),
		"a header and then nothing":   sse(""),
		"breaks before the response": func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := startEngine(t, handle), startEngine(t, nil)
			patience := time.Minute // a busy machine must not be taken for a server that hangs
			if strings.HasSuffix(name, "in time") {
				patience = 100 * time.Millisecond
			}
			w := newWorld(t, transport.Config{FirstByteTimeout: patience, EnableEndpointHeader: true}, bad.URL, good.URL)
			resp, body := w.ok(t, post(t, chatPath, chatStream))
			assert.Equal(t, "b", resp.Header.Get(transport.EndpointHeader))
			assert.Contains(t, body, "upon")
			assert.EqualValues(t, 1, bad.requests.Load())
			assert.Equal(t, bad.lastBody(), good.lastBody())
			all := w.observer.all()
			require.Len(t, all, 2, "one lease an attempt")
			want := endpick.Failed
			if name == "429" {
				want = endpick.Refused
			}
			assert.Equal(t, want, all[0].Status)
			assert.Equal(t, endpick.Completed, all[1].Status)
			r := w.record(t)
			assert.Equal(t, 2, r.Attempts)
			assert.Equal(t, "b", r.Endpoint)
			assert.EqualValues(t, 1, w.t.Stats().Retries)
			w.idle(t)
		})
	}
}

// closing is a body that counts as open until closed.
type closing struct {
	io.ReadCloser
	once sync.Once
	open *atomic.Int32
}

func (c *closing) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.ReadCloser.Close()
}

// After an endpoint has refused two requests in a row, another one is asked.
// The client gets the better response: an answer, or the first refusal.
func TestARefusalIsCheckedElsewhere(t *testing.T) {
	bad := startEngine(t, status(403))
	const refused = `{"error":{"code":403}}`
	for _, tc := range []struct {
		name, other string
		second      int    // status of the second response
		body        string // "": the words
		endpoint    string
		attempts    int
	}{
		{"it serves", startEngine(t, nil).URL, 200, "", "b", 2},
		{"it refuses too", startEngine(t, status(400)).URL, 400, `{"error":{"code":400}}`, "b", 2},
		{"it fails", startEngine(t, status(503)).URL, 403, refused, "a", 2},
		{"it is full", startEngine(t, status(429)).URL, 403, refused, "a", 2},
		{"it can't be reached", nobody(), 403, refused, "a", 2},
		{"there is none", "", 403, refused, "a", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addresses := []string{bad.URL}
			if tc.other != "" {
				addresses = append(addresses, tc.other)
			}
			var open atomic.Int32
			own := &http.Transport{}
			defer own.CloseIdleConnections()
			w := newWorld(t, transport.Config{EnableEndpointHeader: true, Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
				resp, err := own.RoundTrip(r)
				if err == nil {
					open.Add(1)
					resp.Body = &closing{ReadCloser: resp.Body, open: &open}
				}
				return resp, err
			})}, addresses...)
			before := bad.requests.Load()
			_, body := w.gets(t, 403, post(t, chatPath, chatStream))
			assert.Equal(t, refused, body)
			resp, body := w.gets(t, tc.second, post(t, chatPath, chatStream))
			assert.Zero(t, open.Load(), "responses that nobody closes")
			assert.Equal(t, tc.endpoint, resp.Header.Get(transport.EndpointHeader))
			if tc.body != "" {
				assert.Equal(t, tc.body, body)
			} else {
				assert.Contains(t, body, "upon")
			}
			assert.EqualValues(t, 2, bad.requests.Load()-before)
			assert.EqualValues(t, tc.attempts-1, w.t.Stats().Retries)
			assert.Len(t, w.observer.all(), 1+tc.attempts)
			w.idle(t)
			w.mu.Lock()
			defer w.mu.Unlock()
			require.Len(t, w.records, 2)
			assert.Equal(t, tc.endpoint, w.records[1].Endpoint)
			assert.Equal(t, tc.second, w.records[1].HTTP)
			assert.Equal(t, tc.attempts, w.records[1].Attempts)
		})
	}
	t.Run("not what must not be sent twice", func(t *testing.T) {
		good := startEngine(t, nil)
		w := newWorld(t, transport.Config{}, bad.URL, good.URL)
		for range 5 {
			w.gets(t, 403, post(t, "/v1/some_order", `{"lora_name":"x"}`))
		}
		assert.Zero(t, good.requests.Load())
	})
	t.Run("not at another rank of the same server", func(t *testing.T) {
		before := bad.requests.Load()
		w := newWorld(t, transport.Config{}, bad.URL, bad.URL, startEngine(t, nil).URL)
		w.gets(t, 403, post(t, chatPath, chatStream))
		w.ok(t, post(t, chatPath, chatStream))
		assert.EqualValues(t, 2, bad.requests.Load()-before)
	})
	t.Run("who is contradicted is put out", func(t *testing.T) {
		good := startEngine(t, nil)
		w := newWorld(t, transport.Config{RetryBurst: 1, RetryShare: 1e-9}, bad.URL, good.URL) // which nobody draws on
		before := bad.requests.Load()
		for range 10 {
			w.do(t, post(t, chatPath, chatStream))
		}
		assert.EqualValues(t, 4, bad.requests.Load()-before, "one for the client and three that another has served")
		assert.Equal(t, 1, w.t.Stats().Unhealthy)
		assert.Zero(t, w.t.Stats().RetriesDenied)
	})
}

func TestTheLastFailureIsPassedOn(t *testing.T) {
	a, b := startEngine(t, status(503)), startEngine(t, status(429))
	t.Run("when there is no other endpoint", func(t *testing.T) {
		w := newWorld(t, transport.Config{}, a.URL, b.URL)
		_, body := w.gets(t, 429, post(t, chatPath, chatStream))
		assert.Equal(t, `{"error":{"code":429}}`, body)
		assert.Equal(t, 2, w.record(t).Attempts)
		w.idle(t)
	})
	t.Run("as an error if nothing was answered", func(t *testing.T) {
		w := newWorld(t, transport.Config{}, nobody(), nobody())
		_, _, err := w.do(t, post(t, chatPath, chatStream))
		var ue *transport.UpstreamError
		require.ErrorAs(t, err, &ue)
		assert.Equal(t, 2, ue.Attempts)
		assert.Equal(t, "b", ue.Endpoint)
		assert.Equal(t, 503, transport.StatusOf(err))
		assert.Equal(t, "failed", w.record(t).Status)
		w.idle(t)
	})
}

// Retries are paid by the requests: with a share of one half, every other one is retried.
// By default a hundred may happen at once, and five requests pay for another.
func TestRequestsPayForRetries(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		status  int
		share   float64
		burst   int
		retried []int // how many requests in a row, and after one that was not
		later   time.Duration
	}{
		{500, 0.5, 1, []int{1, 1, 1}, 0},
		{429, 0.5, 1, []int{1, 1, 1}, 0},
		{500, 0.25, 1, []int{1, 0, 0, 1}, 0},
		{500, 0, 0, []int{124, 13}, time.Second}, // the first finds 100 and the next 99.2, 98.4 …, 1.6, 0.8; then 11, 10.2 …, 1.4, 0.6
	} {
		var open atomic.Int32
		w := newWorldOf(t, transport.Config{MaxAttempts: 2, RetryShare: tc.share, RetryBurst: tc.burst, Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
			open.Add(1)
			resp, err := answered(tc.status, "", "{}")
			resp.Body = &closing{ReadCloser: resp.Body, open: &open}
			return resp, err
		})}, endpick.Config{Clock: func() time.Time { return now }}, "a", "b", "c")
		for _, n := range tc.retried {
			before := w.t.Stats()
			for i := 0; i < 200 && w.t.Stats().RetriesDenied == before.RetriesDenied; i++ {
				resp := rig.Must(w.t.RoundTrip(post(t, chatPath, chatStream)))
				assert.EqualValues(t, 1, open.Load(), "the response that another has replaced is closed")
				resp.Body.Close()
			}
			assert.EqualValues(t, n, w.t.Stats().Retries-before.Retries)
			assert.EqualValues(t, 1, w.t.Stats().RetriesDenied-before.RetriesDenied)
			now = now.Add(tc.later)
		}
	}
}

func TestACanceledRequestIsNotRetried(t *testing.T) {
	here := make(chan struct{})
	slow := startEngine(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
		here <- struct{}{}
		<-r.Context().Done()
		return true
	})
	w := newWorld(t, transport.Config{}, slow.URL, slow.URL)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-here; cancel() }()
	_, _, err := w.do(t, post(t, chatPath, chatStream).WithContext(ctx))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 499, transport.StatusOf(err))
	assert.NotErrorAs(t, err, new(*transport.UpstreamError), "no server is at fault")
	assert.EqualValues(t, 1, slow.requests.Load())
	assert.Equal(t, endpick.Canceled, w.outcome(t).Status)
	assert.Equal(t, "canceled", w.record(t).Status)
	w.idle(t)
}

// A request that is not inference is sent again only if no server can have begun with it: it
// runs on one server at most, whatever it names and however a server fails.
func TestOtherRequestsAreRetriedWithCare(t *testing.T) {
	breaks := breaksOff("")
	const chat, order = `{"model":"m","messages":[{"role":"user","content":"Hi!"}]}`, `{"model":"m","training_file":"x"}`
	mcp := func(tool string) string {
		return `{"model":"m","input":"Hi!","tools":[{"type":"function","name":"f"},{"type":"` + tool + `","server_url":"x"}]}`
	}
	for _, tc := range []struct {
		name, method, path, body string
		first                    handler // nil: connection refused
		want                     int     // 0: an error
	}{
		{"a chat", "POST", chatPath, chat, status(500), 200},
		{"a chat that breaks", "POST", chatPath, chat, breaks, 200},
		{"a chat without a model", "POST", chatPath, `{"messages":[{"role":"user","content":"Hi!"}]}`, breaks, 200},
		{"embeddings", "POST", "/v1/embeddings", `{"model":"m","input":"x"}`, breaks, 200},
		{"speech", "POST", "/v1/audio/speech", `{"model":"m","input":"x"}`, breaks, 200},
		{"a safe method", "GET", "/version", "", breaks, 200},
		{"what another server has stored", "GET", "/v1/responses/x", "", status(400), 200},
		{"an end to what another server has stored", "POST", "/v1/responses/x/cancel", "", status(404), 200},
		{"an end that fails", "DELETE", "/v1/responses/x", "", status(500), 500},
		{"more of what another server has stored", "POST", "/v1/responses", `{"model":"m","input":"x","previous_response_id":"x","store":true}`, status(404), 200},
		{"tools of the client", "POST", "/v1/responses", mcp("custom"), status(500), 200},
		{"tools of the engine", "POST", "/v1/responses", mcp("mcp"), status(500), 500},
		{"tools of the engine, which breaks", "POST", "/v1/responses", mcp("mcp"), breaks, 0},
		{"tools of Anthropic's clients", "POST", "/v1/messages", `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"a"},{"type":"bash_20250124","name":"bash"}]}`, status(500), 200},
		{"tools of Anthropic's", "POST", "/v1/messages", `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"code_execution_20250825","name":"c"}]}`, status(500), 500},
		{"an unknown order", "POST", "/v1/some_order", `{"lora_name":"x"}`, status(500), 500},
		{"an unknown order that names a model", "POST", "/v1/fine_tuning/jobs", order, status(500), 500},
		{"one that breaks", "POST", "/v1/fine_tuning/jobs", order, breaks, 0},
		{"one that is refused", "POST", "/v1/fine_tuning/jobs", order, status(404), 404},
		{"one that times out behind the server", "POST", "/v1/fine_tuning/jobs", order, status(504), 504},
		{"PUT", "PUT", "/v1/things/x", order, status(500), 500},
		{"DELETE", "DELETE", "/v1/things/x", "", breaks, 0},
		{"a chat by PUT", "PUT", chatPath, chat, status(500), 500},
		{"one that nobody saw", "POST", "/v1/fine_tuning/jobs", order, nil, 200},
		{"one that a server has no room for", "POST", "/v1/fine_tuning/jobs", order, status(429), 200},
		{"one that a proxy before the server has lost", "POST", "/v1/fine_tuning/jobs", order, status(503), 503},
	} {
		t.Run(tc.name, func(t *testing.T) {
			address, good := nobody(), startEngine(t, nil)
			if tc.first != nil {
				address = startEngine(t, tc.first).URL
			}
			w := newWorld(t, transport.Config{}, address, good.URL)
			req := rig.Must(http.NewRequest(tc.method, "http://gateway"+tc.path, strings.NewReader(tc.body)))
			resp, _, err := w.do(t, req)
			if tc.want == 0 {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				assert.Equal(t, tc.want, resp.StatusCode)
			}
			assert.Equal(t, tc.want == 200, good.requests.Load() == 1)
			w.idle(t)
		})
	}
}

// A host's exclusions stay its own: failed endpoints are not appended to its slice.
func TestTheHostsExclusionsStayItsOwn(t *testing.T) {
	list := make([]string, 1, 8)
	list[0] = "c"
	w := newWorld(t, transport.Config{Describe: func(_ *http.Request, _ []byte, req *endpick.Request) { req.Exclude = list }},
		startEngine(t, status(500)).URL, startEngine(t, nil).URL, startEngine(t, nil).URL)
	w.ok(t, post(t, chatPath, chatStream))
	assert.Equal(t, "b", w.record(t).Endpoint)
	assert.Equal(t, []string{"c", "", "", "", "", "", "", ""}, list[:cap(list)])

	w = newWorld(t, transport.Config{Describe: func(_ *http.Request, _ []byte, req *endpick.Request) { req.Avoid = []string{"a"} }},
		startEngine(t, nil).URL, startEngine(t, nil).URL)
	w.ok(t, post(t, chatPath, chatStream))
	assert.Equal(t, "b", w.record(t).Endpoint, "what it avoids is avoided")
}

// A host's deadline ends a request without another attempt, and is not the server's fault.
func TestADeadlineOfTheHost(t *testing.T) {
	for name, stuck := range map[string]handler{"before the first byte": hangs(), "in the middle": hangs("data: {}\n\n"), "after a word": hangs(delta(`"content":"word"`))} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, transport.Config{}, startEngine(t, stuck).URL, startEngine(t, stuck).URL)
			for range 4 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_, _, err := w.do(t, post(t, chatPath, chatStream).WithContext(ctx))
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, transport.ErrTimeout)
				assert.Equal(t, http.StatusGatewayTimeout, transport.StatusOf(err))
			}
			w.idle(t)
			assert.Zero(t, w.t.Stats().Retries)
			assert.Zero(t, w.t.Stats().Unhealthy)
			for _, o := range w.observer.all() {
				assert.Equal(t, endpick.Canceled, o.Status)
			}
		})
	}
}

// Servers whose models nobody has named: one that does not have a model is no worse for that, and
// requests for it go where it is. No request asks two ranks of one server.
func TestServersWithUnlikeModels(t *testing.T) {
	for says, refusal := range map[string]int{
		"There is no such model: ": 404, `{"error":{"code":400,"message":"model is not loaded"}}`: 400,
		`{"detail":"Unknown model: theirs"}`: 400, "could not find real modelID for ": 400,
		"model 'theirs' not found: ": 400, "model name=theirs is not running: ": 400,
	} {
		synctest.Test(t, func(t *testing.T) { unlikeModels(t, refusal, says) })
	}
}

func unlikeModels(t *testing.T, refusal int, says string) {
	has, small := map[string]string{"a": "ours", "c": "theirs"}, false
	sent := map[string]int{}
	adapt := func(_ *http.Request, _ []byte, req *endpick.Request) {
		if req.Model == "theirs, adapted" {
			req.Model, req.Adapter = "base", req.Model
		}
	}
	w := newWorldOf(t, transport.Config{Describe: adapt, Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
		body, _ := io.ReadAll(r.Body)
		sent[r.URL.Host]++
		switch {
		case strings.Contains(string(body), has[r.URL.Host]):
			return answered(200, "application/json", "{}")
		case small:
			return answered(500, "application/json", `{"error":"model requires more system memory (9 GiB) than is available (7 GiB)"}`)
		}
		return answered(refusal, "application/json", says+string(body))
	})}, endpick.Config{Endpoints: []endpick.Endpoint{
		{ID: "a", Address: "a", Ranked: true}, {ID: "b", Address: "a", Ranked: true, Rank: 1}, {ID: "c", Address: "c"},
	}})
	ask := func(status int, model string) {
		t.Helper()
		w.gets(t, status, post(t, completions, `{"model":"`+model+`","prompt":"x"}`))
	}
	for range 20 {
		ask(200, "theirs")
	}
	assert.Equal(t, map[string]int{"a": 2, "c": 20}, sent)
	for range 20 {
		ask(200, "ours")
		ask(200, "theirs")
	}
	assert.Zero(t, w.t.Stats().Unhealthy)
	assert.Equal(t, map[string]int{"a": 22, "c": 40}, sent)
	for range 20 {
		ask(200, "theirs, adapted")
	}
	assert.Equal(t, map[string]int{"a": 24, "c": 60}, sent)
	clear(sent)
	for range 20 { // again, later, and no client sees it
		time.Sleep(30 * time.Second)
		ask(200, "theirs")
		ask(200, "theirs")
	}
	assert.Equal(t, map[string]int{"a": 40, "c": 40}, sent, "each rank once")
	assert.Zero(t, w.t.Stats().Unhealthy)

	clear(sent)
	for i := range 1000 { // which nobody has
		ask(refusal, fmt.Sprint("invented", i))
	}
	assert.InDelta(t, 1000, sent["a"], 8)
	assert.LessOrEqual(t, sent["c"], 4+4)
	assert.Zero(t, w.t.Stats().Unhealthy)
	has["a"] = "m"
	time.Sleep(30 * time.Second)
	ask(200, "theirs") // it has been loaded meanwhile, or not

	clear(sent)
	has["a"], small = "ours", true
	w.limited(t, func(e *endpick.Endpoint) { e.Residents = []endpick.Resident{{Model: "theirs"}} })
	for range 20 {
		time.Sleep(time.Second)
		ask(200, "ours")
		ask(200, "theirs")
	}
	assert.Equal(t, map[string]int{"a": 22, "c": 20}, sent, "each rank was to load it once")
	assert.Zero(t, w.t.Stats().Unhealthy)
	w.idle(t)
}

// A server that has not got an API is no worse for others, and after a first request for it, which no client
// sees, such requests go elsewhere.
func TestServersWithUnlikeAPIs(t *testing.T) {
	for _, lacking := range []handler{status(404), status(405), status(501), says("application/json", `{"error":"Unexpected endpoint or method. (POST /v1/messages)"}`)} {
		refuses := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			return r.Method == "GET" && status(426)(w, r, body) || r.URL.Path != chatPath && lacking(w, r, body)
		})
		w := newWorld(t, transport.Config{}, refuses.URL, startEngine(t, nil).URL)
		for range 5 {
			for _, path := range []string{"/v1/messages", chatPath} {
				w.ok(t, post(t, path, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`))
			}
			w.ok(t, rig.Must(http.NewRequest("GET", "http://gateway/v1/responses", nil))) // a WebSocket
		}
		assert.EqualValues(t, 1+5+1, refuses.requests.Load())
		for range 2 { // with a prefix that a client may have invented, it is not remembered
			w.ok(t, post(t, "/x/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`))
		}
		assert.EqualValues(t, 1+5+1+2, refuses.requests.Load())
		assert.Zero(t, w.t.Stats().Unhealthy)
		w.idle(t)
	}
}

// What a client invents, or is too long for one server, changes nothing for others, whatever a server says when it refuses that.
func TestWhatClientsInventIsNotLacking(t *testing.T) {
	for _, odd := range []struct {
		path, body, says string
		status           int
	}{
		{chatPath, `{"model":"caf\u00e9"}`, `no model caf\u00e9`, 404},
		{"/v1/messages", `{"model":"/v1/messages"}`, "no model /v1/messages", 404},
		{chatPath, `{"model":"/v1/messages"}`, "no model /v1/messages", 404},
		{"/v1/responses", `{"model":"m","store":false,"previous_response_id":"resp_model m"}`, "Response with id 'resp_model m' not found.", 404},
		{"/model m/v1/messages", `{"model":"m"}`, "Cannot POST /model m/v1/messages", 404},
		{chatPath, `{"model":"long"}`, "This model's maximum context length is 4096 tokens.", 400},
		{chatPath, `{"model":"long"}`, "the request exceeds the available context size", 400}, // llama.cpp's
	} {
		picky := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			return string(body) == odd.body && r.URL.Path == odd.path && status(odd.status, `{"message":"`+odd.says+`"}`)(w, r, body)
		})
		other := startEngine(t, nil)
		w := newWorld(t, transport.Config{}, picky.URL, other.URL)
		ask := func(path, body string) { w.ok(t, post(t, strings.ReplaceAll(path, " ", "%20"), body)) }
		ask(odd.path, odd.body)
		for _, path := range []string{chatPath, "/v1/messages", "/v1/responses"} {
			ask(path, `{"model":"m","max_tokens":5,"store":false,"input":"hi","messages":[{"role":"user","content":"hi"}]}`)
		}
		assert.EqualValues(t, 1, other.requests.Load(), odd.says)
		w.idle(t)
	}
}

// One server lives beside hundreds that refuse connections: the first request finds it, and the
// next ones know.
func TestOneLivesBesideManyDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 400
		dials, wait := 0, time.Duration(0)
		base := rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "z" {
				dials++
				time.Sleep(wait)
				return nil, noDial
			}
			return answered(200, "application/json", "{}")
		})
		w := newWorld(t, transport.Config{Base: base})
		for i := range dead {
			w.add(t, fmt.Sprintf("a%d", i), fmt.Sprintf("a%d", i))
		}
		w.add(t, "z", "z")
		request := func() *http.Request { return post(t, completions, `{"model":"m","prompt":"x"}`) }
		w.ok(t, request())
		assert.Equal(t, dead, dials)
		dials = 0
		for range 100 {
			w.ok(t, request())
		}
		assert.Zero(t, dials, "it is known who is dead")
		for range 60 {
			time.Sleep(time.Second)
			w.ok(t, request())
		}
		t.Log(dials, "trials in a minute")

		wait = time.Second // in which others are due for a trial
		for i := range 5 {
			w.add(t, fmt.Sprintf("A%d", i), fmt.Sprintf("A%d", i))
		}
		w.ok(t, request())

		require.NoError(t, w.router.Remove("z"))
		dials, wait = 0, 0
		_, _, err := w.do(t, request())
		require.Error(t, err)
		assert.Equal(t, 3, dials, "if none lives, nobody asks all of them")

		never := rig.Must(transport.New(transport.Config{Router: w.router, Base: base, MaxAttempts: 1}))
		dials = 0
		require.Error(t, rig.Err(never.RoundTrip(request())))
		assert.Equal(t, 1, dials)
	})
}

// strict refuses a request for usage, in its own words.
func strict(code int, words string) handler {
	return func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		return bytes.Contains(body, []byte("stream_options")) && status(code, words)(w, nil, nil)
	}
}

// An engine that takes a request without the gateway takes it with the gateway, also if it refuses
// what the gateway adds; it is asked for that once.
func TestAnEngineThatRefusesTheRequestForUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		words  string
	}{
		"says why": {422, `{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}`},
		"does not": {400, `{"error":"Unexpected field"}`},
	} {
		t.Run(name, func(t *testing.T) {
			e, other := startEngine(t, strict(tc.status, tc.words)), startEngine(t, nil)
			w, reported := watched(t, transport.Config{MaxAttempts: 1}, e.URL, other.URL)
			for n := range 3 {
				_, body := w.ok(t, post(t, chatPath, chatStream))
				assert.Contains(t, body, "upon")
				assert.JSONEq(t, chatStream, e.lastBody())
				want := []string{"a served 200"}
				if n == 0 {
					want = []string{fmt.Sprint("a refused ", tc.status), "a served 200"}
				}
				assert.Equal(t, want, way(next(t, reported)))
			}
			assert.Zero(t, other.requests.Load())
			assert.Zero(t, w.t.Stats().Unhealthy)
			// A client's own wish is the client's own fault.
			for range 4 {
				w.gets(t, tc.status, post(t, chatPath, `{"stream_options":{"include_usage":true},`+chatStream[1:]))
			}
			assert.EqualValues(t, 8, e.requests.Load())
			assert.Zero(t, w.t.Stats().Unhealthy, "though no other was asked")
			w.idle(t)
		})
	}
}

// A refusal that has nothing to do with usage is the client's, and costs one request, once it is
// known that the engine takes such requests; one that names the field is always tried without.
func TestARefusalThatHasNothingToDoWithUsage(t *testing.T) {
	words := `{"error":"bad"}`
	mood := http.StatusOK
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		switch mood {
		case 422:
			return strict(mood, words)(w, r, body)
		case 499:
			return status(400, `{"error":"unknown parameter top_x"}`)(w, r, body)
		}
		return mood != 200 && status(mood)(w, r, body)
	})
	w := newWorld(t, transport.Config{}, e.URL)
	asks := func(status, requests int) {
		t.Helper()
		before := e.requests.Load()
		w.gets(t, status, post(t, chatPath, chatStream))
		assert.EqualValues(t, requests, e.requests.Load()-before, mood)
	}
	for _, tc := range []struct{ mood, status, requests int }{
		{400, 400, 1}, {499, 400, 2}, {499, 400, 2}, // not known yet
		{404, 404, 1}, {200, 200, 1}, {400, 400, 1}, {422, 422, 1}, {499, 400, 1},
	} {
		mood = tc.mood
		asks(tc.status, tc.requests)
	}
	mood, words = 422, `{"detail":"stream_options: unknown"}` // it was replaced by another engine
	asks(200, 2)
	asks(200, 1)
	w.idle(t)
}

// What a client says to change its connection to the gateway is not for the endpoint.
func TestUpgradesOfTheConnection(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{}, e.URL)
	for upgrade, want := range map[string]string{
		"h2c": "", "H2C": "", "TLS/1.0, HTTP/2.0": "", "h2c, websocket": "websocket", "websocket": "websocket", "echo/1": "echo/1",
	} {
		w.ok(t, post(t, chatPath, chatAtOnce, "Connection", "Upgrade, HTTP2-Settings", "Upgrade", upgrade, "HTTP2-Settings", "AAEAAEAA"))
		e.mu.Lock()
		assert.Equal(t, want, e.last.Header.Get("Upgrade"), upgrade)
		assert.Equal(t, want == "", e.last.Header.Get("Connection") == "", upgrade)
		assert.Empty(t, e.last.Header.Get("HTTP2-Settings"))
		e.mu.Unlock()
		assert.Equal(t, chatAtOnce, e.lastBody())
	}
	w.ok(t, post(t, chatPath, chatAtOnce, "Connection", "close"))
}
