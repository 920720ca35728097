package caddy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

// Each of these settings reaches the transport's configuration, of those that TestCaddyfile sets together.
func TestSending(t *testing.T) {
	for _, x := range []struct {
		set  Settings
		want transport.Config
	}{
		{Settings{SharedCache: true}, transport.Config{SharedCache: true}},
		{Settings{DisableUsage: true}, transport.Config{DisableUsage: true}},
		{Settings{Queue: &Queue{}}, transport.Config{Queue: &transport.QueueConfig{}}},
	} {
		x.want.EnableEndpointHeader = true
		assert.Equal(t, x.want, rig.Must(x.set.sending()))
	}
}

// configured returns a transport of a configuration and its log.
func configured(t *testing.T, p *pool, s Settings) (*Transport, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.DebugLevel)
	tr := &Transport{Settings: s, pool: p, logger: zap.New(core)}
	tr.number = rig.Must(p.want(s.definition(), tr))
	return tr, logs
}

// applied applies a configuration to a pool.
func applied(t *testing.T, p *pool, s Settings) *Transport {
	tr, _ := configured(t, p, s)
	_ = rig.Must(p.apply(tr))
	return tr
}

func newPool(t *testing.T) *pool {
	p := new(pool)
	t.Cleanup(func() { assert.NoError(t, p.Destruct()) })
	return p
}

// The newest configuration that has served a request counts, whatever requests older
// ones get later; unchanged parts stay.
func TestPoolFollowsItsConfigurations(t *testing.T) {
	p := newPool(t)
	base := Settings{Endpoints: []Endpoint{{Address: "10.0.0.1:1"}}}
	ids := func() (all []string) {
		for _, e := range p.router.Endpoints() {
			all = append(all, e.Candidate.Endpoint.ID)
		}
		return all
	}
	first, firstLogs := configured(t, p, base)
	sender := rig.Must(p.apply(first))
	router, index := p.router, p.policy.Matcher
	p.warn(nil, errors.New("before"))
	assert.Equal(t, 1, firstLogs.Len())

	more := base
	more.Endpoints = []Endpoint{{Address: "10.0.0.1:1"}, {Address: "10.0.0.2:1"}}
	second, secondLogs := configured(t, p, more)
	again := rig.Must(p.apply(first))
	assert.Same(t, sender, again, "nobody has asked the second one")
	assert.Equal(t, []string{"10.0.0.1:1"}, ids())
	same := rig.Must(p.apply(second))
	assert.Same(t, sender, same, "how requests are sent has not changed")
	assert.Equal(t, []string{"10.0.0.1:1", "10.0.0.2:1"}, ids())
	late := rig.Must(p.apply(first))
	assert.Same(t, sender, late)
	assert.Len(t, ids(), 2, "the first is over")
	p.warn(&http.Request{URL: &url.URL{Path: "/v1/x"}}, errors.New("after"))
	p.warn(nil, errors.New("after"))
	assert.Equal(t, 1, firstLogs.Len())
	assert.Equal(t, 2, secondLogs.Len())
	assert.Equal(t, "/v1/x", secondLogs.All()[0].ContextMap()["path"])

	// A configuration with the same contents still becomes the newest.
	third := applied(t, p, more)
	_ = rig.Must(p.apply(second))
	assert.Equal(t, third.number, p.newest)

	slower := more
	slower.StallTimeout = caddy.Duration(time.Minute)
	fourth, _ := configured(t, p, slower)
	other := rig.Must(p.apply(fourth))
	assert.NotSame(t, sender, other)
	assert.Same(t, router, p.router)
	assert.Same(t, index, p.policy.Matcher)

	// The default policy may be named, and polling is no matter of the sender.
	named := slower
	named.Policy = "marginal-delay"
	assert.Equal(t, slower.definition(), named.definition())
	slower.Scrape = caddy.Duration(time.Hour)
	applied(t, p, slower)
	assert.Same(t, other, p.sender)

	// A change of policy carries learned state over to the next one, and the one after it.
	var learned endpick.Predictor
	for _, name := range []string{"predicted-latency", "predicted-latency:most", "lmetric", "predicted-latency"} {
		slower.Policy = name
		applied(t, p, slower)
		assert.Equal(t, name, p.policy.Name)
		assert.Same(t, other, p.sender, "how requests are sent has not changed")
		assert.Same(t, index, p.policy.Matcher, name)
		if name == "predicted-latency:most" {
			assert.Same(t, learned, p.policy.Predictor)
		}
		learned = p.policy.Predictor
	}

	// Two transports of one configuration must agree.
	_ = rig.Must(p.want(slower.definition(), third))
	_, err := p.want(base.definition(), third)
	assert.ErrorContains(t, err, "two transports of one pool differ")

	// A configuration that can't be applied changes nothing and is tried again.
	bad := slower
	bad.Endpoints = []Endpoint{{Address: "ftp://x"}}
	fifth := &Transport{Settings: bad, pool: p, logger: zap.NewNop(), number: p.number + 1}
	for range 2 {
		_, err = p.apply(fifth)
		assert.Error(t, err)
		assert.Len(t, ids(), 2)
	}
}

