package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

func fourEndpoints() (all []endpick.Endpoint) {
	for i := range 4 {
		all = append(all, endpick.Endpoint{ID: fmt.Sprint("e", i), Address: fmt.Sprintf("127.0.0.1:%d", i+1), KVTokens: 1 << 16})
	}
	return all
}

// A policy decides for its models exactly as it does alone, request by request, whatever the other models' policy is.
func TestPerModelIsTheModelsPolicy(t *testing.T) {
	for _, name := range []string{"round-robin", "least-loaded", "load-prefix", "lmetric", "aibrix", "sglang", "power-of-two", "predicted-latency:synchronous", "random"} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			clock := func() time.Time { return now }
			build := func(policy string, models map[string]modelSettings) *endpick.Router {
				var ps policies
				p := rig.Must(ps.compose(policy, models, false))
				return rig.Must(endpick.New(endpick.Config{Policy: p, Endpoints: fourEndpoints(), Seed: 7, Clock: clock}))
			}
			alone := build(name, nil)
			mixed := build("always-busiest", map[string]modelSettings{"m": {Policy: name}})
			type pair struct{ a, b endpick.Lease }
			var open []pair
			seed := prefix.Scope{Model: "m"}.Seed()
			for i := range 300 {
				now = now.Add(10 * time.Millisecond)
				blocks := prefix.AppendText(nil, seed, prose(i%7, 1280)+prose(i, 640))
				req := endpick.Request{Model: "m", InputTokens: 480, Blocks: blocks, BlockTokens: 16, Stream: true}
				a := rig.Must(alone.Route(req))
				b := rig.Must(mixed.Route(req))
				require.Equal(t, a.Endpoint().ID, b.Endpoint().ID, "request %d", i)
				open = append(open, pair{a, b})
				if i%3 != 0 {
					now = now.Add(20 * time.Millisecond)
					p := open[0]
					open = open[1:]
					for _, l := range []endpick.Lease{p.a, p.b} {
						l.FirstToken()
						l.Tokens(5)
						l.Done(endpick.Outcome{OutputTokens: 6})
					}
				}
			}
			assert.Zero(t, mixed.Stats().StageErrors)
			assert.Zero(t, mixed.Stats().Panics)
			for _, p := range open {
				p.a.Done(endpick.Outcome{})
				p.b.Done(endpick.Outcome{})
			}
		})
	}
}

type refuse struct{ model string }

var errRefused = errors.New("refused")

func (r refuse) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	if req.Model != r.model {
		return errors.New("of another policy")
	}
	return errRefused
}

// Only the admitters and predictors of the model's policy run; learners observe all requests.
func TestPerModelStages(t *testing.T) {
	var ps policies
	rig.Must(ps.compose("predicted-latency", map[string]modelSettings{"m": {Policy: "lmetric"}}, false))
	lmetric := ps.built["lmetric"]
	lmetric.Admitters = []endpick.Admitter{refuse{"m"}}
	ps.built["lmetric"] = lmetric
	p := rig.Must(ps.compose("predicted-latency", map[string]modelSettings{"m": {Policy: "lmetric"}}, false))
	require.Equal(t, "per model", p.Name)
	require.Same(t, ps.index, p.Matcher)
	latency := ps.built["predicted-latency"].Predictor.(predict.Latency)
	measured, loads := ps.measured(&settings{Policy: "predicted-latency"})
	require.Equal(t, []predict.Latency{latency}, measured)
	require.Nil(t, loads)
	measured, _ = ps.measured(&settings{Policy: "lmetric"})
	require.Empty(t, measured, "what it would have predicted is not known any more")
	now := time.Unix(1000, 0)
	r := rig.Must(endpick.New(endpick.Config{Policy: p, Endpoints: fourEndpoints(), Clock: func() time.Time { return now }}))
	require.ErrorIs(t, rig.Err(r.Route(endpick.Request{Model: "m", InputTokens: 10})), errRefused)
	lease := rig.Must(r.Route(endpick.Request{Model: "n", InputTokens: 10, Stream: true}))
	now = now.Add(time.Second)
	lease.FirstToken()
	lease.Done(endpick.Outcome{OutputTokens: 1})
	health := latency.Health()
	require.Len(t, health, 1)
	require.Equal(t, "n", health[0].Model)
	require.NoError(t, r.Remove("e0"))

	require.Error(t, rig.Err(ps.compose("best", nil, false)))
}

