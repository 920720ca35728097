package extproc_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/extproc"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const documented = "../../examples/epp/envoy.yaml"

// modes are edits of that: the ways in which gateways send bodies.
var modes = map[string][]string{
	"as documented": nil,
	"full duplex":   {"request_body_mode: BUFFERED", "request_body_mode: FULL_DUPLEX_STREAMED"},
	"buffered":      {"response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: BUFFERED"},
}

// patient is an edit for machines that are busy.
var patient = []string{"message_timeout: 5s", "message_timeout: 60s"}

func secured() grpc.ServerOption { return grpc.Creds(credentials.NewTLS(envoy.TLS())) }

func serversOf(router *endpick.Router) (all []string) {
	for _, e := range router.Endpoints() {
		all = append(all, strings.TrimPrefix(e.Candidate.Endpoint.Address, "http://"))
	}
	return all
}

// behind is a world behind an Envoy, and that Envoy's URL.
func behind(t testing.TB, config extproc.Config, edits []string, servers ...*httptest.Server) (*world, string) {
	config.Dispatcher.Fallbacks = 2
	w := newWorld(t, config, endpoints(servers...)...)
	at, _, _ := listen(t, w.server, "127.0.0.1:0", secured())
	return w, envoy.Start(t, documented, at, serversOf(w.router), append(patient, edits...)...)
}

// endpoints returns those of servers; for nil, one at which nothing listens.
func endpoints(servers ...*httptest.Server) (all []endpick.Endpoint) {
	for i, s := range servers {
		e := endpick.Endpoint{ID: string(rune('a' + i)), Address: "127.0.0.1:1"}
		if s != nil {
			e.Address = s.URL
		}
		all = append(all, e)
	}
	return all
}

// engine answers with a hash of what it received, and with that, or a stream.
func engine(t testing.TB) *httptest.Server {
	return server(t, func(w http.ResponseWriter, in *http.Request) {
		body, err := io.ReadAll(in.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", len(body), sha256.Sum256(body)))
		if in.URL.Path == "/echo" {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Write(body)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "X-After")
		io.WriteString(w, events+usage+done)
		w.Header().Set("X-After", "1")
	})
}

func server(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

// h2 is a client of HTTP/2 in the clear, which has trailers.
func h2(t testing.TB) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	base := &http.Transport{Protocols: p}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: base}
}

func do(t testing.TB, client *http.Client, method, url string, body []byte, header ...string) (*http.Response, string) {
	t.Helper()
	in := rig.Must(http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body)))
	for i := 0; i < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	if header == nil && len(body) > 0 {
		in.Trailer = http.Header{"X-Checksum": {"1"}}
		in.ContentLength = -1
	}
	response := rig.Must(client.Do(in))
	defer response.Body.Close()
	return response, string(rig.Must(io.ReadAll(response.Body)))
}

// Bodies of every size arrive once and unchanged, in both directions, and trailers with them; also
// at the second server.
func TestBodiesThroughEnvoy(t *testing.T) {
	for mode, edits := range modes {
		t.Run(mode, func(t *testing.T) {
			edits = append(edits, "http_protocol_options: {}", "http_protocol_options: {enable_trailers: true}")
			w, url := behind(t, extproc.Config{}, edits, nil, engine(t))
			client := http.DefaultClient
			require.NoError(t, w.router.Remove("a")) // unreachable
			for _, size := range []int{0, 1, 62_000, 62_001, 20 << 20} {
				body := bytes.Repeat([]byte{'x', 0, 0xff, '\n'}, size/4+1)[:size]
				response, got := do(t, client, "POST", url+"/echo", body)
				assert.Equal(t, 200, response.StatusCode)
				assert.Equal(t, fmt.Sprintf("%d %x", size, sha256.Sum256(body)), response.Header.Get("X-Sum"))
				assert.True(t, string(body) == got, "%d bytes", size)
			}
			w.idle(t)
			assert.NotContains(t, w.heard.Said(), "failed")
			if client = h2(t); mode == "full duplex" {
				return // what is sent again has its body twice, if there are trailers
			}
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "a", Address: "127.0.0.1:1", Models: []string{"m"}}))
			long := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("all work and no play ", 1_000_000) + `"}]}`
			response, got := do(t, client, "POST", url+chatPath, []byte(long))
			want := `{"stream_options":{"include_usage":true},` + long[1:]
			assert.Equal(t, fmt.Sprintf("%d %x", len(want), sha256.Sum256([]byte(want))), response.Header.Get("X-Sum"))
			assert.Equal(t, events+done, got)
			assert.Equal(t, "1", response.Trailer.Get("X-After"))
			w.idle(t)
			assert.Contains(t, w.heard.Said(), "a failed, b completed")
			assert.Empty(t, w.warned.Take())
			for size, says := range map[int]string{32<<20 + 1: "longer than 33554432 bytes", 33<<20 - 1: "longer than", 36 << 20: "Payload Too Large"} {
				response, got = do(t, client, "POST", url+"/echo", make([]byte, size))
				assert.Equal(t, 413, response.StatusCode)
				assert.Contains(t, got, says)
			}
		})
	}
}

