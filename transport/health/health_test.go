package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// servers answer requests and checks in a synctest bubble. The state of a host is a
// status, "hang", "refuse", "drop" (no connection and no answer) or "busy" (checks
// time out, requests are served); empty is healthy.
type servers struct {
	mu     sync.Mutex
	fares  map[string]string
	checks map[string]int
	sent   map[string]int
}

func newServers() *servers {
	return &servers{fares: map[string]string{}, checks: map[string]int{}, sent: map[string]int{}}
}

func (s *servers) set(fare string, hosts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hosts {
		s.fares[h] = fare
	}
}

// checked returns how often a host has been checked.
func (s *servers) checked(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checks[host]
}

// took returns how many requests each host has received since the last call.
func (s *servers) took() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = map[string]int{}
	return sent
}

func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	check := strings.HasSuffix(r.URL.Path, "/health")
	s.mu.Lock()
	fare := s.fares[r.URL.Host]
	if check {
		s.checks[r.URL.Host]++
	} else {
		s.sent[r.URL.Host]++
	}
	s.mu.Unlock()
	answer := func(code int) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}
	silent := func(in <-chan time.Time, err error) (*http.Response, error) {
		select {
		case <-in:
			return nil, err
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	switch code, err := strconv.Atoi(fare); {
	case err == nil:
		return answer(code)
	case fare == "refuse":
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	case fare == "drop":
		return silent(time.After(5*time.Second), &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}) // as transport's dialer
	case fare == "hang", fare == "busy" && check:
		return silent(nil, nil)
	case fare == "fails" && !check:
		return answer(500)
	case fare == "no page" && check:
		return answer(404)
	}
	if !check {
		time.Sleep(100 * time.Millisecond)
	}
	return answer(200)
}

type cluster struct {
	*servers
	router  *endpick.Router
	monitor *health.Monitor
	tr      *transport.Transport
	news    rig.List[string]
}

// open runs a test with three servers and a monitor that checks them every second.
func open(t *testing.T, config health.Config, test func(*testing.T, *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{servers: newServers()}
		c.router = rig.Must(endpick.New(endpick.Config{Endpoints: endpoints("a", "b", "c"), Seed: 1}))
		config.Router, config.Client = c.router, &http.Client{Transport: c.servers}
		config.Interval, config.Timeout = time.Second, 900*time.Millisecond
		config.OnChange = func(s health.Status) {
			text := strings.TrimSpace(fmt.Sprintf("%s %v", s.Endpoint, s.State))
			if s.Draining {
				text += ", draining"
			}
			c.news.Add(text)
		}
		c.monitor = rig.Must(health.New(config))
		c.tr = rig.Must(transport.New(transport.Config{Router: c.router, Base: c.servers, Health: c.monitor}))
		defer rig.Running(t.Context(), c.monitor.Run)()
		time.Sleep(500 * time.Millisecond) // from now on halfway between two rounds
		test(t, c)
	})
}

// endpoints are some whose addresses are their IDs.
func endpoints(ids ...string) (all []endpick.Endpoint) {
	for _, id := range ids {
		all = append(all, endpick.Endpoint{ID: id, Address: id})
	}
	return all
}