// Log lines about requests contain facts about them, and none of their text.
func TestRequestLines(t *testing.T) {
	ttft, cached := 12.5, 64
	in := httptest.NewRequest(http.MethodPost, "/v1/chat?key=secret", nil)
	one := transport.Observation{
		In: in.WithContext(context.WithValue(in.Context(), idKey{}, "7")),
		Request: recording.Request{
			Model: "m", Endpoint: "a", Status: "completed", HTTP: 200, InputTokens: 100, OutputTokens: 4, E2EMillis: 50.04, TTFTMillis: &ttft,
			CachedTokens: &cached, Prompt: &recording.Prompt{Messages: []recording.Piece{{Text: "cardamom"}}},
		},
		Tenant: "ann", Held: 900 * time.Microsecond, Attempts: []transport.ObservedAttempt{{HTTP: 200}},
	}
	failed, refused, left, cut, nobody, named := one, one, one, one, one, one
	named.Named, named.Held = "best", 1250*time.Microsecond
	failed.Status, failed.HTTP, failed.Err = "failed", 0, errors.New("connection refused")
	refused.Status, refused.HTTP, left.Status = "refused", 429, "canceled"
	cut.Status, cut.Attempts = "failed", []transport.ObservedAttempt{{HTTP: 200, Err: errors.New("it broke off")}}
	nobody.Status, nobody.HTTP, nobody.Err, nobody.Attempts, nobody.Endpoint, nobody.Serving = "failed", 0, &endpick.NoEndpointError{Model: "m"}, nil, "", -1
	before := func(id string, result transport.Result, err error) transport.ObservedAttempt {
		return transport.ObservedAttempt{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}}, Result: result, Err: err}
	}
	retried, estimated := one, one
	retried.Attempts = []transport.ObservedAttempt{before("c", transport.Broken, transport.ErrTimeout), before("b", transport.Full, nil), {HTTP: 200}}
	estimated.Estimated = true
	const rest = " input=100 output=4 e2e_ms=50 cached=64 ttft_ms=12.5 tenant=ann"
	for _, tc := range []struct {
		which string
		r     transport.Observation
		want  string
	}{
		{"all", one, "level=INFO msg=request status=completed http=200 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + rest + "\n"},
		{"all", named, "level=INFO msg=request status=completed http=200 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + strings.Replace(rest, " tenant", " held_ms=1.3 asked=best tenant", 1) + "\n"},
		{"all", retried, "level=INFO msg=request status=completed http=200 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=3" + rest +
			` earlier="c: transport: the endpoint did not answer in time; b: full"` + "\n"},
		{"all", estimated, "level=INFO msg=request status=completed http=200 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + strings.Replace(rest, " cached", " estimated=true cached", 1) + "\n"},
		{"failed", one, ""}, {"none", failed, ""},
		{"failed", failed, "level=WARN msg=request status=failed http=502 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + rest + ` error="connection refused"` + "\n"},
		{"failed", refused, "level=WARN msg=request status=refused http=429 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + rest + "\n"},
		{"failed", left, "level=INFO msg=request status=canceled http=200 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + rest + "\n"},
		{"failed", cut, "level=WARN msg=request status=failed http=200 method=POST path=/v1/chat id=7 model=m endpoint=a attempts=1" + rest + ` error="it broke off"` + "\n"},
		{"failed", nobody, `level=WARN msg=request status=failed http=503 method=POST path=/v1/chat id=7 model=m endpoint="" attempts=0` + rest + ` error="` + strings.ReplaceAll(nobody.Err.Error(), `"`, `\"`) + "\"\n"},
	} {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		(&requestLog{log: logger, which: tc.which}).ended(&tc.r, tc.r.Err)
		assert.Equal(t, tc.want, b.String())
	}
	var b bytes.Buffer
	newLogger(&b, &logSettings{Format: "json", Level: "warn"}).Info("quiet")
	assert.Empty(t, b.String())
	newLogger(&b, &logSettings{Format: "json", Level: "warn"}).Warn("loud")
	assert.Contains(t, b.String(), `"msg":"loud"`)
}

// A stage in a model's policy gets the same calls as in a policy alone.
func TestPerModelHidesNothing(t *testing.T) {
	policy := func(s *rig.Stage, gate endpick.Admitter) endpick.Policy {
		return endpick.Policy{
			Name: "loud", Predictor: s, Admitters: []endpick.Admitter{s, gate}, Filters: []endpick.Filter{s},
			Scorers: []endpick.Weighted{{Scorer: s, Weight: 1}}, Picker: s,
		}
	}
	rig.CheckWrapping(t, policy, func(s *rig.Stage, gate endpick.Admitter) endpick.Policy {
		ps := policies{built: map[string]endpick.Policy{"loud": policy(s, gate)}}
		return rig.Must(ps.compose("lmetric", map[string]modelSettings{"m": {Policy: "loud"}}, false))
	})
}

// A request that one of the model's admitters refuses is withdrawn from those that admitted it.
func TestPerModelWithdraws(t *testing.T) {
	bucket := rig.Must(quota.New(quota.Config{Limits: func(string) quota.Limits { return quota.Limits{Rate: 1e-9, Burst: 100} }}))
	no := refuse{"m"}
	ps := policies{built: map[string]endpick.Policy{"bucket": {Admitters: []endpick.Admitter{bucket, &no}}}}
	p := rig.Must(ps.compose("lmetric", map[string]modelSettings{"m": {Policy: "bucket"}}, false))
	r := rig.Must(endpick.New(endpick.Config{Policy: p, Endpoints: fourEndpoints(), Clock: func() time.Time { return time.Unix(1000, 0) }}))
	for range 5 {
		require.ErrorIs(t, rig.Err(r.Route(endpick.Request{Model: "m", InputTokens: 60})), errRefused)
	}
}

// The whole system over HTTP: the first requests are routed by a heuristic,
// later ones by what was learned from them; targets are counted; a sheddable
// request that can't be served in time is refused. Nothing is left behind.
func TestPredictedLatency(t *testing.T) {
	http.DefaultClient.CloseIdleConnections()
	before := runtime.NumGoroutine()
	f := startFleet(t, 2, 4096)
	c := start(t, "-trust-headers", "-policy", "predicted-latency", "-backend", "http://"+f.Members[0].Address, "-backend", "http://"+f.Members[1].Address)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 8 {
				code, body := post(t, c.url, i%4 != 0, slo.TTFTHeader, "60000", slo.TPOTHeader, "60000")
				assert.Equal(t, 200, code, body)
			}
		})
	}
	group.Wait()
	var text string
	streams := 48 + 3
	require.Eventually(t, func() bool {
		_, text = get(c.admin + "/debug/endpick")
		health := rows(t, text, "health")
		if len(health) == 1+3 && health[1][2] != "heuristic" && health[2][2] != "heuristic" {
			return true
		}
		// A fit that had to wait its turn starts with a later label.
		streams++
		code, body := post(t, c.url, true)
		assert.Equal(t, 200, code, body)
		return false
	}, 30*time.Second, 200*time.Millisecond, "two targets have 48 labels each, and 25 will do")
	targets := rows(t, text, "slo")
	require.Equal(t, []string{"TTFT", "64", "64", "100.0 %"}, targets[1])
	require.Equal(t, []string{"TPOT", "48", "48", "100.0 %"}, targets[2], "responses at once have none")

	// From now on requests are predicted; one with an unattainable target misses it and is served all the same.
	for range 3 {
		code, _ := post(t, c.url, true, slo.TTFTHeader, "1", slo.TPOTHeader, "1")
		require.Equal(t, 200, code)
	}
	require.Eventually(t, func() bool {
		_, text = get(c.admin + "/debug/endpick")
		return rows(t, text, "slo")[1][1] == "67" && rows(t, text, "health")[1][7] != unknown
	}, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, []string{"TTFT", "67", "64", "95.5 %"}, rows(t, text, "slo")[1])
	end := rows(t, text, "end-67")
	require.Equal(t, "TTFT", end[1][0][:4])
	for _, row := range end[1:3] { // expected and measured, of TTFT and TPOT
		require.Regexp(t, `^[\d.]+ m?s$`, row[1])
		require.Regexp(t, `^[\d.]+ m?s$`, row[2])
		require.Regexp(t, `^[+-]\d+ %$`, row[3])
	}
	mape := rows(t, text, "health")[1]
	require.Regexp(t, `^\d+\.\d %$`, mape[7])
	require.Equal(t, "none", mape[len(mape)-1])

	testMetrics(t, c.admin, streams)
	testShedding(t, c.url, f)

	c.ends(t, 0)
	require.NoError(t, f.Close())
	http.DefaultClient.CloseIdleConnections()
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 30*time.Second, 10*time.Millisecond)
}

func testMetrics(t *testing.T, url string, streams int) {
	_, text := get(url + "/metrics")
	for _, want := range []string{
		`endpick_slo_requests_total{latency="ttft",model="demo-8b"} 67`, `endpick_slo_met_total{latency="ttft",model="demo-8b"} 64`,
		`endpick_prediction_error_ratio{latency="ttft",model="demo-8b"} `, "endpick_decision_duration_seconds_count 67",
		"endpick_prediction_duration_seconds_count 67", `endpick_decisions_total{by="`, "process_cpu_seconds_total",
	} {
		require.Contains(t, text, want)
	}
	value := func(name string) float64 {
		m := regexp.MustCompile(`(?m)^endpick_` + name + `{model="demo-8b"} (\S+)$`).FindStringSubmatch(text)
		require.NotNil(t, m, "%s in\n%s", name, text)
		return rig.Must(strconv.ParseFloat(m[1], 64))
	}
	for _, target := range []string{"ttft", "tpot"} {
		require.EqualValues(t, streams, value(target+"_seconds_count"), "streams")
		require.GreaterOrEqual(t, value("predicted_"+target+"_seconds_count"), 3.0)
	}
}

// Both servers are busy with others' requests and warm: a sheddable request with
// an unattainable target gets 429, and an important one is served.
func testShedding(t *testing.T, url string, f *traffic.Fleet) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for _, m := range f.Members {
		group.Go(func() {
			long := traffic.NewClient("http://" + m.Address)
			defer long.Close()
			s := long.Ask(ctx, time.Now(), []traffic.Message{{Role: "user", Content: strings.Repeat("word", 400)}}, 3000)
			assert.ErrorIs(t, s.Err, context.Canceled)
		})
	}
	target := []string{slo.TTFTHeader, "1", transport.PriorityHeader}
	var body string
	require.Eventually(t, func() bool {
		var code int
		code, body = post(t, url, true, append(target, "-1")...)
		return code == http.StatusTooManyRequests
	}, 20*time.Second, 20*time.Millisecond, "once both are at work and their reports say so")
	var reply struct {
		Error struct{ Message, Type, Code string }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &reply))
	require.Contains(t, reply.Error.Message, "no server can meet the latency targets of the request")
	require.Equal(t, []string{"rate_limit_error", "rate_limit_exceeded"}, []string{reply.Error.Type, reply.Error.Code})
	code, _ := post(t, url, true, append(target, "0")...)
	require.Equal(t, 200, code)
	code, _ = post(t, url, true, transport.PriorityHeader, "-1")
	require.Equal(t, 200, code, "it asks for nothing")
	cancel()
	group.Wait()
}