func conversation() *http.Request {
	const body = `{"model":"m","messages":[{"role":"user","content":"Hi"}]}`
	return httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
}

// Connections no longer in use are closed: those of a replaced sender, and those of a
// pool that is gone.
func TestIdleConnectionsAreClosed(t *testing.T) {
	closed := make(chan struct{}, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	p := newPool(t)
	settings := Settings{Endpoints: []Endpoint{{Address: server.URL}}}
	ask := func() *Transport {
		tr, _ := configured(t, p, settings)
		response := rig.Must(tr.RoundTrip(conversation()))
		require.Equal(t, http.StatusOK, response.StatusCode)
		_ = rig.Must(io.Copy(io.Discard, response.Body))
		require.NoError(t, response.Body.Close())
		return tr
	}
	ask()
	ask()
	assert.Empty(t, closed)
	wait := func(why string) {
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			require.Fail(t, "a connection stays open", why)
		}
	}
	settings.StallTimeout = caddy.Duration(time.Minute)
	ask()
	wait("of the sender before")
	ask().CloseIdleConnections()
	wait("of a transport of which that is asked")
	ask()
	require.NoError(t, p.Destruct())
	wait("of a pool that is gone")
}

// Servers are polled as often as the newest configuration says, and no longer if it does
// not.
func TestPoolPolls(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n")
	}))
	defer server.Close()
	p := newPool(t)
	base := Settings{Endpoints: []Endpoint{{Address: server.URL}}, Scrape: caddy.Duration(time.Millisecond)}
	applied(t, p, base)
	require.Eventually(t, func() bool { return asked.Load() > 5 }, 30*time.Second, time.Millisecond)

	stopped, stop := 0, p.stop
	p.stop = func() { stopped++; stop() }
	slower := base
	slower.StallTimeout = caddy.Duration(time.Minute)
	applied(t, p, slower)
	assert.Zero(t, stopped, "nothing has changed for it")
	slower.Scrape = caddy.Duration(time.Hour)
	applied(t, p, slower)
	assert.Equal(t, 1, stopped)
	seldom := asked.Load()
	time.Sleep(500 * time.Millisecond)
	assert.LessOrEqual(t, asked.Load(), seldom+2, "one is new, and one may have been on its way")

	never := base
	never.Scrape = 0
	applied(t, p, never)
	assert.Nil(t, p.stop)

	applied(t, p, base)
	before := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() > before }, 30*time.Second, time.Millisecond)
	require.NoError(t, p.Destruct())
	before = asked.Load()
	p.polled.Wait()
	assert.Equal(t, before, asked.Load(), "a pool that is gone asks nobody")
	slower.Scrape = caddy.Duration(time.Minute)
	applied(t, p, slower)
	assert.Nil(t, p.stop, "not even for a configuration whose first request was late")
}

// Caddy supplies what only the host knows about a request.
func TestDescribe(t *testing.T) {
	describing := func(s Settings, slo endpick.SLO) endpick.Request {
		values := caddy.NewReplacer()
		values.Set("who", "red")
		ctx := context.WithValue(context.Background(), caddy.ReplacerCtxKey, values)
		r := &request{by: &Transport{Settings: s}}
		in := (&http.Request{}).WithContext(context.WithValue(ctx, requestKey{}, r))
		req := endpick.Request{SLO: slo}
		describe(in, nil, &req)
		assert.Same(t, &r.receipt, req.Receipt)
		return req
	}
	targets := Settings{TTFT: caddy.Duration(2 * time.Second), TPOT: caddy.Duration(50 * time.Millisecond)}
	assert.Equal(t, endpick.SLO{TTFT: 2 * time.Second, TPOT: 50 * time.Millisecond}, describing(targets, endpick.SLO{}).SLO)
	asked := endpick.SLO{TPOT: time.Second}
	assert.Equal(t, asked, describing(targets, asked).SLO, "a request that brings a target brings them all")
	assert.Zero(t, describing(Settings{}, endpick.SLO{}).SLO)
	assert.Equal(t, "team red", describing(Settings{Tenant: "team {who}"}, endpick.SLO{}).Tenant)
	assert.Equal(t, "team ", describing(Settings{Tenant: "team {nobody}"}, endpick.SLO{}).Tenant)
	assert.Empty(t, describing(Settings{}, endpick.SLO{}).Tenant)
	var req endpick.Request
	describe(&http.Request{}, nil, &req)
	assert.Zero(t, req, "one of nobody's")
}

