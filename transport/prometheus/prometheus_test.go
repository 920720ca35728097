package prometheus_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/delay"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/prometheus"
	"github.com/endpick/endpick/transport/recording"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite golden files")

func newMetrics() *prometheus.Metrics { return rig.Must(prometheus.New(prometheus.Config{})) }

func gather(t testing.TB, c prom.Collector) []*dto.MetricFamily {
	registry := prom.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	return rig.Must(registry.Gather())
}

func page(t testing.TB, all []*dto.MetricFamily) string {
	var b strings.Builder
	for _, f := range all {
		rig.Must(expfmt.MetricFamilyToText(&b, f))
	}
	return b.String()
}

// lint checks what Prometheus expects of names and help, and that all are ours, with whole sentences.
func lint(t testing.TB, m prom.Collector) {
	t.Helper()
	families := gather(t, m)
	assert.Empty(t, rig.Must(promlint.NewWithMetricFamilies(families).Lint()))
	for _, f := range families {
		assert.Regexp(t, `^endpick_`, f.GetName())
		assert.Regexp(t, `^[A-Z].* .*[^.]\.$`, f.GetHelp(), f.GetName())
	}
}

func series(all []*dto.MetricFamily) (n int) {
	for _, f := range all {
		n += len(f.Metric)
	}
	return n
}

// labels returns the values of a label.
func labels(all []*dto.MetricFamily, name string) []string {
	var values []string
	for _, f := range all {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == name {
					values = append(values, l.GetValue())
				}
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

var epoch = time.Unix(1_000_000, 0)

func number(v float64) *float64 { return &v }

// streamed is a stream of 10 tokens from server a: routed after 30 ms, first token
// after 100 ms, last one after 190 ms, predicted TTFT 50 ms and TPOT 9 ms; of 1,000
// tokens 640 were expected to be cached and 512 were. Of its targets, 80 ms is
// missed and 10 ms is met.
func streamed(model, tenant string) *transport.Observation {
	cached := 512
	return &transport.Observation{
		Request: recording.Request{
			Time: epoch, Model: model, Endpoint: "a", Stream: true, HTTP: 200, Status: "completed", Attempts: 1,
			TTFTMillis: number(100), E2EMillis: 190, InputTokens: 1000, OutputTokens: 10, CachedTokens: &cached,
			SLOTTFTMillis: 80, SLOTPOTMillis: 10,
		},
		Tenant: tenant,
		Held:   20 * time.Millisecond,
		Attempts: []transport.ObservedAttempt{{
			Candidate: endpick.Candidate{
				Endpoint: &endpick.Endpoint{ID: "a"}, PrefixTokens: 640,
				Prediction: endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 50 * time.Millisecond, TPOT: 9 * time.Millisecond},
			},
			At: epoch.Add(30 * time.Millisecond), Decision: 20 * time.Microsecond, HTTP: 200, Result: transport.Served,
		}},
	}
}

// failed is a request that server a failed and no other served.
func failed(model, tenant string) *transport.Observation {
	r := streamed(model, tenant)
	r.Status, r.HTTP, r.TTFTMillis, r.OutputTokens, r.CachedTokens = "failed", 0, nil, 0, nil
	r.Err = &transport.UpstreamError{Endpoint: "a", Attempts: 1, Err: errors.New("broke off")}
	r.Attempts[0].HTTP, r.Attempts[0].Result, r.Attempts[0].Err = 0, transport.Broken, r.Err
	return r
}

func refused(model string, err error) *transport.Observation {
	return &transport.Observation{
		Request: recording.Request{Time: epoch, Model: model, Status: "failed", E2EMillis: 1}, Err: err, Serving: -1,
	}
}

func TestConfig(t *testing.T) {
	for field, c := range map[string]prometheus.Config{"MaxModels": {MaxModels: -1}, "MaxTenants": {MaxTenants: -1}, "MaxEndpoints": {MaxEndpoints: -1}} {
		assert.Equal(t, "prometheus.Config."+field, rig.Field(prometheus.New(c)))
	}
}

// The whole page after a few requests, worked out by hand.
func TestPage(t *testing.T) {
	m := newMetrics()
	m.Observe(streamed("llama", "ann"))
	m.Observe(failed("llama", "ann"))
	m.Observe(refused("invented", &endpick.NoEndpointError{Model: "invented", Endpoints: 3}))
	away := streamed("llama", "ann")
	bad := []transport.ObservedAttempt{{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "b"}}, HTTP: 500, Result: transport.Erred, Decision: time.Millisecond}}
	away.Attempts = slices.Concat(bad, away.Attempts, bad)
	away.Serving, away.SLOTTFTMillis = 1, 0
	m.Observe(away)
	left := streamed("llama", "")
	left.Status = "canceled"
	left.Attempts[0].Result = transport.Canceled
	m.Observe(left)
	text := page(t, gather(t, m))
	golden := filepath.Join("testdata", "page.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(text), 0o644))
	}
	assert.Equal(t, string(rig.Must(os.ReadFile(golden))), text)
}

