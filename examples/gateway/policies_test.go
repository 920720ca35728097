package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func fourEndpoints() (all []endpick.Endpoint) {
	for i := range 4 {
		all = append(all, endpick.Endpoint{ID: fmt.Sprint("e", i), Address: fmt.Sprintf("127.0.0.1:%d", i+1), KVTokens: 1 << 16})
	}
	return all
}

// A policy decides for its models exactly as it does alone, request by request,
// whatever the other models' policy is.
func TestPerModelIsTheModelsPolicy(t *testing.T) {
	for _, name := range []string{"round-robin", "least-loaded", "load-prefix", "lmetric", "aibrix", "sglang", "power-of-two", "predicted-latency:synchronous", "random"} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			clock := func() time.Time { return now }
			build := func(policy string, models map[string]modelSettings) *endpick.Router {
				var ps policies
				p := rig.Must(ps.compose(policy, models, false))
				r := rig.Must(endpick.New(endpick.Config{Policy: p, Endpoints: fourEndpoints(), Seed: 7, Clock: clock}))
				return r
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

// Only the admitters and predictors of the model's policy run; learners observe all
// requests.
func TestPerModelStages(t *testing.T) {
	var ps policies
	_, err := ps.compose("predicted-latency", map[string]modelSettings{"m": {Policy: "lmetric"}}, false)
	require.NoError(t, err)
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
	r, err := endpick.New(endpick.Config{Policy: p, Endpoints: fourEndpoints(), Clock: func() time.Time { return now }})
	require.NoError(t, err)
	_, err = r.Route(endpick.Request{Model: "m", InputTokens: 10})
	require.ErrorIs(t, err, errRefused)
	lease, err := r.Route(endpick.Request{Model: "n", InputTokens: 10, Stream: true})
	require.NoError(t, err)
	now = now.Add(time.Second)
	lease.FirstToken()
	lease.Done(endpick.Outcome{OutputTokens: 1})
	health := latency.Health()
	require.Len(t, health, 1)
	require.Equal(t, "n", health[0].Model)
	require.NoError(t, r.Remove("e0"))

	_, err = ps.compose("best", nil, false)
	require.Error(t, err)
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
		Tenant: "ann", Attempts: []transport.ObservedAttempt{{HTTP: 200}},
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
		(&requestLog{log: logger, which: tc.which}).ended(&tc.r)
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
	r, err := endpick.New(endpick.Config{Policy: p, Endpoints: fourEndpoints(), Clock: func() time.Time { return time.Unix(1000, 0) }})
	require.NoError(t, err)
	for range 5 {
		_, err = r.Route(endpick.Request{Model: "m", InputTokens: 60})
		require.ErrorIs(t, err, errRefused)
	}
}