// ask sends one request, and returns its status and how long it took.
func (c *cluster) ask() (int, time.Duration) {
	start := time.Now()
	req, _ := http.NewRequest("POST", "http://gateway/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
	resp, err := c.tr.RoundTrip(req)
	if err != nil {
		return transport.StatusOf(err), time.Since(start)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode, time.Since(start)
}

// serve sends requests, which are all served.
func (c *cluster) serve(t *testing.T, n int) {
	t.Helper()
	for range n {
		status, _ := c.ask()
		assert.Equal(t, 200, status)
	}
}

func (c *cluster) status(id string) health.Status {
	for _, s := range c.monitor.Endpoints() {
		if s.Endpoint == id {
			return s
		}
	}
	return health.Status{}
}

func (c *cluster) alive() int {
	n, _ := c.monitor.Alive()
	return n
}

// A dead server is detected before any request reaches it, gets no traffic while
// dead, and its share again once it is back.
func TestChecksFindWhatIsDead(t *testing.T) {
	for fare, reason := range map[string]string{"refuse": "connection refused", "hang": "deadline exceeded", "503": "answered 503", "500": "answered 500"} {
		t.Run(fare, func(t *testing.T) {
			open(t, health.Config{}, func(t *testing.T, c *cluster) {
				assert.Equal(t, 3, c.alive())
				assert.Equal(t, health.Well, c.status("b").State)
				assert.False(t, c.status("b").Checked.IsZero())
				c.set(fare, "b")
				time.Sleep(4 * time.Second)
				s := c.status("b")
				assert.True(t, s.State.Out())
				assert.Equal(t, health.Unfit, s.State)
				assert.ErrorContains(t, s.CheckErr, reason)
				assert.GreaterOrEqual(t, s.Failed, 2)
				assert.Zero(t, s.Share)
				assert.Equal(t, 2, c.alive())
				assert.Equal(t, []string{"b unfit"}, c.news.Take())
				c.serve(t, 300)
				assert.Zero(t, c.took()["b"], "no request is risked")
				c.set("", "b")
				time.Sleep(1500 * time.Millisecond)
				assert.Equal(t, 3, c.alive(), "about to be tried")
				c.serve(t, 30)
				assert.Equal(t, health.Returning, c.status("b").State)
				assert.InDelta(t, 0.3, c.status("b").Share, 0.2)
				c.serve(t, 600)
				assert.Equal(t, []string{"b returning", "b well"}, c.news.Take())
				c.took()
				c.serve(t, 300)
				assert.InDelta(t, 100, c.took()["b"], 30)
				assert.Equal(t, 1.0, c.status("b").Share)
			})
		})
	}
}

// With all servers dead, clients get an error within a second, and readiness
// reports it; within seconds of their return they serve again.
func TestAllAreDead(t *testing.T) {
	for fare, want := range map[string]int{"refuse": 503, "hang": 503, "drop": 503, "503": 503, "500": 500} {
		t.Run(fare, func(t *testing.T) {
			open(t, health.Config{}, func(t *testing.T, c *cluster) {
				c.serve(t, 20)
				c.set(fare, "a", "b", "c")
				time.Sleep(10 * time.Second)
				for range 100 {
					status, took := c.ask()
					assert.Equal(t, want, status)
					assert.LessOrEqual(t, took, time.Second)
					time.Sleep(100 * time.Millisecond)
				}
				assert.Zero(t, c.alive())
				assert.Zero(t, c.router.Stats().OpenLeases)
				c.set("", "a", "b", "c")
				time.Sleep(6 * time.Second)
				assert.Equal(t, 3, c.alive())
				c.serve(t, 100)
			})
		})
	}
}

// A gateway that starts before its servers is ready only once one has passed a check
// or served a request.
func TestNobodyIsAliveYet(t *testing.T) {
	open(t, health.Config{}, func(t *testing.T, c *cluster) {
		for _, id := range []string{"a", "b", "c"} { // as new endpoints
			require.NoError(t, c.router.Remove(id))
			require.NoError(t, c.router.Add(endpick.Endpoint{ID: id, Address: id}))
		}
		assert.Equal(t, 3, c.alive(), "nobody has asked yet")
		c.set("refuse", "a", "b", "c")
		time.Sleep(3 * time.Second)
		assert.Zero(t, c.alive())
		assert.True(t, c.status("a").State.Out())
		assert.Equal(t, health.Unreachable, c.status("a").State)
		assert.Equal(t, 3, c.tr.Stats().Unhealthy)
		assert.ElementsMatch(t, []string{"a unreachable", "b unreachable", "c unreachable"}, c.news.Take())
		status, _ := c.ask()
		assert.Equal(t, 503, status)
		assert.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, c.took(), "they are asked all the same")
		c.set("busy", "a")
		status, _ = c.ask()
		assert.Equal(t, 200, status, "the check may be wrong")
		assert.Equal(t, 1, c.alive())
		assert.Equal(t, health.Returning, c.status("a").State)
		c.set("", "b")
		time.Sleep(time.Second)
		assert.Equal(t, 2, c.alive())
		assert.Equal(t, health.Well, c.status("b").State, "nothing speaks against it")
		c.set("no page", "c")
		time.Sleep(time.Second)
		assert.Equal(t, health.Well, c.status("c").State, "it is there")
	})
}

// A busy server may be late to answer a check, and is not out.
func TestABusyServerIsNotUnfit(t *testing.T) {
	open(t, health.Config{}, func(t *testing.T, c *cluster) {
		c.ask()
		c.set("busy", "a", "b", "c")
		c.serve(t, 300) // thirty seconds
		assert.Equal(t, 3, c.alive())
		assert.Empty(t, c.news.Take())
	})
	// It may still compute what its client has left, and streams last.
	open(t, health.Config{}, func(t *testing.T, c *cluster) {
		req, _ := http.NewRequest("POST", "http://gateway/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
		rig.Must(c.tr.RoundTrip(req)).Body.Close()
		left := slices.Collect(maps.Keys(c.took()))
		lease := rig.Must(c.router.Route(endpick.Request{Model: "m", Exclude: left, Stream: true}))
		lease.FirstToken()
		c.set("busy", "a", "b", "c")
		time.Sleep(5 * time.Second)
		assert.Equal(t, []health.State{health.Well, health.Well}, []health.State{c.status(left[0]).State, c.status(lease.Endpoint().ID).State})
		assert.Equal(t, 2, c.alive(), "one is idle")
	})
}

// An endpoint that passes checks but fails requests is unhealthy. One without a health
// page, or that has never passed a check, is judged by requests alone.
func TestChecksAreNotAll(t *testing.T) {
	open(t, health.Config{}, func(t *testing.T, c *cluster) {
		c.set("fails", "b")
		c.serve(t, 100)
		s := c.status("b")
		assert.True(t, s.State.Out())
		assert.Equal(t, health.Failing, s.State)
		assert.ErrorContains(t, s.Err, "answered 500")
		assert.NoError(t, s.CheckErr)
		assert.True(t, s.NextTrial.After(time.Now()))

		c.set("no page", "c")
		time.Sleep(10 * time.Second)
		assert.Equal(t, health.Well, c.status("c").State)
		assert.NoError(t, c.status("c").CheckErr)
		require.NoError(t, c.router.Add(endpick.Endpoint{ID: "d", Address: "d"}))
		c.set("busy", "d")
		time.Sleep(10 * time.Second)
		assert.Equal(t, health.Well, c.status("d").State)
		assert.Error(t, c.status("d").CheckErr, "it is told all the same")
		c.set("refuse", "d")
		c.took()
		c.serve(t, 50)
		assert.Equal(t, health.Unreachable, c.status("d").State, "as requests have found")
		require.NoError(t, c.router.Remove("d"))
		require.NoError(t, c.router.Drain("c"))
		_, of := c.monitor.Alive()
		assert.Equal(t, 2, of, "those that take requests")
		assert.True(t, c.status("c").Draining)
		assert.Len(t, c.monitor.Endpoints(), 3)
	})
}

// Ranks of one server share a check, and an endpoint without a page is not checked.
func TestWhoIsAsked(t *testing.T) {
	open(t, health.Config{URL: func(e *endpick.Endpoint) string {
		switch e.ID {
		case "a":
			return "http://a/deep/health"
		case "b":
			panic("a URL")
		}
		return ""
	}}, func(t *testing.T, c *cluster) {
		require.NoError(t, c.router.Add(endpick.Endpoint{ID: "a#1", Address: "a"}))
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 10, c.checked("a"), 1)
		assert.Zero(t, c.checked("b")+c.checked("c"))
	})
}

// A server that takes longer to answer than the interval is asked by one check at a
// time.
func TestAServerThatHangsIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers()
		s.set("hang", "a")
		monitor, router := alone(health.Config{Interval: time.Second, Timeout: 5 * time.Second}, s.RoundTrip)
		defer rig.Running(t.Context(), monitor.Run)()
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, router.Remove("a"))
		time.Sleep(time.Second)
		require.NoError(t, router.Add(endpick.Endpoint{ID: "a", Address: "a"}))
		time.Sleep(2 * time.Second)
		assert.Equal(t, []int{1, 5}, []int{s.checked("a"), s.checked("b")})
		time.Sleep(5 * time.Second)
		assert.Equal(t, 2, s.checked("a"), "it was given up after five seconds")
	})
}