func TestReasons(t *testing.T) {
	rejected := func(err error) error { return &endpick.RejectedError{Reason: err} }
	for _, tc := range []struct {
		reason string
		err    error
	}{
		{"queue_full", &queue.Error{Reason: queue.ErrFull}},
		{"queue_timeout", &queue.Error{Reason: queue.ErrTimeout}},
		{"shed", &queue.Error{Reason: queue.ErrShed}},
		{"too_large", &transport.BodyError{}},
		{"rate_limited", rejected(&queue.RateLimitError{})},
		{"saturated", rejected(&queue.SaturatedError{})},
		{"quota_tokens", rejected(&quota.Error{})},
		{"quota_requests", rejected(&quota.Error{Requests: 1})},
		{"slo", rejected(&slo.UnattainableError{})},
		{"rejected", rejected(errors.New("for a reason of the host's"))},
		{"no_endpoint", &endpick.NoEndpointError{}},
		{"too_long", &endpick.ContextError{}},
		{"unknown_model", &endpick.NoEndpointError{Model: "m", Endpoints: 1}},
		{"invalid", &endpick.RequestError{}},
		{"unknown_path", transport.ErrUnknownPath},
		{"client_left", context.Canceled},
		{"other", &endpick.PanicError{}},
		{"too_large", queue.ErrTooLarge},
		{"invalid", transport.ErrRead},
		{"invalid", transport.ErrCoding},
	} {
		m := newMetrics()
		m.Observe(refused("m", tc.err))
		assert.Equal(t, []string{tc.reason}, labels(gather(t, m), "reason"), "%v", tc.err)
	}
	m := newMetrics()
	key := refused("m", nil)
	key.HTTP = http.StatusUnauthorized
	m.Observe(key)
	m.Observe(streamed("m", ""))
	m.Observe(failed("m", ""))
	away := streamed("m", "")
	away.Status = "canceled"
	m.Observe(away)
	assert.Equal(t, []string{"", "client_left", "server_broken", "unknown_key"}, labels(gather(t, m), "reason"))
}

// An engine can't have cached more than the prompt, nor less than nothing, whatever it says.
func TestCachedTokensAreOfThePrompt(t *testing.T) {
	for said, want := range map[int][2]int{512: {512, 128}, 1000: {1000, 360}, 5000: {1000, 360}, -7: {0, 640}} {
		m, r := newMetrics(), streamed("m", "")
		r.CachedTokens = &said
		m.Observe(r)
		text := page(t, gather(t, m))
		assert.Contains(t, text, fmt.Sprintf("endpick_prefix_cached_tokens_total{model=\"m\"} %d\n", want[0]))
		assert.Contains(t, text, fmt.Sprintf("endpick_prefix_mistaken_tokens_total{model=\"m\"} %d\n", want[1]))
	}
}

func TestCodesAreBounded(t *testing.T) {
	m := newMetrics()
	for status := range 10_000 {
		r := failed("m", "")
		r.Err, r.HTTP = nil, status
		m.Observe(r)
	}
	codes := labels(gather(t, m), "code")
	assert.Less(t, len(codes), 70)
	assert.Subset(t, codes, []string{"200", "404", "429", "499", "503", "other"})
}

var odd = []string{"\xff", "half \xe2\x82", strings.Repeat("m", 1<<16), "", "<script>\"\n", "other", "a,b{}=\\"}

