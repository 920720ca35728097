package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
)

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

// pages answers every check with a function.
type pages func(*http.Request) (*http.Response, error)

func (p pages) RoundTrip(in *http.Request) (*http.Response, error) { return p(in) }

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
func alone(config health.Config, p pages) (*health.Monitor, *endpick.Router) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints("a", "b")}))
	config.Router, config.Client = router, &http.Client{Transport: p}
	return rig.Must(health.New(config)), router
}

// An answer that shows no trouble of the server, and a failure of the host, count
// against no endpoint.
func TestWhatSaysNothingOfAServer(t *testing.T) {
	var given, read, closed atomic.Int32
	status := func(code int) pages {
		return func(*http.Request) (*http.Response, error) {
			given.Add(1)
			return &http.Response{StatusCode: code, Body: counted{strings.NewReader(strings.Repeat("x", 1<<20)), &read, &closed}}, nil
		}
	}
	for name, tc := range map[string]struct {
		page      pages
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
		"no URL at all": {page: status(500), url: func(*endpick.Endpoint) string { return "http://[::1" }},
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
		var asked []time.Duration
		var mu sync.Mutex
		m, _ := alone(health.Config{}, func(in *http.Request) (*http.Response, error) {
			if in.URL.Host == "a" {
				mu.Lock()
				asked = append(asked, time.Since(start))
				mu.Unlock()
				if dead.Load() {
					<-in.Context().Done()
					return nil, in.Context().Err()
				}
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		stop := running(t, m)
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
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, []time.Duration{0, 2 * time.Second}, asked[:2])
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
		assert.Equal(t, []string{"a unfit, draining"}, c.news())
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
		stop := running(t, m)
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
			for i := range dead + 1 {
				config.Endpoints = append(config.Endpoints, endpoints(fmt.Sprint(i))...)
			}
			router := rig.Must(endpick.New(config))
			var mu sync.Mutex
			asked := map[string]int{}
			lives := "0"
			m := rig.Must(health.New(health.Config{Router: router, Client: &http.Client{Transport: pages(func(in *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				asked[in.URL.Host]++
				if in.URL.Host == lives {
					return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
				}
				return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			})}}))
			took := func(host string) int {
				mu.Lock()
				defer mu.Unlock()
				n := asked[host]
				clear(asked)
				return n
			}
			stop := running(t, m)
			time.Sleep(61 * time.Second)
			took("")
			time.Sleep(2 * time.Minute)
			assert.InDelta(t, 2*time.Minute/every, took("1"), 1, "%d", dead)
			time.Sleep(2 * time.Minute)
			assert.Equal(t, 60, took("0"), "who lives")
			alive, _ := m.Alive()
			assert.Equal(t, 1, alive)
			m.Check(t.Context())
			assert.Equal(t, 1, took("1"), "all are checked at once")

			mu.Lock()
			lives = ""
			mu.Unlock()
			time.Sleep(5 * time.Second)
			mu.Lock()
			lives = "1"
			mu.Unlock()
			time.Sleep(2500 * time.Millisecond) // between two checks
			alive, _ = m.Alive()
			assert.Equal(t, 1, alive, "it is back, of %d", dead)
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
		"t":   "hangs",
		"r":   "well",
	} {
		t.Run(outcomes, func(t *testing.T) {
			config := endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}}
			for i := range 8 {
				config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i)})
			}
			router := rig.Must(endpick.New(config))
			monitor := rig.Must(health.New(health.Config{Router: router}))
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
			req := endpick.Request{Exclude: []string{"7"}}
			r := health.Request{Monitor: monitor}
			r.Avoid(&req)
			assert.Equal(t, want != "well", slices.Contains(req.Avoid, "0"))
			assert.Equal(t, want == "hangs", slices.Contains(req.Exclude, "0"))
			assert.Contains(t, req.Exclude, "7", "what the host excludes stays")
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