// A check that the monitor cancels itself, because its host shuts down or moves on,
// says nothing about the server.
func TestChecksThatAreBrokenOffSayNothing(t *testing.T) {
	open(t, health.Config{Failures: 1}, func(t *testing.T, c *cluster) {
		before := c.status("b")
		require.False(t, before.Checked.IsZero())
		c.set("busy", "a", "b", "c")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		c.monitor.Check(ctx)
		after := c.status("b")
		assert.Equal(t, before.Checked, after.Checked)
		assert.NoError(t, after.CheckErr)
		assert.Equal(t, health.Well, after.State)
		c.set("", "a", "c")
		c.set("500", "b")
		c.monitor.Check(t.Context())
		assert.Equal(t, health.Unfit, c.status("b").State, "one that fails is enough here")
	})
}

func TestConfig(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{}))
	for field, c := range map[string]health.Config{
		"Router": {}, "Interval": {Router: router, Interval: -1}, "Timeout": {Router: router, Timeout: -1}, "Failures": {Router: router, Failures: -1},
	} {
		assert.Equal(t, "health.Config."+field, rig.Field(health.New(c)))
	}
	m := rig.Must(health.New(health.Config{Router: router}))
	assert.ErrorAs(t, rig.Err(transport.New(transport.Config{Router: rig.Must(endpick.New(endpick.Config{})), Health: m})), new(*endpick.ConfigError))
}