// Names that were merely requested take no place from names that are served, however
// many there are; of served names, only the most recent have a place.
func TestCardinality(t *testing.T) {
	m := newMetrics()
	p := m.Predictor(slow{})
	for _, name := range odd {
		m.Observe(failed(name, name))
		m.Observe(streamed(name, name))
		p.Predict(&endpick.Request{Model: name}, nil)
	}
	before := gather(t, m)
	for i := range 10_000 {
		name := fmt.Sprint("invented ", i)
		m.Observe(failed(name, name))
		m.Observe(refused(name, &endpick.NoEndpointError{Model: name, Endpoints: 3}))
		r := streamed(name, name)
		r.Status = "canceled"
		m.Observe(r)
		p.Predict(&endpick.Request{Model: name}, nil)
	}
	after := gather(t, m)
	assert.LessOrEqual(t, series(after), series(before)+4, "but for codes and the like")
	assert.Equal(t, []string{"<script>\"\n", "a,b{}=\\", "other"}, labels(after, "model"))
	assert.Equal(t, labels(after, "model"), labels(after, "tenant"))

	for i := range 10_000 {
		name := fmt.Sprintf("served %04d", i)
		m.Observe(streamed("often", "often"))
		m.Observe(streamed(name, name))
		p.Predict(&endpick.Request{Model: name}, nil)
	}
	want := []string{"often", "other"}
	for i := 10_000 - 63; i < 10_000; i++ {
		want = append(want, fmt.Sprintf("served %04d", i))
	}
	all := gather(t, m)
	assert.ElementsMatch(t, want, labels(all, "model"))
	assert.ElementsMatch(t, want, labels(all, "tenant"))
	assert.Less(t, series(all), 65*30)
	assert.Contains(t, page(t, all), `endpick_tenant_requests_total{status="completed",tenant="often"} 10000`)
}

// Tenants that the host names have labels before any success, as long as there is room.
func TestNamedTenants(t *testing.T) {
	m := rig.Must(prometheus.New(prometheus.Config{MaxTenants: 2}))
	tenants := func() []string { return labels(gather(t, m), "tenant") }
	m.NameTenants("ann", "bob")
	for _, tenant := range []string{"ann", "carl", "bob"} {
		m.Observe(failed("m", tenant))
	}
	require.Equal(t, []string{"ann", "bob", "other"}, tenants())
	m.NameTenants("bob", "carl")
	m.Observe(failed("m", "carl"))
	require.Equal(t, []string{"bob", "carl", "other"}, tenants())
	m.NameTenants("ann", "bob", "carl")
	require.Equal(t, []string{"bob", "carl", "other"}, tenants(), "there are too many, and who is counted goes on being counted")
	m.NameTenants("other", "", strings.Repeat("n", 300))
	require.Equal(t, []string{"bob", "carl", "other"}, tenants(), "what gets no label takes none")
}

// Endpoints beyond the bound, and removed ones.
func TestEndpointLabels(t *testing.T) {
	m := rig.Must(prometheus.New(prometheus.Config{MaxEndpoints: 3}))
	for i := range 100 {
		r := streamed("m", "")
		r.Attempts[0].Candidate.Endpoint = &endpick.Endpoint{ID: fmt.Sprint("server ", i)}
		m.Observe(r)
	}
	assert.Equal(t, []string{"other", "server 0", "server 1", "server 2"}, labels(gather(t, m), "endpoint"))
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "server 2"}, {ID: "new"}}}))
	m.Watch(prometheus.Sources{Router: router})
	for _, want := range []string{"server 2", "new"} {
		assert.Contains(t, labels(gather(t, m), "endpoint"), want)
	}
	assert.NotContains(t, labels(gather(t, m), "endpoint"), "server 1")
	r := streamed("m", "")
	r.Attempts[0].Candidate.Endpoint = &endpick.Endpoint{ID: "new"}
	m.Observe(r)
	assert.Contains(t, page(t, gather(t, m)), `endpick_endpoint_attempts_total{endpoint="new",result="served"} 1`)
}