// fill starts a gateway with a queue for one request and one server, whose cache
// a request fills, and sends another, which waits. The results of both are sent once known; cancel ends the first.
func fill(t *testing.T, args ...string) (c *command, cancel func(), first, second chan traffic.Sample) {
	t.Helper()
	c = start(t, append(args, "-policy", "predicted-latency", "-endpoints", "1", "-kv-tokens", "8192", "-queue", "1", "-queue-timeout", "1m")...)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ask := traffic.NewClient(c.url)
	t.Cleanup(ask.Close)
	send := func(ctx context.Context, prompt string, output int) chan traffic.Sample {
		done := make(chan traffic.Sample, 1)
		go func() { done <- ask.Ask(ctx, time.Now(), []traffic.Message{{Role: "user", Content: prompt}}, output) }()
		return done
	}
	queue := func() (all string) {
		_, text := get(c.admin + "/debug/endpick")
		elements(page(t, text), func(n *html.Node) {
			if len(n.Attr) > 0 && n.Attr[0].Val == "queue" {
				all = textIn(n)
			}
		})
		return all
	}
	first = send(ctx, strings.Repeat("word", 6700), 1400)
	full := regexp.MustCompile(`^0 held .*saturation 1\.`)
	require.Eventually(t, func() bool { return full.MatchString(queue()) }, 30*time.Second, 5*time.Millisecond)
	second = send(t.Context(), "Hello.", 2)
	require.Eventually(t, func() bool { return strings.HasPrefix(queue(), "1 held") }, 30*time.Second, 5*time.Millisecond)
	return c, cancel, first, second
}