// The monitor's default client uses one connection and does not follow
// redirects.
func TestTheMonitorsOwnClient(t *testing.T) {
	var connections, followed atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if in.URL.Path != "/health" {
			followed.Add(1)
			w.WriteHeader(500)
			return
		}
		http.Redirect(w, in, "/login", http.StatusFound)
		_, _ = io.WriteString(w, strings.Repeat(".", 2000))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints(server.Listener.Addr().String())}))
	monitor := rig.Must(health.New(health.Config{Router: router, Timeout: 30 * time.Second}))
	for range 5 {
		monitor.Check(t.Context())
	}
	s := monitor.Endpoints()[0]
	assert.NoError(t, s.CheckErr)
	assert.False(t, s.Checked.IsZero())
	assert.Zero(t, followed.Load())
	assert.EqualValues(t, 1, connections.Load())
}

// A vLLM with a full queue is fit, and avoided for a moment.
func TestAFullVLLM(t *testing.T) {
	server := httptest.NewServer(rig.VLLM("health", "full_completions"))
	defer server.Close()
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints(server.URL)}))
	monitor := rig.Must(health.New(health.Config{Router: router}))
	c := http.Client{Transport: rig.Must(transport.New(transport.Config{Router: router, Health: monitor}))}
	for range 10 {
		resp := rig.Must(c.Post("http://gateway/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"x"}`)))
		resp.Body.Close()
		assert.Equal(t, 503, resp.StatusCode)
		assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	}
	monitor.Check(t.Context())
	s := monitor.Endpoints()[0]
	assert.Equal(t, []bool{true, false}, []bool{s.Full, s.State.Out()})
	assert.NoError(t, s.CheckErr)
}

// counted is a body that counts the bytes that were read and the times it was closed.
type counted struct {
	io.Reader
	read, closed *atomic.Int32
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int32(n))
	return n, err
}

func (c counted) Close() error { c.closed.Add(1); return nil }

// alone returns a monitor over the endpoints a and b that asks pages.
func alone(config health.Config, p rig.RoundTrip) (*health.Monitor, *endpick.Router) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints("a", "b")}))
	config.Router, config.Client = router, &http.Client{Transport: p}
	return rig.Must(health.New(config)), router
}

