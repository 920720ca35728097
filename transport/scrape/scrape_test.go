package scrape_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/scrape"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// one takes the only error that was reported.
func one(t testing.TB, list []error) error {
	t.Helper()
	require.Len(t, list, 1)
	return list[0]
}

// newPoller is a poller of a router with these endpoints, whose servers at plays.
func newPoller(config scrape.Config, at http.RoundTripper, endpoints ...endpick.Endpoint) (*endpick.Router, *scrape.Poller, *rig.List[error]) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints}))
	errs := &rig.List[error]{}
	config.Router, config.Client, config.OnError = router, &http.Client{Transport: at}, errs.Add
	return router, rig.Must(scrape.New(config)), errs
}

func candidates(r *endpick.Router) map[string]endpick.Candidate {
	m := map[string]endpick.Candidate{}
	for _, s := range r.Endpoints() {
		m[s.Candidate.Endpoint.ID] = s.Candidate
	}
	return m
}

func load(waiting, running int, kv float64) string {
	return fmt.Sprintf("vllm:num_requests_waiting %d\nvllm:num_requests_running %d\nvllm:kv_cache_usage_perc %g\n", waiting, running, kv)
}

const allSignals = endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal

func TestConfig(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{}))
	for field, c := range map[string]scrape.Config{
		"Router": {}, "Interval": {Router: router, Interval: -1}, "Timeout": {Router: router, Timeout: -1}, "MaxBytes": {Router: router, MaxBytes: -1},
	} {
		assert.Equal(t, "scrape.Config."+field, rig.Field(scrape.New(c)))
		inspector := scrape.InspectorConfig{Router: c.Router, Interval: c.Interval, Timeout: c.Timeout, MaxBytes: c.MaxBytes}
		assert.Regexp(t, `^scrape\..*Config\.`+field+"$", rig.Field(scrape.NewInspector(inspector)))
	}
}

// The Snapshot is taken when the question is sent: a request that is routed while
// the engine answers counts once, whether or not the report includes it.
func TestMarkIsTakenWhenAsking(t *testing.T) {
	for name, running := range map[string]int{"before the request came": 1, "after it came": 2} {
		e := engines{}
		router, p, errs := newPoller(scrape.Config{}, e, endpick.Endpoint{ID: "b", Address: "a"}, endpick.Endpoint{ID: "a", Address: "a"})
		before := rig.Must(router.Route(endpick.Request{Exclude: []string{"b"}}))
		var during endpick.Lease
		e["a"] = func(r *http.Request) (*http.Response, error) {
			during = rig.Must(router.Route(endpick.Request{Exclude: []string{"b"}}))
			return says(load(0, running, 0.1))(r)
		}
		p.Poll(t.Context())
		assert.Empty(t, errs.Take())
		c := candidates(router)["a"]
		assert.Equal(t, 2.0, c.Waiting+c.Running, "the engine counts %s", name)
		before.Done(endpick.Outcome{})
		during.Done(endpick.Outcome{})
		c = candidates(router)["a"]
		assert.Zero(t, c.Waiting+c.Running, "the engine counts %s", name)
	}
}

// Engines write their page every some steps, and broken ones never.
func TestAPageThatStandsStill(t *testing.T) {
	router, p, _ := newPoller(scrape.Config{}, engines{"a": says(load(0, 3, 0.9))}, endpick.Endpoint{ID: "a", Address: "a"})
	for i := range 5 {
		p.Poll(t.Context())
		c := candidates(router)["a"]
		assert.Equal(t, float64(3+i), c.Waiting+c.Running)
		rig.Must(router.Route(endpick.Request{}))
	}
}

// An engine that sleeps gets nothing while another is awake, however busy that is.
func TestWhoSleepsGetsNothing(t *testing.T) {
	awake, asleep := says(load(9, 90, 0.9)), says(load(0, 0, 0)+"vllm:engine_sleep_state{sleep_state=\"discard_all\"} 1\n")
	for _, tc := range []struct {
		a, b func(*http.Request) (*http.Response, error)
		want string
	}{{asleep, awake, "b"}, {asleep, asleep, "ab"}, {awake, asleep, "a"}, {awake, awake, "ab"}} {
		router, p, _ := newPoller(scrape.Config{}, engines{"a": tc.a, "b": tc.b}, endpick.Endpoint{ID: "a", Address: "a"}, endpick.Endpoint{ID: "b", Address: "b"})
		p.Poll(t.Context())
		var to [2]bool
		for range 40 {
			to[rig.Must(router.Route(endpick.Request{})).Endpoint().ID[0]-'a'] = true
		}
		assert.Equal(t, [2]bool{strings.Contains(tc.want, "a"), strings.Contains(tc.want, "b")}, to)
	}
}