// A request that arrives while the queue is full is refused, and the gateway
// stops only after the waiting request is served.
func TestQueue(t *testing.T) {
	c, cancel, first, second := fill(t)
	code, body := post(t, c.url, true)
	require.Equal(t, http.StatusTooManyRequests, code)
	require.Contains(t, body, "too many requests wait already")

	c.interrupt()
	c.logs(t, "msg=stopping requests=2", 1)
	code, _ = post(t, c.url, true)
	require.Equal(t, http.StatusServiceUnavailable, code)
	cancel()
	require.ErrorIs(t, (<-first).Err, context.Canceled)
	require.NoError(t, (<-second).Err)
	require.Equal(t, 0, <-c.status, c.stderr)
}

// Servers without metrics are full at the number of concurrent requests in the file.
func TestQueueBeforeServersWithoutMetrics(t *testing.T) {
	arrived, release := make(chan struct{}, 4), make(chan struct{})
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "{}")
	})
	g := newTestGateway(t, "endpoints: [{url: "+server.URL+", max_sequences: 2}]\nqueue: {requests: 1, timeout: 1m}\n")
	codes := make(chan int, 4)
	send := func() { codes <- askGateway(g, "/v1/chat/completions").Code }
	for range 2 {
		go send()
		<-arrived
	}
	go send()
	require.Eventually(t, func() bool { q, _ := g.transport.Queue(); return q.Requests == 1 && q.Saturation == 1 }, 30*time.Second, time.Millisecond)
	send()
	require.Equal(t, http.StatusTooManyRequests, <-codes, "the queue is full, too")
	time.Sleep(10 * time.Millisecond) // it has waited for so long
	close(release)
	for range 3 {
		require.Equal(t, http.StatusOK, <-codes)
	}
	require.Contains(t, scrapeMetrics(t, g.admin), `endpick_decisions_total{by="queue",name=""} 1`)
}

// What has not ended by then is cut off, whatever its server does, and what waits, too.
func TestQueueIsCutOffAfterGrace(t *testing.T) {
	c, _, first, second := fill(t, "-grace", "50ms")
	stopped := time.Now()
	c.ends(t, 1)
	require.Contains(t, c.stderr.String(), "2 requests were cut off after 50ms")
	require.Error(t, (<-first).Err)
	require.Error(t, (<-second).Err)
	require.Less(t, time.Since(stopped), 4*time.Second)
}

// A gateway that fails to start leaves no trainer behind.
func TestGatewayThatCannotBeMade(t *testing.T) {
	before := runtime.NumGoroutine()
	s := plain("predicted-latency")
	s.Record = &recordSettings{File: filepath.Join(t.TempDir(), "r")}
	for range 5 {
		_, err := newGateway(s, []endpick.Endpoint{{ID: "a"}, {ID: "a"}}, slog.New(slog.DiscardHandler))
		require.ErrorIs(t, err, endpick.ErrDuplicateEndpoint)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() < before+5 }, 30*time.Second, time.Millisecond)
}