// An answer that shows no trouble of the server, and a failure of the host, count
// against no endpoint.
func TestWhatSaysNothingOfAServer(t *testing.T) {
	var given, read, closed atomic.Int32
	status := func(code int) rig.RoundTrip {
		return func(*http.Request) (*http.Response, error) {
			given.Add(1)
			return &http.Response{StatusCode: code, Body: counted{strings.NewReader(strings.Repeat("x", 1<<20)), &read, &closed}}, nil
		}
	}
	for name, tc := range map[string]struct {
		page      rig.RoundTrip
		url       func(*endpick.Endpoint) string
		unhealthy bool
	}{
		"101":           {page: status(101)}, // nothing ends its body
		"401":           {page: status(401)},
		"499":           {page: status(499)},
		"500":           {page: status(500), unhealthy: true},
		"501":           {page: status(501)},
		"502":           {page: status(502), unhealthy: true},
		"a client's":    {page: func(*http.Request) (*http.Response, error) { panic("a transport of the host") }},
		"no URL at all": {page: status(500), url: func(*endpick.Endpoint) string { return "http://[::1" }, unhealthy: true},
	} {
		m, _ := alone(health.Config{URL: tc.url}, tc.page)
		m.Check(t.Context())
		for _, s := range m.Endpoints() {
			assert.Equal(t, tc.unhealthy, s.CheckErr != nil, name)
		}
	}
	assert.EqualValues(t, 12, given.Load())
	assert.Equal(t, given.Load(), closed.Load(), "every body is closed")
	assert.LessOrEqual(t, read.Load(), 10*int32(4<<10), "pages may be long")
}

// An endpoint is out after as many failures in a row as Config says: by default two,
// two seconds apart, with a timeout of two seconds each.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		start := time.Now()
		var asked rig.List[time.Duration]
		m, _ := alone(health.Config{}, func(in *http.Request) (*http.Response, error) {
			if in.URL.Host == "a" {
				asked.Add(time.Since(start))
				if dead.Load() {
					<-in.Context().Done()
					return nil, in.Context().Err()
				}
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		stop := rig.Running(t.Context(), m.Run)
		time.Sleep(time.Second)
		dead.Store(true)
		// Asked at 2 s, timed out at 4 s and asked again, timed out at 6 s.
		time.Sleep(2500 * time.Millisecond)
		assert.Zero(t, m.Endpoints()[0].Failed, "it has two seconds")
		time.Sleep(time.Second)
		assert.Equal(t, 1, m.Endpoints()[0].Failed)
		assert.Equal(t, health.Well, m.Endpoints()[0].State)
		time.Sleep(4 * time.Second)
		assert.True(t, m.Endpoints()[0].State.Out())
		assert.Equal(t, health.Well, m.Endpoints()[1].State)
		stop()
		assert.Equal(t, []time.Duration{0, 2 * time.Second}, asked.Take()[:2])
	})
}

// Run and Check return only after the last check has.
func TestNothingIsLeftBehind(t *testing.T) {
	for name, run := range map[string]func(*health.Monitor, context.Context){"Run": (*health.Monitor).Run, "Check": (*health.Monitor).Check} {
		synctest.Test(t, func(t *testing.T) {
			var open, asked atomic.Int32
			m, _ := alone(health.Config{}, func(in *http.Request) (*http.Response, error) {
				open.Add(1)
				asked.Add(1)
				defer open.Add(-1)
				<-in.Context().Done()
				time.Sleep(time.Second) // a transport that is slow to give up
				return nil, in.Context().Err()
			})
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			run(m, ctx)
			assert.EqualValues(t, 2, asked.Load(), name)
			assert.Zero(t, open.Load(), name)
		})
	}
}

// An endpoint that was removed and only finishes a request is not checked, counted or
// reported.
func TestWhatIsRemovedIsNotAsked(t *testing.T) {
	open(t, health.Config{}, func(t *testing.T, c *cluster) {
		require.NoError(t, c.router.Drain("a"))
		require.NoError(t, c.router.Drain("c"))
		lease := rig.Must(c.router.Route(endpick.Request{InputTokens: 1}))
		require.NoError(t, c.router.Remove("b"))
		c.set("refuse", "a", "b")
		before := c.checked("b")
		time.Sleep(10 * time.Second)
		assert.Len(t, c.monitor.Endpoints(), 2)
		_, of := c.monitor.Alive()
		assert.Zero(t, of)
		assert.Equal(t, []string{"a unfit, draining"}, c.news.Take())
		assert.Equal(t, before, c.checked("b"))
		lease.Done(endpick.Outcome{})
	})
}

