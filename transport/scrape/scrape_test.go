package scrape_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/scrape"
)

// pages serves a metrics page that a test may change.
type pages struct {
	*httptest.Server
	asked atomic.Int64
	mu    sync.Mutex
	page  string
	code  int
	// before is called before the page is sent.
	before func(r *http.Request)
}

func servePage(t testing.TB, page string) *pages {
	p := &pages{page: page, code: 200}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	p.mu.Lock()
	page, code, before := p.page, p.code, p.before
	p.mu.Unlock()
	if before != nil {
		before(r)
	}
	w.WriteHeader(code)
	fmt.Fprint(w, page)
}

func (p *pages) set(page string, code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.page, p.code = page, code
}

type errorList struct {
	mu   sync.Mutex
	list []error
}

func (e *errorList) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, err)
}

func (e *errorList) take() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	return list
}

func newPoller(t testing.TB, config scrape.Config, endpoints ...endpick.Endpoint) (*endpick.Router, *scrape.Poller, *errorList) {
	router, err := endpick.New(endpick.Config{Endpoints: endpoints})
	require.NoError(t, err)
	errs := &errorList{}
	config.Router, config.OnError = router, errs.add
	if config.Client == nil {
		tr := &http.Transport{}
		config.Client = &http.Client{Transport: tr}
		t.Cleanup(tr.CloseIdleConnections)
	}
	p, err := scrape.New(config)
	require.NoError(t, err)
	return router, p, errs
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
	router, err := endpick.New(endpick.Config{})
	require.NoError(t, err)
	for field, c := range map[string]scrape.Config{
		"Router": {}, "Interval": {Router: router, Interval: -1}, "Timeout": {Router: router, Timeout: -1}, "MaxBytes": {Router: router, MaxBytes: -1},
	} {
		_, err := scrape.New(c)
		var ce *scrape.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.ErrorIs(t, err, endpick.ErrConfig)
		assert.Equal(t, field, ce.Field)
	}
	_, err = scrape.New(scrape.Config{Router: router})
	assert.NoError(t, err)
}

func TestPollReports(t *testing.T) {
	a, b := servePage(t, load(7, 3, 0.4)), servePage(t, load(0, 1, 0.1))
	router, p, errs := newPoller(t, scrape.Config{}, endpick.Endpoint{ID: "a", Address: a.URL},
		endpick.Endpoint{ID: "b", Address: "h2c://" + strings.TrimPrefix(b.URL, "http://")})
	p.Poll(context.Background())
	assert.Empty(t, errs.take())
	c := candidates(router)
	assert.Equal(t, []float64{7, 3, 0.4}, []float64{c["a"].Waiting, c["a"].Running, c["a"].KVUsage})
	assert.Equal(t, []float64{0, 1, 0.1}, []float64{c["b"].Waiting, c["b"].Running, c["b"].KVUsage})
	assert.Equal(t, allSignals, c["a"].Reported)
}

func TestRanksOfAServerAreAskedTogether(t *testing.T) {
	s := servePage(t, "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 5\n")
	router, p, errs := newPoller(t, scrape.Config{},
		endpick.Endpoint{ID: "0", Address: s.URL, Ranked: true}, endpick.Endpoint{ID: "1", Address: s.URL, Ranked: true, Rank: 1},
		endpick.Endpoint{ID: "2", Address: s.URL, Ranked: true, Rank: 2})
	p.Poll(context.Background())
	assert.EqualValues(t, 1, s.asked.Load())
	c := candidates(router)
	assert.Equal(t, 3.0, c["0"].Running)
	assert.Equal(t, 5.0, c["1"].Running)
	assert.Equal(t, endpick.RunningSignal, c["0"].Reported)
	list := errs.take()
	require.Len(t, list, 1)
	assert.ErrorIs(t, list[0], scrape.ErrNoSignal)
	assert.ErrorContains(t, list[0], `"2"`)
}

// The mark is taken when the question is sent: what is routed while the engine
// answers is counted on top of its report, and only once.
func TestMarkIsTakenWhenAsking(t *testing.T) {
	s := servePage(t, load(0, 1, 0.1))
	router, p, errs := newPoller(t, scrape.Config{}, endpick.Endpoint{ID: "a", Address: s.URL})
	before, err := router.Route(endpick.Request{})
	require.NoError(t, err)
	var during endpick.Lease
	s.before = func(*http.Request) { during, _ = router.Route(endpick.Request{}) }
	p.Poll(context.Background())
	assert.Empty(t, errs.take())
	c := candidates(router)["a"]
	assert.Equal(t, 2.0, c.Waiting+c.Running, "one that the engine knows of, one since")
	before.Done(endpick.Outcome{})
	during.Done(endpick.Outcome{})
}

