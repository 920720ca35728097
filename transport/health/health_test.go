package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
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
	router   *endpick.Router
	monitor  *health.Monitor
	tr       *transport.Transport
	mu       sync.Mutex
	reported []string
}

// open runs a test with three servers and a monitor that checks them every second.
func open(t *testing.T, config health.Config, test func(*testing.T, *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{servers: newServers()}
		c.router = rig.Must(endpick.New(endpick.Config{Endpoints: endpoints("a", "b", "c"), Seed: 1}))
		config.Router, config.Client = c.router, &http.Client{Transport: c.servers}
		config.Interval, config.Timeout = time.Second, 900*time.Millisecond
		config.OnChange = func(s health.Status) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reported = append(c.reported, strings.TrimSpace(fmt.Sprintf("%s %v", s.Endpoint, s.State)))
			if s.Draining {
				c.reported[len(c.reported)-1] += ", draining"
			}
		}
		c.monitor = rig.Must(health.New(config))
		c.tr = rig.Must(transport.New(transport.Config{Router: c.router, Base: c.servers, Health: c.monitor}))
		defer running(t, c.monitor)()
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

// running lets a monitor run until stop is called, which waits for its end.
func running(t *testing.T, m *health.Monitor) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { m.Run(ctx) })
	return func() { cancel(); run.Wait() }
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

func (c *cluster) news() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	reported := c.reported
	c.reported = nil
	return reported
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
				assert.Equal(t, []string{"b unfit"}, c.news())
				c.serve(t, 300)
				assert.Zero(t, c.took()["b"], "no request is risked")
				c.set("", "b")
				time.Sleep(1500 * time.Millisecond)
				assert.Equal(t, 3, c.alive(), "about to be tried")
				for range 30 {
					c.ask()
				}
				assert.Equal(t, health.Returning, c.status("b").State)
				assert.InDelta(t, 0.3, c.status("b").Share, 0.2)
				for range 600 {
					c.ask()
				}
				assert.Equal(t, []string{"b returning", "b well"}, c.news())
				c.took()
				for range 300 {
					c.ask()
				}
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
				for range 20 {
					c.ask()
				}
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
		assert.ElementsMatch(t, []string{"a unreachable", "b unreachable", "c unreachable"}, c.news())
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
		assert.Empty(t, c.news())
	})
	// It may still compute what its client has left, and streams last.
	open(t, health.Config{}, func(t *testing.T, c *cluster) {
		req, _ := http.NewRequest("POST", "http://gateway/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
		resp := rig.Must(c.tr.RoundTrip(req))
		resp.Body.Close()
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
		for range 50 {
			c.ask()
		}
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
		monitor, _ := alone(health.Config{Interval: time.Second, Timeout: 5 * time.Second}, s.RoundTrip)
		defer running(t, monitor)()
		time.Sleep(4500 * time.Millisecond)
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
		c.set("", "a", "b", "c")
	})
}

func TestConfig(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{}))
	for field, c := range map[string]health.Config{
		"Router": {}, "Interval": {Router: router, Interval: -1}, "Timeout": {Router: router, Timeout: -1}, "Failures": {Router: router, Failures: -1},
	} {
		_, err := health.New(c)
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "health.Config."+field, ce.Field)
	}
	m := rig.Must(health.New(health.Config{Router: router}))
	_, err := transport.New(transport.Config{Router: rig.Must(endpick.New(endpick.Config{})), Health: m})
	assert.ErrorAs(t, err, new(*endpick.ConfigError))
}