// counts are how often servers were asked.
type counts [3]atomic.Int32

func (c *counts) take() [3]int32 { return [3]int32{c[0].Swap(0), c[1].Swap(0), c[2].Swap(0)} }

// What a server can't take goes to the next in the picker's list and to no other, if it may be sent
// twice; and the last one's answer to the client.
func TestEnvoyAsksTheNext(t *testing.T) {
	for how, want := range map[string]struct {
		status int    // of the last
		said   string // of both, if the second serves
	}{
		"429": {429, "a refused, b completed"}, "502": {502, "a failed, b completed"}, "503": {503, "a failed, b completed"},
		"529": {529, "a failed, b completed"}, "reset": {503, "a failed, b completed"}, "500": {500, "a failed, b completed"}, "404": {404, "a refused"},
	} {
		t.Run(how, func(t *testing.T) {
			var asked counts
			var wrong atomic.Bool
			member := func(i int) *httptest.Server {
				return server(t, func(w http.ResponseWriter, in *http.Request) {
					io.Copy(io.Discard, in.Body)
					asked[i].Add(1)
					var status int
					switch _, err := fmt.Sscan(how, &status); {
					case i == 1 && !wrong.Load():
						w.Header().Set("Content-Type", "text/event-stream")
						io.WriteString(w, events+done)
					case err != nil:
						panic(http.ErrAbortHandler)
					default:
						w.WriteHeader(status)
						fmt.Fprint(w, "sorry ", i)
					}
				})
			}
			w, url := behind(t, extproc.Config{}, nil, member(0), member(1), member(2))
			require.NoError(t, w.router.Remove("c"))
			response, got := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
			asks := [3]int32{1}
			if strings.HasSuffix(want.said, "b completed") {
				asks[1] = 1
				assert.Equal(t, events+done, got)
			} else {
				assert.Equal(t, want.status, response.StatusCode)
			}
			assert.Equal(t, asks, asked.take())
			w.idle(t)
			assert.Equal(t, want.said, w.heard.Said())

			wrong.Store(true)
			response, got = do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
			assert.Equal(t, want.status, response.StatusCode)
			n := asked.take()
			assert.Equal(t, [2]int32{1, 0}, [2]int32{n[asks[1]], n[2]})
			if how != "reset" {
				assert.Contains(t, got, "sorry ")
			}
			for range 4 {
				do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
			}
			assert.Zero(t, w.health.Core().Unhealthy(), "what all fail may be the client's fault")
			asked.take()
			for _, method := range []string{"POST", "DELETE"} {
				do(t, http.DefaultClient, method, url+"/v1/files", []byte("x"), "Content-Type", "text/plain")
				n = asked.take()
				assert.EqualValues(t, 1, n[0]+n[1], method)
			}
			w.idle(t)
		})
	}
}

// Envoy closes idle connections before servers do, which would lose the next request there.
func TestEnvoyAndIdleConnections(t *testing.T) {
	e, opened := httptest.NewUnstartedServer(engine(t).Config.Handler), new(atomic.Int32)
	e.Config.ConnState = func(_ net.Conn, to http.ConnState) {
		if to == http.StateNew {
			opened.Add(1)
		}
	}
	e.Start()
	t.Cleanup(e.Close)
	_, url := behind(t, extproc.Config{}, []string{"idle_timeout: 3s", "idle_timeout: 0.1s"}, e)
	require.Eventually(t, func() bool {
		do(t, http.DefaultClient, "POST", url+"/echo", []byte("x"))
		return opened.Load() == 2
	}, 30*time.Second, time.Second)
}

// A prompt that takes longer than Envoy's five minutes is not played here.
func TestEnvoyWaitsForLongPrompts(t *testing.T) {
	text := rig.Must(os.ReadFile(documented))
	assert.Contains(t, string(text), " stream_idle_timeout: 0s")
	assert.Equal(t, strings.Count(string(text), "cluster: models"), strings.Count(string(text), "timeout: 0s")-1)
}

// More requests than Envoy would have open by default, and more retries.
func TestManyThroughEnvoy(t *testing.T) {
	const n = 1100
	var begun, whole atomic.Int32
	open := make(chan struct{})
	full := server(t, func(w http.ResponseWriter, in *http.Request) { w.WriteHeader(503) })
	e := server(t, func(w http.ResponseWriter, in *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, events)
		w.(http.Flusher).Flush()
		if begun.Add(1) == n {
			close(open)
		}
		select {
		case <-open:
			io.WriteString(w, usage+done)
		case <-time.After(30 * time.Second):
		}
	})
	w, url := behind(t, extproc.Config{}, nil, full, e)
	client := h2(t)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, got := do(t, client, "POST", url+chatPath, []byte(chatBody)); got == events+done {
				whole.Add(1)
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, n, whole.Load())
	w.idle(t)
}

