package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// badNames are what a client may write where a model is named.
var badNames = map[string]string{
	"no UTF-8":  "\xff",
	"half rune": "model\xe2\x82",
	"too long":  strings.Repeat("m", 1<<16),
	"empty":     "",
	"markup":    `<script>"\n`,
	"the rest":  otherModels,
}

func scrapeMetrics(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Body.String()
}

// labelsOn are the models that a page of metrics tells apart in a family.
func labelsOn(page, family string) (all []string) {
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, "inference_objective_request_"+family+`{model_name="`); ok {
			name, _, _ := strings.Cut(rest, `",target`)
			all = append(all, name)
		}
	}
	return all
}

// A streamed request whose client leaves after the first token ends in a
// goroutine of nobody, where a panic would end the process.
func TestAClientCannotEndTheProcessByAName(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	g, err := newGateway(gatewayConfig{
		policy: "lmetric", receipts: 5, log: slog.New(slog.DiscardHandler), endpoints: []endpick.Endpoint{{ID: "a", Address: server.URL}},
	})
	require.NoError(t, err)
	defer g.close()
	front := httptest.NewServer(g)
	defer front.Close()
	for what, name := range badNames {
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/chat/completions",
			strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"hi"}],"model":"`+strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(name)+`"}`))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err, what)
		_, _ = resp.Body.Read(make([]byte, 8))
		leave()
		_ = resp.Body.Close()
	}
	require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 0 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, []string{otherModels}, labelsOn(scrapeMetrics(t, g.admin), "ttft_seconds_count"))
	w := httptest.NewRecorder()
	g.admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/endpick", nil))
	assert.Equal(t, http.StatusOK, w.Code)
	page(t, w.Body.String())
	assert.Less(t, w.Body.Len(), 32<<10, "whatever they are called")
}

// ended lets a watch see a stream of ten tokens that has ended.
func ended(w *watch, model string, status endpick.Status) {
	at := time.Unix(100, 0)
	req := endpick.Request{Model: model, Stream: true}
	w.ends(&endpick.Event{
		Request: &req, Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}}, Now: at.Add(time.Second),
		RoutedAt: at, FirstTokenAt: at.Add(100 * time.Millisecond), LastTokenAt: at.Add(time.Second), OutputTokens: 10,
	}, &endpick.Outcome{Status: status})
}

func TestNamesThatAreNoLabels(t *testing.T) {
	w := &watch{metrics: newMetrics()}
	for what, name := range badNames {
		for _, status := range []endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled} {
			require.NotPanics(t, func() {
				ended(w, name, status)
				w.metrics.predicted(name, time.Millisecond)
				w.record(recording.Request{Model: name, Stream: true, HTTP: 200, Status: "completed", SLOTTFTMillis: 1, SLOTPOTMillis: 1})
			}, what)
		}
	}
	text := scrapeMetrics(t, w.metrics)
	assert.ElementsMatch(t, []string{otherModels, `<script>\"\\n`}, labelsOn(text, "ttft_seconds_count"))
}

// Names that were only asked for take no place of those that are served.
func TestInventedModelsTakeNoLabel(t *testing.T) {
	w := &watch{metrics: newMetrics()}
	for i := range 1000 {
		name := fmt.Sprint("invented ", i)
		w.metrics.predicted(name, time.Millisecond)
		ended(w, name, endpick.Failed)
		ended(w, name, endpick.Canceled)
		w.record(recording.Request{Model: name, Status: "failed", HTTP: 404, SLOTTFTMillis: 1})
	}
	assert.Equal(t, []string{otherModels}, labelsOn(scrapeMetrics(t, w.metrics), "ttft_seconds_count"))
	ended(w, "real", endpick.Completed)
	w.metrics.predicted("real", time.Millisecond)
	text := scrapeMetrics(t, w.metrics)
	assert.Equal(t, []string{otherModels, "real"}, labelsOn(text, "ttft_seconds_count"))
	assert.Contains(t, text, `_ttft_seconds_count{model_name="real",target_model_name="real"} 1`, "the first too")
	assert.Contains(t, text, `_ttft_prediction_duration_seconds_count{model_name="other",target_model_name="other"} 1000`)
	assert.Contains(t, text, `_ttft_slo_violation_total{model_name="other",target_model_name="other"} 1000`)
}

// The models that were served last have labels, and nothing is left of others.
func TestMetricsAreBounded(t *testing.T) {
	w := &watch{metrics: newMetrics()}
	ttft := 50.0
	for i := range 1000 {
		name := fmt.Sprintf("model %03d", i)
		ended(w, "often", endpick.Completed)
		ended(w, name, endpick.Completed)
		w.metrics.predicted(name, time.Millisecond)
		w.record(recording.Request{
			Model: name, Stream: true, HTTP: 200, Status: "completed",
			TTFTMillis: &ttft, E2EMillis: 100, OutputTokens: 10, SLOTTFTMillis: 1, SLOTPOTMillis: 1,
		})
	}
	text := scrapeMetrics(t, w.metrics)
	want := []string{}
	for i := 1000 - maxModelLabels + 1; i < 1000; i++ {
		want = append(want, fmt.Sprintf("model %03d", i))
	}
	for _, family := range []string{"ttft_seconds_count", "ttft_seconds_gauge", "ttft_prediction_duration_seconds_count", "ttft_slo_violation", "tpot_slo_violation_total"} {
		names := want
		if strings.HasPrefix(family, "ttft_seconds") {
			names = append(slices.Clone(want), "often")
		}
		assert.ElementsMatch(t, names, labelsOn(text, family), family)
	}
	assert.Contains(t, text, `_ttft_seconds_count{model_name="often",target_model_name="often"} 1000`)
}
