package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/wrapping"
)

// The mean of 1, 2 and 3 has an interval of 4.30·1/√3.
func TestInterval(t *testing.T) {
	assert.InDelta(t, 4.30/math.Sqrt(3), interval([]float64{1, 2, 3}), 1e-9)
	assert.Zero(t, interval([]float64{2, 2, 2}))
	assert.True(t, math.IsNaN(interval([]float64{1})))
}

// All seeds are compared with the same policy: b, which has the lowest mean.
func TestPairedLosses(t *testing.T) {
	r := round{scores: map[string][]score{"a": {{E2EMean: 100}, {E2EMean: 300}}, "b": {{E2EMean: 200}, {E2EMean: 100}}}}
	value := func(s *score) float64 { return s.E2EMean }
	assert.Equal(t, []float64{0.5, 3}, r.losses([]string{"a", "b"}, "a", value))
	assert.Equal(t, []float64{1, 1}, r.losses([]string{"a", "b"}, "b", value))
}

func TestHeatPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	simulate(t, "tournament", "-contests", "C-qwe,flash", "-policies", "lmetric,round-robin", "-load", "0.8", "-seed", "1,2", "-requests", "150", "-format", "html", "-out", path)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	page := string(text)
	for _, m := range measures {
		assert.Contains(t, page, "<h2>"+m.name+"</h2>")
	}
	assert.Equal(t, len(measures)*2*(1+2), strings.Count(page, `class="loss" style="background: hsl(`), "the mean and two rows of two policies each")
	assert.Contains(t, page, "<i>flash</i>")
	assert.NotContains(t, page, "<i>C-qwe</i>")
	assert.Contains(t, page, ">1.000<")
	assert.NotContains(t, page, "NaN")
	assert.NotContains(t, page, "ZgotmplZ")
	assert.NotContains(t, page, "http")
}

func TestConditions(t *testing.T) {
	rest, c, err := conditionsOf("predicted-latency:most+noise=0.2+events+length=3+reports=50ms")
	require.NoError(t, err)
	assert.Equal(t, "predicted-latency:most+events", rest)
	assert.Equal(t, conditions{noise: 0.2, length: 3, reports: 50 * time.Millisecond, delay: shareDelay}, c)
	rest, c, err = conditionsOf("lmetric+events+routers=4+share=index+delay=0s+late=1s+lost=0.01")
	require.NoError(t, err)
	assert.Equal(t, "lmetric+events", rest)
	assert.Equal(t, conditions{routers: 4, share: "index", late: time.Second, lost: 0.01}, c)
	for _, bad := range []string{"a+noise", "a+noise=1", "a+noise=0", "a+length=-1", "a+length=x", "a+reports=0s", "a+reports=5",
		"a+routers=0", "a+routers=x", "a+share=all", "a+share", "a+delay=-1s", "a+delay=1s", "a+late=1s", "a+lost=0.1", "a+delay=1", "a+late=2h", "a+lost=1", "a+lost=0", "a+lost=x",
	} {
		_, _, err := conditionsOf(bad)
		assert.ErrorContains(t, err, "a: +", bad)
	}
	_, err = newPolicy("lmetric+noise=0.2")
	assert.ErrorContains(t, err, "predicts nothing")
	_, err = newPolicy("marginal-delay+nothing=1")
	assert.Error(t, err)
}

// exact predicts a second for everything.
type exact struct{}

func (exact) Name() string { return "exact" }

func (exact) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: time.Second, TTFTUpper: time.Second, TPOT: time.Second, TPOTUpper: time.Second}
	}
}

// Noise has the strength given and no bias; lengths are scaled by a factor.
func TestNoise(t *testing.T) {
	config := endpick.Config{Seed: 1, Policy: endpick.Policy{Name: "exact", Predictor: exact{}}}
	require.NoError(t, conditions{noise: 0.4, length: 3}.apply(&config))
	for i := range 100 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i)})
	}
	r, err := endpick.New(config)
	require.NoError(t, err)
	var n, first, squares, each float64
	for range 100 {
		receipt := new(endpick.Receipt)
		l, err := r.Route(endpick.Request{InputTokens: 10, Stream: true, Receipt: receipt})
		require.NoError(t, err)
		l.Done(endpick.Outcome{})
		for _, v := range receipt.Verdicts {
			p := v.Candidate.Prediction
			assert.Equal(t, p.TTFT, p.TTFTUpper)
			n, first, each = n+1, first+p.TTFT.Seconds(), each+p.TPOT.Seconds()
			squares += (p.TTFT.Seconds() - 1) * (p.TTFT.Seconds() - 1)
		}
	}
	assert.InDelta(t, 1, first/n, 0.02)
	assert.InDelta(t, 0.4, math.Sqrt(squares/n), 0.02)
	assert.InDelta(t, 3, each/n, 0.06)
	assert.Equal(t, exact{}, config.Policy.Predictor.(*worse).Observer())
}

// Learners behind conditions keep learning.
func TestConditionsHideNothing(t *testing.T) {
	policy := func(s *wrapping.Stage, _ endpick.Admitter) endpick.Policy { return endpick.Policy{Predictor: s} }
	wrapping.Check(t, policy, func(s *wrapping.Stage, gate endpick.Admitter) endpick.Policy {
		config := endpick.Config{Policy: policy(s, gate)}
		require.NoError(t, conditions{noise: 0.1}.apply(&config))
		return config.Policy
	})
}

// The oracle is no worse than the policy it starts from.
func TestOracle(t *testing.T) {
	text := simulate(t, "oracle", "-contests", "agents", "-load", "0.8", "-requests", "12", "-policies", "lmetric,random")
	assert.Contains(t, text, "12 requests, seed 1. The share of the way is how far lmetric goes")
	assert.Regexp(t, `agents +80 % +2\.00 +[0-9.]+ +[0-9.]+ +[0-9.]+`, text)
	var stderr bytes.Buffer
	assert.Equal(t, 2, run([]string{"oracle", "-requests", "5"}, &bytes.Buffer{}, &stderr))
	assert.Contains(t, stderr.String(), "-requests 5 is not within")
}

// A condition in a policy's name does what the flag does for all policies.
func TestConditionsAreFlags(t *testing.T) {
	run := func(policy string, flags ...string) string {
		page := simulate(t, with([]string{"-workload", "C", "-rate", "5", "-endpoints", "3", "-requests", "150", "-format", "json", "-policies", policy}, flags...)...)
		return strings.Replace(page, strconv.Quote(policy), `""`, 1)
	}
	seen := map[string]string{}
	for _, tc := range []struct {
		policy, conditions string
		flags              []string
	}{
		{"lmetric", "+routers=3", []string{"-routers", "3"}},
		{"lmetric", "+reports=2s", []string{"-report-interval", "2s"}},
		{"lmetric", "+routers=3+share=load", []string{"-routers", "3", "-share", "load"}},
		{"lmetric", "+routers=3+share=index+delay=700ms", []string{"-routers", "3", "-share", "index", "-share-delay", "700ms"}},
		{"lmetric+events", "+routers=3", []string{"-routers", "3"}},
		{"lmetric+events", "+routers=3+late=3s", []string{"-routers", "3", "-events-delay", "3s"}},
		{"lmetric+events", "+routers=3+lost=0.01", []string{"-routers", "3", "-events-loss", "0.01"}},
	} {
		page := run(tc.policy + tc.conditions)
		assert.Equal(t, run(tc.policy, tc.flags...), page, tc.conditions)
		assert.Empty(t, seen[page], "%s is the same without %s", tc.conditions, seen[page])
		seen[page] = tc.policy + tc.conditions
	}
}
