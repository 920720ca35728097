package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/require"
)

// BenchmarkProxied measures what the gateway adds to a request, beside a plain
// httputil.ReverseProxy with the same flushing, one with a transport, and the way without any: CPU,
// of the whole process, and the median latency. What each takes is its figure less the direct one:
//
//	go test -run XXX -bench Proxied -benchtime 2000x -count 5 ./examples/gateway
func BenchmarkProxied(b *testing.B) {
	const tokens = 50
	chunk := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.ContentLength > 1<<18 {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"word"}}],"usage":{"prompt_tokens":200000,"completion_tokens":1}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range tokens {
			_, _ = io.WriteString(w, chunk)
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer engine.Close()
	text := strings.Repeat(`All work and no play makes a dull day.\n`, 100) // as JSON: prompts have line breaks
	for _, body := range []struct{ name, text string }{
		{"50 tokens", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + text + `"}]}`},
		{"1 MB", `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(text, 270) + `"}]}`},
	} {
		for _, way := range []string{"direct", "ReverseProxy", "transport", "gateway"} {
			b.Run(body.name+"/"+way, func(b *testing.B) {
				front := engine.URL
				var handler http.Handler
				switch to, _ := url.Parse(engine.URL); way {
				case "ReverseProxy":
					base := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
					defer base.CloseIdleConnections()
					proxy := &httputil.ReverseProxy{Transport: base, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() }}
					handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						_ = http.NewResponseController(w).EnableFullDuplex() // or some requests break off
						proxy.ServeHTTP(w, r)
					})
				case "transport": // what the gateway is made of
					config := preset.Default()
					config.Endpoints = []endpick.Endpoint{{Address: to.Host}}
					routed := rig.Must(transport.New(transport.Config{Router: rig.Must(endpick.New(config))}))
					defer routed.CloseIdleConnections()
					handler = &httputil.ReverseProxy{Transport: routed, Rewrite: func(r *httputil.ProxyRequest) { r.SetXForwarded() }}
				case "gateway":
					s := rig.Must(parseSettings("test.yaml", []byte("endpoints: [{url: \""+engine.URL+"\"}]\nlog: {requests: none}\n")))
					g := rig.Must(newGateway(s, s.endpoints(), newLogger(io.Discard, &logSettings{Level: "info"})))
					defer g.close()
					handler = g.server(s).Handler
				}
				if handler != nil {
					server := httptest.NewServer(handler)
					defer server.Close()
					front = server.URL
				}
				measure(b, front+"/v1/chat/completions", body.text)
			})
		}
	}
}

// measure sends requests from eight clients.
func measure(b *testing.B, to, body string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	ask := func() time.Duration {
		start := time.Now()
		resp := rig.Must(client.Post(to, "application/json", strings.NewReader(body)))
		defer resp.Body.Close()
		if n := rig.Must(io.Copy(io.Discard, resp.Body)); resp.StatusCode != http.StatusOK || n == 0 {
			panic(resp.Status)
		}
		return time.Since(start)
	}
	for range 20 {
		ask()
	}
	var took rig.List[time.Duration]
	b.ResetTimer()
	before := cpu()
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			took.Add(ask())
		}
	})
	b.ReportMetric(float64(cpu()-before)/float64(b.N)/1e6, "cpu-ms/op")
	all := took.Take()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2])/1e6, "p50-ms")
}

// cpu is the time that this process has computed.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A full disk costs records, all of each, is reported once a minute, and never delays requests.
func TestAFullDiskCostsRecords(t *testing.T) {
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before)) }()
	path := filepath.Join(t.TempDir(), "r")
	var logged bytes.Buffer
	r := rig.Must(newRecorder(&recordSettings{File: path}, slog.New(slog.NewTextHandler(&logged, nil))))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 500, Max: before.Max}))
	const many = 10 * recorderQueue
	for i := range many {
		r.record(someRequest(i)) // returns, whatever the disk does
	}
	require.NoError(t, r.close())
	require.Equal(t, []string{"m0", "m1", "m2", "m3"}, models(t, path))
	require.EqualValues(t, many-4, r.lost.Load())
	require.Equal(t, 1, strings.Count(logged.String(), "file too large"), logged.String())
}
