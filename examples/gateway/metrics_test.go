package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// badNames are possible contents of a model's name.
var badNames = map[string]string{
	"no UTF-8":  "\xff",
	"half rune": "model\xe2\x82",
	"too long":  strings.Repeat("m", 1<<16),
	"empty":     "",
	"markup":    `<script>"\n`,
	"the rest":  "other",
}

func scrapeMetrics(t *testing.T, h http.Handler) string {
	t.Helper()
	return see(t, h, "/metrics")
}

// A streamed request whose client leaves after the first token ends on a
// goroutine without recovery, where a panic would end the process.
func TestAClientCannotEndTheProcessByAName(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	g := gatewayOf(t, plain("lmetric"), endpick.Endpoint{ID: "a", Address: server.URL})
	front := serving(t, g)
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
	require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
	models := regexp.MustCompile(`(?m)^endpick_ttft_seconds_count\{model="(.*?)"\}`).FindAllStringSubmatch(scrapeMetrics(t, g.admin), -1)
	assert.Len(t, models, 1)
	assert.Equal(t, "other", models[0][1])
	text := see(t, g.admin, "/debug/endpick")
	page(t, text)
	assert.Less(t, len(text), 32<<10, "whatever they are called")
}

type spanReceiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *spans.Span
}

func (r *spanReceiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, resource := range in.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.got <- s
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// The gateway's spans reach a collector and continue in its servers.
func TestTraces(t *testing.T) {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	r := &spanReceiver{got: make(chan *spans.Span, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")

	parents := make(chan string, 1)
	engine := answering(t, func(w http.ResponseWriter, in *http.Request) {
		parents <- in.Header.Get("Traceparent")
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`))
	})
	c := start(t, "-backend", engine.URL)
	status, body := post(t, c.url, false)
	require.Equal(t, http.StatusOK, status, body)
	s := soon(t, r.got, "a span")
	require.Equal(t, "chat demo-8b", s.Name)
	require.Equal(t, "00-"+hex.EncodeToString(s.TraceId)+"-"+hex.EncodeToString(s.SpanId)+"-01", <-parents)
	got := map[string]string{}
	for _, a := range s.Attributes {
		got[a.Key] = a.Value.GetStringValue()
	}
	require.Equal(t, engine.URL, got["endpick.endpoint"])
	require.Equal(t, "marginal-delay", got["endpick.policy"])
	c.ends(t, 0)
}

// A collector that is not there is in the gateway's log, in its format.
func TestTracesWithoutCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "50")
	c := start(t, "-backend", newBackend(t).URL)
	status, _ := post(t, c.url, false)
	require.Equal(t, http.StatusOK, status)
	c.logs(t, "level=WARN msg=traces error=", 1)
}