// After a panic in OnChange, the host gets the next change all the same, and checks go on.
func TestOnChangeMayPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		var reported []string
		m, _ := alone(health.Config{Interval: time.Second, Timeout: time.Second, OnChange: func(s health.Status) {
			reported = append(reported, s.Endpoint)
			panic("a host's own affair")
		}}, func(*http.Request) (*http.Response, error) {
			code := 200
			if dead.Load() {
				code = 500
			}
			return &http.Response{StatusCode: code, Body: http.NoBody}, nil
		})
		stop := rig.Running(t.Context(), m.Run)
		time.Sleep(1500 * time.Millisecond)
		dead.Store(true)
		time.Sleep(5 * time.Second)
		stop()
		assert.ElementsMatch(t, []string{"a", "b"}, reported)
	})
}

// An error before there is a connection concerns the path to the server, one after it
// the page.
func TestChecksTellAConnectionFromAPage(t *testing.T) {
	hang := func(ctx context.Context) (net.Conn, error) {
		select { // a transport does not cancel its dials with the request
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
		return nil, errors.New("too late")
	}
	silent := func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		return here, nil
	}
	for name, tc := range map[string]struct {
		dial func(context.Context) (net.Conn, error)
		tls  bool
		want health.State
	}{
		"nobody listens": {dial: func(context.Context) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		}, want: health.Unreachable},
		"no way there":          {dial: hang, want: health.Unreachable},
		"it takes it and hangs": {dial: silent, want: health.Well},
		"it can't do TLS": {dial: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				_, _ = there.Read(make([]byte, 64<<10))
				_, _ = there.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
				_ = there.Close()
			}()
			return here, nil
		}, tls: true, want: health.Well},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme := "http://"
				if tc.tls {
					scheme = "https://"
				}
				router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints(scheme + "a")}))
				client := &http.Client{Transport: &http.Transport{
					DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return tc.dial(ctx) },
					DisableKeepAlives: true,
				}}
				m := rig.Must(health.New(health.Config{Router: router, Client: client}))
				m.Check(t.Context())
				assert.Equal(t, health.Well, m.Endpoints()[0].State)
				m.Check(t.Context())
				s := m.Endpoints()[0]
				assert.Error(t, s.CheckErr)
				assert.Equal(t, tc.want, s.State)
				assert.False(t, s.Alive)
				time.Sleep(2 * time.Minute) // for the dials to end
			})
		})
	}
}

// A panic of what listens to outcomes costs neither the request nor what is learned from it, in
// whatever goroutine its end is noticed.
func TestAListenerThatPanicsIsIgnored(t *testing.T) {
	m, router := alone(health.Config{}, nil)
	m.Core().Tell(func(string, bool) { panic("boom") })
	ref, ok := router.Ref("a")
	require.True(t, ok)
	for range 3 {
		m.Core().Sent("a", ref).Ended("unreachable")
	}
	assert.Equal(t, health.Unreachable, m.Endpoints()[0].State)
}