// What an engine answers voids what was known of it, even a page that can't be read.
func TestGarbageCostsTheSignalAndNothingElse(t *testing.T) {
	e := engines{"good": func(r *http.Request) (*http.Response, error) {
		assert.Equal(t, "http://good/metrics", r.URL.String())
		return says(load(2, 4, 0.2))(r)
	}}
	router, p, errs := newPoller(scrape.Config{MaxBytes: 1000, Timeout: time.Minute}, e,
		endpick.Endpoint{ID: "bad", Address: "http://bad"}, endpick.Endpoint{ID: "good", Address: "h2c://good"})
	badLoad, panicked := errors.New("an endpick.LoadError"), errors.New("a panic")
	elsewhere := func(path string) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == path {
				return says(load(1, 2, 0.3))(r)
			}
			return says("[]")(r)
		}
	}
	for name, tc := range map[string]struct {
		engine   func(*http.Request) (*http.Response, error)
		want     error
		reported endpick.Signals
	}{
		"garbage":            {says("\x00\x01 }{"), scrape.ErrFormat, 0},
		"a web page":         {says("<html>"), scrape.ErrFormat, 0},
		"other metrics":      {says("up 1\n"), scrape.ErrNoSignal, 0},
		"too long":           {says(strings.Repeat("# x\n", 1000)), scrape.ErrTooLong, 0},
		"no such page":       {new(site).RoundTrip, scrape.StatusError(404), 0},
		"a page that panics": {panics, panicked, 0},
		"another protocol": {func(r *http.Request) (*http.Response, error) {
			resp, err := panics(r)
			resp.StatusCode = 101 // nothing ends its body
			return resp, err
		}, scrape.StatusError(101), 0},
		"a negative queue":   {says(load(-1, 3, 0.4)), badLoad, endpick.RunningSignal | endpick.KVUsageSignal},
		"usage above one":    {says(load(1, 3, 42)), badLoad, endpick.RunningSignal | endpick.WaitingSignal},
		"not a number":       {says(strings.Replace(load(1, 3, 0.5), "0.5", "NaN", 1)), badLoad, endpick.RunningSignal | endpick.WaitingSignal},
		"all that there was": {says(load(1, 2, 0.3)), nil, allSignals},
		"trtllm-serve":       {elsewhere("/prometheus/metrics"), nil, allSignals},
	} {
		t.Run(name, func(t *testing.T) {
			e["bad"] = says(load(7, 3, 0.4))
			p.Poll(context.Background())
			require.Empty(t, errs.Take())
			e["bad"] = tc.engine
			p.Poll(context.Background())
			list := errs.Take()
			if tc.want == nil {
				require.Empty(t, list)
			} else {
				var err *scrape.Error
				require.ErrorAs(t, one(t, list), &err)
				assert.Equal(t, "bad", err.Endpoint)
				switch tc.want {
				case badLoad:
					assert.ErrorAs(t, err, new(*endpick.LoadError))
				case panicked:
					assert.ErrorContains(t, err, "panic: a body")
				default:
					assert.ErrorIs(t, err, tc.want)
				}
			}
			c := candidates(router)
			assert.Equal(t, tc.reported, c["bad"].Reported)
			assert.Equal(t, allSignals, c["good"].Reported)
			assert.Equal(t, []float64{2, 4, 0.2}, []float64{c["good"].Waiting, c["good"].Running, c["good"].KVUsage})
			l, err := router.Route(endpick.Request{Exclude: []string{"good"}})
			require.NoError(t, err, "it still gets requests")
			l.Done(endpick.Outcome{})
		})
	}
	e["bad"] = elsewhere("/prometheus/metrics")
	p.Poll(t.Context())
	e["bad"] = elsewhere("/metrics") // another engine, in its place
	p.Poll(t.Context())
	p.Poll(t.Context())
	assert.Len(t, errs.Take(), 1)
	assert.Equal(t, allSignals, candidates(router)["bad"].Reported)
}

// engines is an http.RoundTripper to servers by name: time in a synctest bubble
// advances only if no goroutine waits for a socket.
type engines map[string]func(*http.Request) (*http.Response, error)

func (e engines) RoundTrip(r *http.Request) (*http.Response, error) { return e[r.URL.Host](r) }

// says is an engine with one page.
func says(page string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) { return answer(r, strings.NewReader(page)), nil }
}

func answer(r *http.Request, body io.Reader) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body), Request: r}
}

// silent is an engine that accepts the question and does not answer.
func silent(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// panics is an engine whose page panics when it is read.
func panics(r *http.Request) (*http.Response, error) {
	return answer(r, rig.Reader(func([]byte) (int, error) { panic("a body") })), nil
}

// stalls is an engine that sends headers and the first bytes of a page, and then nothing.
func stalls(page string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		rest := rig.Reader(func([]byte) (int, error) {
			<-r.Context().Done()
			return 0, r.Context().Err()
		})
		return answer(r, io.MultiReader(strings.NewReader(page), rest)), nil
	}
}