// watched is a router with its policy and a transport, in use. all closes what is open.
func watched(m *prometheus.Metrics, config endpick.Config, ids ...string) (*endpick.Router, func()) {
	for _, id := range ids {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Address: "http://" + id})
	}
	index, _ := config.Policy.Matcher.(*prefix.Index)
	var latencies []predict.Latency
	if l, ok := config.Policy.Predictor.(predict.Latency); ok {
		latencies = []predict.Latency{l, l} // the second is ignored
	}
	config.Policy.Predictor = m.Predictor(config.Policy.Predictor)
	router := rig.Must(endpick.New(config))
	tr := rig.Must(transport.New(transport.Config{Router: router, Observe: m.Observe, Queue: &transport.QueueConfig{}}))
	m.Watch(prometheus.Sources{Router: router, Transport: tr, Index: index, Latencies: latencies})
	blocks := make([]uint64, 10)
	for i := range blocks {
		blocks[i] = uint64(i + 1)
	}
	var open []endpick.Lease
	for range 30 {
		lease := rig.Must(router.Route(endpick.Request{Model: "llama", Blocks: blocks, Stream: true}))
		lease.Tokens(1)
		lease.Tokens(3)
		open = append(open, lease)
	}
	for _, lease := range open[1:] {
		lease.Done(endpick.Outcome{})
	}
	return router, func() { open[0].Done(endpick.Outcome{}) }
}

type counted struct{ delay.Marginal }

func (counted) Loads() []delay.Loads {
	return []delay.Loads{{Model: "a", Nowhere: 3, Busy: 1, Unexpected: 2, Took: 90 * time.Second}}
}

// learned has another number for everything that is known of one model.
type learned struct{ predict.Latency }

func (learned) Health() []predict.ModelHealth {
	ttft := predict.Health{MAPE: 0.5, P90: 0.25, Coverage: 0.75, Drift: 1.5, Samples: 11, Labels: 12, Dropped: 13, Refits: 14, LastFail: errors.New("a fit")}
	return []predict.ModelHealth{
		{Model: "m", TTFT: ttft, TPOT: predict.Health{Labels: 21}, E2E: predict.Health{Labels: 31}}, {Model: "\xff", TTFT: ttft},
	}
}