func TestEnvoyAndSubsets(t *testing.T) {
	const hint = `          - name: hint
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules: [{header: x-subset, on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset}}]
`
	var asked counts
	var all []*httptest.Server
	for i := range asked {
		all = append(all, server(t, func(w http.ResponseWriter, in *http.Request) { asked[i].Add(1); w.WriteHeader(503) }))
	}
	const filters = "          http_filters:\n"
	w, url := behind(t, extproc.Config{}, []string{filters, filters + hint}, all...)
	at := serversOf(w.router)
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "10.9.9.9:1"})) // is no server of Envoy's
	for subset, want := range map[string][3]int32{at[1]: {0, 1, 0}, at[2] + ", " + at[1]: {0, 1, 1}, "10.9.9.9:1": {}} {
		response, _ := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody), "X-Subset", subset)
		assert.Equal(t, 503, response.StatusCode)
		assert.Equal(t, want, asked.take())
	}
}

// hung is a picker that says nothing, or nothing any more.
type hung struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (hung) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	<-stream.Context().Done()
	return nil
}

func TestEnvoyAndAHungPicker(t *testing.T) {
	g := grpc.NewServer(secured())
	extprocv3.RegisterExternalProcessorServer(g, hung{})
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	go g.Serve(l)
	defer g.Stop()
	url := envoy.Start(t, documented, l.Addr().String(), nil, "message_timeout: 5s", "message_timeout: 0.2s")
	began := time.Now()
	response, got := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
	assert.Equal(t, 504, response.StatusCode, got)
	assert.Less(t, time.Since(began), 10*time.Second)
}

// A picker that stops drains, and its successor takes over: nothing is lost. Without one, clients
// get 503.
func TestEnvoyAndAPickerThatRestarts(t *testing.T) {
	w := newWorld(t, extproc.Config{}, endpoints(engine(t))...)
	at, _, stop := listen(t, w.server, "127.0.0.1:0", secured())
	url := envoy.Start(t, documented, at, serversOf(w.router), patient...)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var served, lost atomic.Int32
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if response, _ := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody)); response.StatusCode == 200 {
					served.Add(1)
				} else {
					lost.Add(1)
				}
			}
		})
	}
	for range 3 {
		require.Eventually(t, func() bool { return served.Load() > 50 }, 30*time.Second, time.Millisecond)
		served.Store(0)
		stop()
		_, _, stop = listen(t, w.server, at, secured())
	}
	cancel()
	clients.Wait()
	assert.Zero(t, lost.Load())
	stop()
	response, _ := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
	assert.Equal(t, 503, response.StatusCode)
}

// An engine that is killed breaks off what it was answering, and gets nothing more; no lease stays.
func TestEnvoyAndAKilledEngine(t *testing.T) {
	var streams sync.WaitGroup
	streams.Add(8)
	doomed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, events[:52])
		w.(http.Flusher).Flush()
		<-in.Context().Done()
	}))
	w, url := behind(t, extproc.Config{}, nil, doomed, engine(t))
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			response, err := http.Post(url+chatPath, "application/json", strings.NewReader(chatBody))
			if assert.NoError(t, err) {
				assert.NoError(t, rig.Err(io.ReadFull(response.Body, make([]byte, 52))))
				streams.Done()
				got, err := io.ReadAll(response.Body)
				assert.Error(t, err)
				assert.NotContains(t, string(got), "[DONE]")
				response.Body.Close()
			}
		})
	}
	streams.Wait() // until clients have seen the beginning
	doomed.CloseClientConnections()
	doomed.Close()
	clients.Wait()
	w.idle(t)
	for range 20 {
		_, got := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
		assert.Equal(t, events+done, got)
	}
	w.idle(t)
}

// A gateway that takes one address, as in the tests of the Gateway API Inference Extension.
func TestEnvoyThatTakesOneAddress(t *testing.T) {
	w := newWorld(t, extproc.Config{}, endpoints(engine(t))...)
	at, _, _ := listen(t, w.server, "127.0.0.1:0", secured())
	url := envoy.Start(t, "../../internal/lab/envoy/original_dst.yaml", at, nil)
	_, got := do(t, http.DefaultClient, "POST", url+chatPath, []byte(chatBody))
	assert.Equal(t, events+done, got)
	w.idle(t)
	assert.Equal(t, "a completed", w.heard.Said())
}

func TestWebSocketsThroughEnvoy(t *testing.T) {
	e := server(t, func(w http.ResponseWriter, in *http.Request) {
		conn, both, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
		both.Flush()
		io.Copy(conn, both)
	})
	for mode, edits := range modes {
		t.Run(mode, func(t *testing.T) {
			w, url := behind(t, extproc.Config{}, edits, e)
			conn := rig.Must(net.Dial("tcp", strings.TrimPrefix(url, "http://")))
			fmt.Fprint(conn, "GET /v1/realtime?model=m HTTP/1.1\r\nHost: models\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\r\nhello")
			require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
			answers := bufio.NewReader(conn)
			assert.Equal(t, 101, rig.Must(http.ReadResponse(answers, nil)).StatusCode)
			heard := make([]byte, 5)
			_ = rig.Must(io.ReadFull(answers, heard))
			assert.Equal(t, "hello", string(heard))
			conn.Close()
			w.idle(t)
		})
	}
}