func TestAnEngineThatIsSilentKeepsItsReport(t *testing.T) {
	for name, trouble := range map[string]func(*http.Request) (*http.Response, error){
		"silent":              silent,
		"stops amid its page": stalls("vllm:num_requests_waiting 1\nvllm:num_req"),
		"has hardly begun":    stalls(""),
		"cannot be reached":   func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		"its client panics":   func(*http.Request) (*http.Response, error) { panic("a bug") },
		"answers a bit late":  func(r *http.Request) (*http.Response, error) { time.Sleep(2001 * time.Millisecond); return silent(r) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := engines{"a": says(load(7, 3, 0.4))}
				router, p, errs := newPoller(scrape.Config{Timeout: 2 * time.Second}, e, endpick.Endpoint{ID: "a", Address: "http://a"})
				p.Poll(t.Context())
				require.Empty(t, errs.Take())
				e["a"] = trouble
				p.Poll(t.Context())
				require.Len(t, errs.Take(), 1)
				assert.Equal(t, 7.0, candidates(router)["a"].Waiting, "until it is too old for the router")
				assert.Equal(t, allSignals, candidates(router)["a"].Reported)
				time.Sleep(2 * time.Minute)
				assert.Zero(t, candidates(router)["a"].Reported)
			})
		})
	}
}

// A server that has not answered is not asked again, not even by Poll, which does not wait for it. By
// default, it has five seconds.
func TestPollBesideABusyPoll(t *testing.T) {
	for kind, most := range map[string]time.Duration{"poller": 0, "inspector": time.Minute, "hasty inspector": 0} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			e := engines{"hangs": func(r *http.Request) (*http.Response, error) {
				asked.Add(1)
				return silent(r)
			}}
			at := endpick.Endpoint{ID: "a", Address: "hangs"}
			_, p, _ := newPoller(scrape.Config{Timeout: most}, e, at)
			poll := p.Poll
			if kind != "poller" {
				_, s, _ := newInspector(scrape.InspectorConfig{Timeout: most}, e, at)
				poll = s.Poll
			}
			begin := time.Now()
			var first sync.WaitGroup
			first.Go(func() { poll(t.Context()) })
			synctest.Wait()
			poll(t.Context())
			assert.Zero(t, time.Since(begin), kind)
			assert.EqualValues(t, 1, asked.Load(), kind)
			first.Wait()
			assert.Equal(t, cmp.Or(most, 5*time.Second), time.Since(begin), kind)
			poll(t.Context())
			assert.EqualValues(t, 2, asked.Load(), kind)
		})
	}
}

// The poller runs on its own goroutines, where a panic would end the process.
// It costs one report.
func TestPanicsCostAReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engines{"a": says("garbage"), "b": says(load(1, 2, 0.3)), "c": panics}
		router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{
			{ID: "a", Address: "http://a"}, {ID: "b", Address: "http://b"}, {ID: "c", Address: "http://c"}, {ID: "d"}, {ID: "unpolled"},
		}}))
		var reports rig.List[error]
		p := rig.Must(scrape.New(scrape.Config{
			Router: router, Client: &http.Client{Transport: e},
			URL: func(e *endpick.Endpoint) string {
				if e.ID == "d" {
					panic("a URL")
				}
				return e.Address // empty: it is not polled
			},
			OnError: func(err error) {
				reports.Add(err)
				panic("a logger")
			},
		}))
		p.Poll(t.Context())
		assert.Equal(t, 1.0, candidates(router)["b"].Waiting)
		list := reports.Take()
		require.Len(t, list, 3)
		text := fmt.Sprint(list)
		for _, want := range []string{`endpoint "a" at http://a: scrape: not in the`, `endpoint "c" at http://c: scrape: panic: a body`, `endpoint "d" at : scrape: panic: a URL`} {
			assert.Contains(t, text, want)
		}
		assert.EqualValues(t, 3+2, p.Panics(), "those of the logger, the body and the URL")
		e["a"] = says(load(9, 0, 0))
		p.Poll(t.Context())
		assert.Equal(t, 9.0, candidates(router)["a"].Waiting, "and it goes on")
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int64
	victim := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer victim.Close()
	s := httptest.NewServer(http.RedirectHandler(victim.URL, http.StatusFound))
	defer s.Close()
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Address: s.URL}}}))
	var errs rig.List[error]
	rig.Must(scrape.New(scrape.Config{Router: router, OnError: errs.Add})).Poll(t.Context())
	assert.Zero(t, asked.Load())
	assert.ErrorIs(t, one(t, errs.Take()), scrape.StatusError(http.StatusFound))
}

// A poller beside a gateway.
func ExamplePoller() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "vllm:num_requests_waiting 7\nvllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.42\n")
	}))
	defer engine.Close()
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}}})
	if err != nil {
		panic(err)
	}
	poller, err := scrape.New(scrape.Config{Router: router, OnError: func(err error) { fmt.Println(err) }})
	if err != nil {
		panic(err)
	}
	poller.Poll(context.Background()) // a gateway calls go poller.Run(ctx)
	c := router.Endpoints()[0].Candidate
	fmt.Println(c.Waiting, "wait,", c.Running, "run, KV cache", c.KVUsage)
	// Output: 7 wait, 3 run, KV cache 0.42
}