func TestSources(t *testing.T) {
	config := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{}))
	m := newMetrics()
	router, end := watched(m, config, "a", "b")
	require.NoError(t, router.Update(endpick.Endpoint{ID: "b", WakeTime: time.Minute}))
	require.NoError(t, router.Drain("b"))
	require.NoError(t, router.Report("a", endpick.Load{Waiting: 2, Running: 3, KVUsage: 0.25, Absent: endpick.RunningSignal}))
	require.NoError(t, router.Report("b", endpick.Load{Running: 4, Absent: endpick.WaitingSignal | endpick.KVUsageSignal}))
	at := "b"
	if e := router.Endpoints()[0].Candidate; e.InFlight.Requests == 1 {
		at = "a"
	}
	text := page(t, gather(t, m))
	for _, want := range []string{
		"endpick_routed_total 30\n", "endpick_mirrored_total 0\n", "endpick_open_leases 1\n", "endpick_leases_reaped_total 0\n", "endpick_stage_panics_total 0\n",
		`endpick_endpoints{state="serving"} 1`, `endpick_endpoints{state="draining"} 1`, `endpick_endpoints{state="departing"} 0`,
		`endpick_endpoint_serving{endpoint="a"} 1`, `endpick_endpoint_serving{endpoint="b"} 0`, `endpick_endpoint_wake_seconds{endpoint="b"} 60`,
		`endpick_endpoint_in_flight_requests{endpoint="` + at + `"} 1`, `endpick_endpoint_context_tokens{endpoint="` + at + `"} 160`,
		`endpick_endpoint_waiting_requests{endpoint="a"} 2`, `endpick_endpoint_kv_usage_ratio{endpoint="a"} 0.25`,
		`endpick_endpoint_running_requests{endpoint="b"} 4`, `endpick_endpoint_reporting{endpoint="a"} 1`,
		`endpick_endpoint_prefill_tokens{endpoint="` + at + `"} 0`, "endpick_saturation_ratio 0.4\n",
		"endpick_prediction_duration_seconds_count 30\n", "endpick_index_pairs 10\n", `endpick_endpoint_index_blocks{endpoint="` + at + `"} 10`, `endpick_endpoint_index_capacity_blocks{endpoint="` + at + `"} `,
		"endpick_unhealthy_endpoints 0\n", "endpick_retries_total 0\n", "endpick_queue_requests 0\n", "endpick_index_blocks 10\n",
	} {
		assert.Contains(t, text, want)
	}
	for _, absent := range []string{
		`running_requests{endpoint="a"}`, `waiting_requests{endpoint="b"}`, `kv_usage_ratio{endpoint="b"}`, "NaN", `latency="e2e"`, `wake_seconds{endpoint="a"}`,
	} {
		assert.NotContains(t, text, absent, "what is not known is not zero")
	}
	assert.Regexp(t, `endpick_index_bytes [1-9]`, text)
	m.Observe(streamed("llama", "ann"))
	lint(t, m)

	// A removed endpoint that is still busy, beside another with its name.
	require.NoError(t, router.Remove(at))
	require.NoError(t, router.Add(endpick.Endpoint{ID: at}))
	text = page(t, gather(t, m))
	assert.Contains(t, text, `endpick_endpoints{state="departing"} 1`)
	assert.Contains(t, text, `endpick_endpoint_in_flight_requests{endpoint="`+at+`"} 0`)
	assert.Contains(t, text, `endpick_endpoint_reporting{endpoint="`+at+`"} 0`)
	end()
	assert.Contains(t, page(t, gather(t, m)), "endpick_open_leases 0\n")

	m.Watch(prometheus.Sources{Delay: counted{}, Latencies: []predict.Latency{learned{}}})
	text = page(t, gather(t, m))
	for _, want := range []string{
		`endpick_model_loads_total{model="a",reason="nowhere"} 3`, `{model="a",reason="busy"} 1`, `{model="a",reason="unexpected"} 2`,
		`endpick_model_load_seconds_sum{model="a"} 90`, `endpick_model_load_seconds_count{model="a"} 6`,
		`endpick_prediction_error_ratio{latency="ttft",model="m"} 0.5`, `endpick_prediction_error_p90_ratio{latency="ttft",model="m"} 0.25`,
		`endpick_prediction_coverage_ratio{latency="ttft",model="m"} 0.75`, `endpick_prediction_drift_ratio{latency="ttft",model="m"} 1.5`,
		`endpick_prediction_samples{latency="ttft",model="m"} 11`, `endpick_prediction_labels_total{latency="ttft",model="m"} 12`,
		`endpick_prediction_labels_total{latency="tpot",model="m"} 21`, `endpick_prediction_labels_total{latency="e2e",model="m"} 31`,
		`endpick_prediction_labels_dropped_total{latency="ttft",model="m"} 13`, `endpick_prediction_refits_total{latency="ttft",model="m"} 14`,
		`endpick_prediction_failing{latency="ttft",model="m"} 1`,
	} {
		assert.Contains(t, text, want+"\n")
	}
	lint(t, m)
	assert.NotContains(t, text, "endpick_routed_total")
}

