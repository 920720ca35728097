package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// quick are the arguments of a comparison that takes a few seconds.
var quick = []string{"-duration", "1500ms", "-rate", "40", "-turns", "2", "-think", "50ms", "-groups", "6", "-system-tokens", "1500", "-kv-tokens", "6144"}

func TestCompareJSON(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), append(slices.Clone(quick), "-format", "json", "-policies", "round-robin,lmetric"), &stdout, &stderr), stderr.String())
	d := json.NewDecoder(&stdout)
	d.DisallowUnknownFields()
	var got []traffic.Result
	require.NoError(t, d.Decode(&got))
	require.ErrorIs(t, rig.Err(d.Token()), io.EOF, "one array and nothing else")
	require.Len(t, got, 2)
	for i, policy := range []string{"round-robin", "lmetric"} {
		r := got[i]
		require.Equal(t, policy, r.Policy)
		require.Equal(t, got[0].Requests, r.Requests, "the same workload")
		require.Greater(t, r.Requests, 5)
		require.Zero(t, r.Failed)
		require.Less(t, r.TTFT.P50, r.E2E.P50)
		require.Positive(t, r.TPOT.P50)
		require.GreaterOrEqual(t, *r.PrefixHitRatio, 0.0)
		require.Less(t, *r.PrefixHitRatio, 1.0)
	}
	require.Greater(t, *got[1].PrefixHitRatio, *got[0].PrefixHitRatio+0.1)
	require.Greater(t, *got[1].LaterHitRatio, *got[1].PrefixHitRatio, "the first turn of a conversation is new")
}

func TestCompareTable(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	args := []string{"-duration", "400ms", "-think", "0s", "-turns", "2", "-policies", "least-loaded,predicted-latency", "-slo-ttft", "1ms", "-slo-tpot", "1m"}
	require.Equal(t, 0, run(t.Context(), args, &stdout, &stderr), stderr.String())
	require.Regexp(t, `(?m)^ +policy +requests +failed +p50.* all +later turns +met$`, stdout.String())
	require.Regexp(t, `(?m)^ *least-loaded +\d+ +0( +[\d.]+){8} +0.00$`, stdout.String())
	require.Regexp(t, `(?m)^ *predicted-latency +\d+ +0( +[\d.]+){8} +0.00$`, stdout.String())
	require.Regexp(t, `^2 policies, \d+ requests\n$`, stderr.String(), "no progress where there is no terminal")
}

// With existing servers, a second round finds nothing of the first in the caches, and one
// server with all their capacity is measured for comparison.
func TestCompareServersThatAreThere(t *testing.T) {
	t.Parallel()
	f := rig.Must(traffic.StartFleet(3, rig.Must(traffic.ServerConfig(65536))))
	defer func() { assert.NoError(t, f.Close()) }()
	args := []string{"-single", "http://" + f.Members[2].Address + "/", "-repeat", "2", "-policies", "lmetric", "-format", "json",
		"-duration", "600ms", "-rate", "20", "-turns", "2", "-think", "10ms", "-groups", "1000", "-system-tokens", "500"}
	for _, m := range f.Members[:2] {
		args = append(args, "-backend", "http://"+m.Address)
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), args, &stdout, &stderr), stderr.String())
	var got []traffic.Result
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
	require.Len(t, got, 2)
	require.Equal(t, []string{"lmetric", "one server"}, []string{got[0].Policy, got[1].Policy})
	require.Equal(t, got[0].Requests, got[1].Requests)
	for _, r := range got {
		// A first prompt has some 590 tokens, all of them new. A second one has 130 to 140
		// more: the answer is cached and 90 are new.
		const later, all = 640.0 / 730, 640.0 / (590 + 730)
		if r.Policy == "one server" {
			require.InDelta(t, later, *r.LaterHitRatio, 0.03)
			require.InDelta(t, all, *r.PrefixHitRatio, 0.03)
		} // under a policy, a conversation may move
		require.LessOrEqual(t, *r.LaterHitRatio, later+0.03)
		require.LessOrEqual(t, *r.PrefixHitRatio, all+0.03)
		require.Positive(t, *r.LaterHitRatio)
	}
	require.Positive(t, f.Members[0].Server.Totals().Completed)
	require.Positive(t, f.Members[1].Server.Totals().Completed)
}

func TestFailures(t *testing.T) {
	var stdout, stderr bytes.Buffer
	nobody := httptest.NewServer(http.NotFoundHandler())
	defer nobody.Close()
	require.Equal(t, 1, run(t.Context(), []string{"-backend", nobody.URL}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "/v1/models, 404 Not Found, lists no model: name one with -model")

	stderr.Reset()
	args := []string{"-backend", nobody.URL, "-model", "m", "-duration", "200ms", "-policies", "random"}
	require.Equal(t, 1, run(t.Context(), args, &stdout, &stderr))
	require.Regexp(t, `demo: random: \d+ requests failed, the first: 404 Not Found`, stderr.String())

	stdout.Reset()
	stderr.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Equal(t, 1, run(ctx, nil, &stdout, &stderr), "interrupted")
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "demo: round-robin: context deadline exceeded")
}

// A simulated engine, for a gateway to ask, until the interrupt.
func TestServe(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	r, w := io.Pipe()
	status := make(chan int)
	go func() {
		status <- run(ctx, []string{"-serve", "127.0.0.1:0", "-model", "m", "-speed", "2"}, w, io.Discard)
	}()
	url, model, _ := strings.Cut(strings.TrimSpace(rig.Must(bufio.NewReader(r).ReadString('\n'))), " has ")
	require.Equal(t, "m", model)
	require.Equal(t, "m", rig.Must(traffic.ModelOf(ctx, url)))
	interrupt()
	require.Zero(t, <-status)
	require.Error(t, rig.Err(traffic.ModelOf(t.Context(), url)))
}

func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"-model m":                            "-model needs -backend",
		"-single http://a":                    "-single needs -backend",
		"-backend http://a -single b":         "-single: want http://HOST",
		"-backend http://a -endpoints 2":      "-endpoints and -kv-tokens are for embedded servers",
		"-backend a:80":                       "want http://HOST",
		"-backend http://a -backend http://a": "given twice",
		"-repeat 0":                           "-repeat 0 is below 1",
		"-serve :1 -backend http://a":         "-serve and -backend can't both be given",
		"-api best":                           `-api "best" is none of chat, completions, messages, responses`,
		"-policies lmetric,,":                 `policy "" is unknown`,
		"-policies lmetric,lmetric":           `policy "lmetric" is given twice`,
		"-duration 0s":                        "-duration 0s is not above zero",
		"-rate NaN":                           "-rate NaN is not above zero",
		"-format xml":                         `-format "xml" is neither table nor json`,
		"-think -1s":                          "-think -1s is negative",
		"-system-tokens 20000":                "-kv-tokens 16384 can't hold a conversation of",
		"-slo-ttft -1s":                       "-slo-ttft -1s is not within 1ms and 1h0m0s",
		"-slo-tpot 2h":                        "-slo-tpot 2h0m0s is not within 1ms and 1h0m0s",
		"-frobnicate":                         "flag provided but not defined",
		"something":                           `unexpected argument "something"`,
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		require.Contains(t, stderr.String(), want)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line, which no list of flags hides")
		require.Empty(t, stdout.String())
	}
	var stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"-h"}, nil, &stderr))
	require.Contains(t, stderr.String(), "-duration")
}