func TestGarbageCostsTheSignalAndNothingElse(t *testing.T) {
	bad, good := servePage(t, load(7, 3, 0.4)), servePage(t, load(2, 4, 0.2))
	router, p, errs := newPoller(t, scrape.Config{MaxBytes: 1000, Timeout: time.Second}, endpick.Endpoint{ID: "bad", Address: bad.URL}, endpick.Endpoint{ID: "good", Address: good.URL})
	for name, tc := range map[string]struct {
		page     string
		code     int
		want     error
		reported endpick.Signals
	}{
		"garbage":            {"\x00\x01 }{", 200, scrape.ErrFormat, 0},
		"a web page":         {"<html>", 200, scrape.ErrFormat, 0},
		"other metrics":      {"up 1\n", 200, scrape.ErrNoSignal, 0},
		"too long":           {strings.Repeat("# x\n", 1000), 200, scrape.ErrTooLong, 0},
		"no such page":       {"not found", 404, scrape.StatusError(404), 0},
		"a negative queue":   {load(-1, 3, 0.4), 200, endpick.ErrBadLoad, endpick.RunningSignal | endpick.KVUsageSignal},
		"usage above one":    {load(1, 3, 42), 200, endpick.ErrBadLoad, endpick.RunningSignal | endpick.WaitingSignal},
		"not a number":       {strings.Replace(load(1, 3, 0.5), "0.5", "NaN", 1), 200, endpick.ErrBadLoad, endpick.RunningSignal | endpick.WaitingSignal},
		"all that there was": {load(1, 2, 0.3), 200, nil, allSignals},
	} {
		t.Run(name, func(t *testing.T) {
			bad.set(load(7, 3, 0.4), 200)
			p.Poll(context.Background())
			require.Empty(t, errs.take())
			bad.set(tc.page, tc.code)
			p.Poll(context.Background())
			list := errs.take()
			if tc.want == nil {
				require.Empty(t, list)
			} else {
				require.Len(t, list, 1)
				assert.ErrorIs(t, list[0], tc.want)
				var e *scrape.Error
				require.ErrorAs(t, list[0], &e)
				assert.Equal(t, "bad", e.Endpoint)
			}
			c := candidates(router)
			assert.Equal(t, tc.reported, c["bad"].Reported)
			assert.Equal(t, allSignals, c["good"].Reported)
			assert.Equal(t, 4.0, c["good"].Running)
			l, err := router.Route(endpick.Request{Exclude: []string{"good"}})
			require.NoError(t, err, "it still gets requests")
			l.Done(endpick.Outcome{})
		})
	}
}

func TestAnEngineThatIsSilentKeepsItsReport(t *testing.T) {
	s := servePage(t, load(7, 3, 0.4))
	router, p, errs := newPoller(t, scrape.Config{Timeout: 50 * time.Millisecond}, endpick.Endpoint{ID: "a", Address: s.URL})
	p.Poll(context.Background())
	s.mu.Lock()
	s.before = func(r *http.Request) { <-r.Context().Done() }
	s.mu.Unlock()
	p.Poll(context.Background())
	require.Len(t, errs.take(), 1)
	assert.Equal(t, 7.0, candidates(router)["a"].Waiting, "until it is too old for the router")
	s.Close()
	p.Poll(context.Background())
	require.Len(t, errs.take(), 1)
	assert.Equal(t, allSignals, candidates(router)["a"].Reported)
}

func TestURL(t *testing.T) {
	s := servePage(t, load(7, 3, 0.4))
	asked := []string{}
	router, p, errs := newPoller(t, scrape.Config{URL: func(e *endpick.Endpoint) string {
		asked = append(asked, e.ID)
		if e.ID == "a" {
			return s.URL + "/prometheus/metrics"
		}
		return ""
	}}, endpick.Endpoint{ID: "a", Address: "nowhere:1"}, endpick.Endpoint{ID: "b", Address: "::bad::"})
	p.Poll(context.Background())
	assert.Empty(t, errs.take())
	assert.Equal(t, []string{"a", "b"}, asked)
	assert.Equal(t, 7.0, candidates(router)["a"].Waiting)
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

// Endpoints come, hang and go while the poller runs; when it stops it leaves no
// goroutine.
func TestRun(t *testing.T) {
	before := runtime.NumGoroutine()
	client := &http.Client{Transport: &http.Transport{}}
	a, b, slow := servePage(t, load(1, 1, 0.1)), servePage(t, load(2, 2, 0.2)), servePage(t, "")
	slow.before = func(r *http.Request) { <-r.Context().Done() }
	router, p, errs := newPoller(t, scrape.Config{Client: client, Interval: 5 * time.Millisecond, Timeout: 10 * time.Second},
		endpick.Endpoint{ID: "a", Address: a.URL}, endpick.Endpoint{ID: "slow", Address: slow.URL})
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { p.Run(ctx); close(stopped) }()
	eventually := func(ok func() bool) { t.Helper(); require.Eventually(t, ok, 10*time.Second, time.Millisecond) }
	eventually(func() bool { return candidates(router)["a"].Waiting == 1 })
	require.NoError(t, router.Add(endpick.Endpoint{ID: "b", Address: b.URL}))
	eventually(func() bool { return candidates(router)["b"].Waiting == 2 })
	a.set(load(5, 1, 0.1), 200)
	eventually(func() bool { return candidates(router)["a"].Waiting == 5 })
	require.NoError(t, router.Remove("a"))
	asked := a.asked.Load()
	eventually(func() bool { n := b.asked.Load(); return n > 20 })
	assert.LessOrEqual(t, a.asked.Load(), asked+2)
	assert.EqualValues(t, 1, slow.asked.Load(), "not asked again before it has answered")
	cancel()
	<-stopped
	assert.Empty(t, errs.take(), "a poller that is stopped has nothing to complain of")
	client.CloseIdleConnections()
	for _, s := range []*pages{a, b, slow} {
		s.Close()
	}
	eventually(func() bool { return runtime.NumGoroutine() <= before+2 })
}