// Which endpoints are out, why, and what share of the traffic the others get.
func TestHealth(t *testing.T) {
	well := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	defer well.Close()
	dead := httptest.NewServer(nil)
	dead.Close()
	router := rig.Must(endpick.New(endpick.Config{Seed: 1, Endpoints: []endpick.Endpoint{{ID: "dead", Address: dead.URL}, {ID: "well", Address: well.URL}}}))
	monitor := rig.Must(health.New(health.Config{Router: router}))
	m := newMetrics()
	observe := func(o *transport.Observation) { m.Observe(o); panic("after it") }
	tr := rig.Must(transport.New(transport.Config{Router: router, Health: monitor, Observe: observe}))
	t.Cleanup(tr.CloseIdleConnections)
	m.Watch(prometheus.Sources{Router: router, Transport: tr, Health: monitor})
	assert.Contains(t, page(t, gather(t, m)), `endpick_endpoint_share_ratio{endpoint="dead"} 1`)
	for range 30 {
		req := httptest.NewRequest(http.MethodPost, "http://gateway/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
		require.NoError(t, rig.Must(tr.RoundTrip(req)).Body.Close())
	}
	text := page(t, gather(t, m))
	for _, want := range []string{
		`endpick_endpoint_share_ratio{endpoint="dead"} 0`, `endpick_endpoint_out{endpoint="dead",reason="unreachable"} 1`,
		`endpick_endpoint_share_ratio{endpoint="well"} 1`, "endpick_unhealthy_endpoints 1", "endpick_callback_panics_total 30", "endpick_retries_denied_total 0",
	} {
		assert.Contains(t, text, want+"\n")
	}
	assert.NotContains(t, text, `endpick_endpoint_out{endpoint="well"`)
	lint(t, m)
}

// What waits is counted in requests, tokens and bytes.
func TestQueueIsWatched(t *testing.T) {
	release := make(chan struct{})
	busy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer busy.Close()
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{Address: busy.URL}}}))
	tr := rig.Must(transport.New(transport.Config{Router: router, Queue: &transport.QueueConfig{Saturation: queue.Concurrency(1)}}))
	defer tr.CloseIdleConnections()
	m := newMetrics()
	m.Watch(prometheus.Sources{Router: router, Transport: tr})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			response, err := tr.RoundTrip(httptest.NewRequest(http.MethodPost, "http://gateway/v1/completions", strings.NewReader(`{"prompt":"x"}`)))
			if assert.NoError(t, err) {
				assert.NoError(t, response.Body.Close())
			}
		})
	}
	require.Eventually(t, func() bool { q, _ := tr.Queue(); return q.Requests == 1 }, 30*time.Second, time.Millisecond)
	q, _ := tr.Queue()
	require.NotEqual(t, q.Tokens, q.Bytes)
	assert.Contains(t, page(t, gather(t, m)), fmt.Sprintf("endpick_queue_tokens %d\n", q.Tokens))
	assert.Contains(t, page(t, gather(t, m)), fmt.Sprintf("endpick_queue_bytes %d\n", q.Bytes))
	close(release)
	all.Wait()
}

func TestPredictorHidesNothing(t *testing.T) {
	m := newMetrics()
	assert.Equal(t, "counting", m.Predictor(new(rig.Stage)).(interface{ Name() string }).Name())
	rig.CheckWrapping(t,
		func(s *rig.Stage, _ endpick.Admitter) endpick.Policy { return endpick.Policy{Predictor: s} },
		func(s *rig.Stage, _ endpick.Admitter) endpick.Policy {
			return endpick.Policy{Predictor: m.Predictor(s)}
		})
}

// What panics is the host's predictor, not the one around it.
func TestPredictorPanics(t *testing.T) {
	m := newMetrics()
	assert.Nil(t, m.Predictor(nil))
	p := rig.Must(endpick.New(endpick.Config{
		Policy: endpick.Policy{Predictor: m.Predictor(bomb{})}, Endpoints: []endpick.Endpoint{{ID: "a"}},
		Warn: func(err error) { assert.ErrorContains(t, err, "stage prometheus_test.bomb panicked") },
	}))
	_ = rig.Must(p.Route(endpick.Request{}))
	m.Watch(prometheus.Sources{Router: p})
	assert.Contains(t, page(t, gather(t, m)), "endpick_stage_panics_total 1\n")
	assert.Contains(t, page(t, gather(t, m)), "endpick_bad_stage_results_total 0\n")
}

// Everything concurrently, for the race detector; labels of removed endpoints do not return.
func TestConcurrently(t *testing.T) {
	m := rig.Must(prometheus.New(prometheus.Config{MaxModels: 2}))
	p := m.Predictor(slow{})
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 300 {
				name := fmt.Sprint((i + g) % 7)
				m.Observe(streamed(name, name))
				p.Predict(&endpick.Request{Model: name}, nil)
				m.Observe(failed(name, name))
				if i%50 == 0 {
					gather(t, m)
				}
			}
		})
	}
	group.Wait()
	assert.LessOrEqual(t, len(labels(gather(t, m), "model")), 3)
}

func TestPredictionsAllocateNothing(t *testing.T) {
	m := newMetrics()
	p := m.Predictor(slow{})
	m.Observe(streamed("llama", ""))
	for _, name := range []string{"llama", "unheard of"} {
		req := endpick.Request{Model: name}
		assert.Zero(t, testing.AllocsPerRun(100, func() { p.Predict(&req, nil) }), name)
	}
}

// slow is a predictor without predictions.
type slow struct{}

func (slow) Predict(*endpick.Request, []endpick.Candidate) {}

type bomb struct{}

func (bomb) Predict(*endpick.Request, []endpick.Candidate) { panic("boom") }