// The placeholders describe the chosen server, whatever its place among the candidates,
// and are empty if there was none.
func TestPlaceholders(t *testing.T) {
	verdict := func(id string, matched int) endpick.Verdict {
		return endpick.Verdict{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}, PrefixTokens: matched}}
	}
	two := []endpick.Verdict{verdict("a", 7), verdict("b", 9)}
	for _, x := range []struct {
		endpoint string
		receipt  endpick.Receipt
		want     map[string]any
	}{
		{"a", endpick.Receipt{Policy: "p", Model: "m", InputTokens: 30, Chosen: 0, Verdicts: two}, map[string]any{"endpoint": "a", "policy": "p", "model": "m", "input_tokens": 30, "candidates": 2, "matched_tokens": 7}},
		{"b", endpick.Receipt{Policy: "p", Model: "m", InputTokens: 30, Chosen: 1, Verdicts: two}, map[string]any{"endpoint": "b", "matched_tokens": 9}},
		{"", endpick.Receipt{Policy: "p", Model: "m", Chosen: -1, Verdicts: two}, map[string]any{"endpoint": "", "candidates": 2, "matched_tokens": 0}},
		{"", endpick.Receipt{}, map[string]any{"endpoint": "", "policy": "", "candidates": 0, "matched_tokens": 0}},
	} {
		values := caddy.NewReplacer()
		in := (&http.Request{}).WithContext(context.WithValue(context.Background(), caddy.ReplacerCtxKey, values))
		explain(in, x.endpoint, &x.receipt)
		for name, want := range x.want {
			got, ok := values.Get(placeholders + name)
			assert.True(t, ok, name)
			assert.Equal(t, want, got, name)
		}
	}
	explain(&http.Request{}, "a", &endpick.Receipt{}) // not from Caddy
}

// A failure becomes a whole response in the shape of the API; a client that has gone
// gets none.
func TestFailuresAreResponses(t *testing.T) {
	tr, logs := configured(t, newPool(t), Settings{Endpoints: []Endpoint{{Address: nobody(t)}}})
	values := caddy.NewReplacer()
	send := func(ctx context.Context) (*http.Response, error) {
		in := conversation().WithContext(context.WithValue(ctx, caddy.ReplacerCtxKey, values))
		in.Header.Set(transport.PriorityHeader, "high")
		return tr.RoundTrip(in)
	}
	response := rig.Must(send(context.Background()))
	defer response.Body.Close()
	body := rig.Must(io.ReadAll(response.Body))
	assert.Equal(t, "503 Service Unavailable", response.Status)
	assert.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	assert.EqualValues(t, len(body), response.ContentLength)
	assert.Equal(t, "application/json", response.Header.Get("Content-Type"))
	assert.Contains(t, string(body), `"error"`)
	assert.Equal(t, 1, logs.FilterMessage("request failed").Len())
	assert.Equal(t, 1, logs.FilterMessage("something is wrong with a request").Len(), "its priority")
	endpoint, _ := values.Get(placeholders + "endpoint")
	assert.Equal(t, "", endpoint, "it was served by nobody")
	policy, _ := values.Get(placeholders + "policy")
	assert.Equal(t, "marginal-delay", policy)

	gone, cancel := context.WithCancel(context.Background())
	cancel()
	response, err := send(gone)
	assert.Nil(t, response)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 1, logs.FilterMessage("request failed").Len())
	new(Transport).CloseIdleConnections() // without any request
}

// Impossible settings are refused before anything starts.
func TestChecks(t *testing.T) {
	good := Settings{Endpoints: []Endpoint{{Address: "a:1"}}}
	require.NoError(t, (&Transport{Settings: good}).check())
	for want, change := range map[string]func(*Settings){
		"scrape, ttft or tpot is negative": func(s *Settings) { s.Scrape = -1 },
		"ttft or tpot is negative":         func(s *Settings) { s.TTFT = -1 },
		"tpot is negative":                 func(s *Settings) { s.TPOT = -1 },
		"MaxBodyBytes":                     func(s *Settings) { s.MaxBodyBytes = -1 },
	} {
		s := good
		change(&s)
		assert.ErrorContains(t, (&Transport{Settings: s}).check(), want)
	}
	assert.NoError(t, new(Transport).Cleanup(), "that was never provided for")
}