// Servers that refuse connections are dialled ten times a second, however many they are, as long as
// others live. One that comes back is found at once where no other lives.
func TestManyDeadAreSeldomChecked(t *testing.T) {
	for dead, every := range map[int]time.Duration{1: 2 * time.Second, 20: 2 * time.Second, 200: 20 * time.Second, 1000: 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			config := endpick.Config{}
			const gone = 400
			s := newServers()
			for i := range dead + 1 + gone {
				config.Endpoints = append(config.Endpoints, endpoints(fmt.Sprint(i))...)
				s.set("refuse", fmt.Sprint(i))
			}
			s.set("", "0")
			router := rig.Must(endpick.New(config))
			m := rig.Must(health.New(health.Config{Router: router, Client: &http.Client{Transport: s}}))
			took := func(host string) int {
				s.mu.Lock()
				defer s.mu.Unlock()
				n := s.checks[host]
				clear(s.checks)
				return n
			}
			stop := rig.Running(t.Context(), m.Run)
			time.Sleep(time.Second)
			for i := range gone {
				require.NoError(t, router.Remove(fmt.Sprint(dead+1+i)))
			}
			time.Sleep(time.Minute)
			took("")
			time.Sleep(2 * time.Minute)
			assert.InDelta(t, 2*time.Minute/every, took("1"), 1, "%d", dead)
			time.Sleep(2 * time.Minute)
			assert.Equal(t, 60, took("0"), "who lives")
			alive, _ := m.Alive()
			assert.Equal(t, 1, alive)
			m.Check(t.Context())
			assert.Equal(t, 1, took("1"), "all are checked at once")

			s.set("refuse", "0")
			time.Sleep(5 * time.Second)
			s.set("", "1")
			time.Sleep(2500 * time.Millisecond) // between two checks
			assert.True(t, m.Endpoints()[1].Alive, "it is back, of %d", dead)
			stop()
		})
	}
}

// Which endpoints a host avoids after four requests, each of which it sends to one endpoint
// after the other until one has served it. Letters are endpoints in the order in which they
// are asked: f fails, d can't be reached, b breaks off, t times out while connecting, r
// refuses, s serves.
func TestHostsReportTheirRequests(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	late := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for outcomes, want := range map[string]string{
		"s":   "well",
		"fs":  "out",  // another has served it
		"ffs": "out",  // so have both of these
		"ff":  "well", // the request may be at fault
		"f":   "out",  // nobody else was asked
		"d":   "out",
		"dd":  "out",
		"b":   "out",
		"bf":  "out", // what broke off is not at issue any more
		"bff": "out", // nor what was served before
		"t":   "hangs",
		"r":   "well",
	} {
		synctest.Test(t, func(t *testing.T) {
			config := endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}}
			for i := range 8 {
				config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Address: "a", Adapters: []string{"a"}})
			}
			router := rig.Must(endpick.New(config))
			refuses := rig.RoundTrip(func(*http.Request) (*http.Response, error) { return nil, dial })
			monitor := rig.Must(health.New(health.Config{Router: router, Client: &http.Client{Transport: refuses}}))
			for range 4 {
				r := health.Request{Monitor: monitor}
				for i, o := range outcomes {
					lease := rig.Must(router.Route(endpick.Request{Exclude: allBut(router, fmt.Sprint(i))}))
					r.Sent(lease, true)
					lease.Done(endpick.Outcome{})
					switch o {
					case 's':
						r.Served()
					case 'b':
						r.Served()
						r.Failed(errors.New("broken off"))
					case 'f':
						r.Failed(errors.New("500"))
					case 'd':
						r.Failed(dial)
					case 't':
						r.Failed(late)
					}
				}
				r.Close()
				r.Close()
			}
			req := endpick.Request{Model: "m", Adapter: "a", Exclude: []string{"7"}}
			r := health.Request{Monitor: monitor}
			r.Avoid(&req)
			assert.Equal(t, want != "well", slices.Contains(req.Avoid, "0"), outcomes)
			assert.Equal(t, want == "hangs", slices.Contains(req.Exclude, "0"), outcomes)
			assert.Equal(t, slices.Contains([]string{"ffs", "dd", "bf"}, outcomes), slices.Contains(req.Avoid, "1"), outcomes)
			assert.Contains(t, req.Exclude, "7", "what the host excludes stays")
			heard := strings.ContainsAny(outcomes[:1], "bs")
			time.Sleep(time.Minute)
			r.Avoid(&req)
			assert.Equal(t, want == "out" && !heard, slices.Equal(req.Avoid, allBut(router, "0")), "nobody has taken its trial: %s", outcomes)
			monitor.Check(t.Context())
			monitor.Check(t.Context())
			assert.Equal(t, heard, monitor.Endpoints()[0].State == health.Well, "it has said something, whatever its page: %s", outcomes)
		})
	}
}

func allBut(router *endpick.Router, id string) (ids []string) {
	for _, e := range router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			ids = append(ids, other)
		}
	}
	return ids
}
