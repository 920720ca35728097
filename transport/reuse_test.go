package transport_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// The memory of bodies is reused. Whatever becomes of a request, no server ever
// gets a byte of another's: not by a retry, not when a client leaves, and not when
// a server answers before it has read the body, or never.
func TestBodiesAreNotMixedUp(t *testing.T) {
	var served atomic.Int64
	mixed := make(chan string, 1)
	engine := func(choice uint64) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := rand.N[uint64](100) + choice
			if n%7 == 0 { // without reading
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if n%11 == 0 {
				_ = http.NewResponseController(w).EnableFullDuplex()
				io.WriteString(w, "{")
				w.(http.Flusher).Flush()
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the client has left
			}
			id := r.Header.Get("X-Id")
			text := strings.TrimSuffix(string(body[bytes.IndexByte(body, ':')+1:]), `"}]}`)
			if words := strings.Count(text, id+" "); words*(len(id)+1) < len(text)-100 {
				select {
				case mixed <- fmt.Sprintf("%s: %.200q", id, body):
				default:
				}
			}
			switch {
			case n%13 == 0:
				panic(http.ErrAbortHandler)
			case n%5 == 0 && n%11 != 0:
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			served.Add(1)
			if n%11 != 0 {
				io.WriteString(w, "{")
			}
			io.WriteString(w, "}")
		})
	}
	var endpoints []endpick.Endpoint
	for i := range 3 {
		s := httptest.NewServer(engine(uint64(i)))
		defer s.Close()
		s.Config.ErrorLog = nil
		endpoints = append(endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Address: s.URL})
	}
	router, err := endpick.New(endpick.Config{Endpoints: endpoints})
	require.NoError(t, err)
	tr, err := transport.New(transport.Config{Router: router, RetryBurst: 10_000, RetryShare: 1})
	require.NoError(t, err)
	defer tr.CloseIdleConnections()
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(client)))
			for i := range 25 {
				id := fmt.Sprintf("%d-%d", client, i)
				size := 3000 << r.IntN(7)
				body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(id+" ", size/len(id)) + `"}]}`
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(4) == 0 {
					time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, cancel)
				}
				var in io.Reader = strings.NewReader(body)
				if r.IntN(3) == 0 {
					in = io.MultiReader(in) // of unknown length
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway"+chatPath, in)
				if !assert.NoError(t, err) {
					cancel()
					return
				}
				req.Header.Set("X-Id", id)
				if resp, err := tr.RoundTrip(req); err == nil {
					if r.IntN(5) > 0 {
						io.Copy(io.Discard, resp.Body)
					}
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	clients.Wait()
	select {
	case what := <-mixed:
		t.Error("a server has got what is not this request's:", what)
	default:
	}
	assert.NotZero(t, served.Load())
}

// Engines get bodies of any length whole, including inserted fields, and again after an
// engine that did not read to the end.
func TestBodiesOfAnyLengthArriveWhole(t *testing.T) {
	deaf := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 1000)
		panic(http.ErrAbortHandler)
	}))
	defer deaf.Close()
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{RetryBurst: 1000, RetryShare: 1}, deaf.URL, e.URL)
	const head, tail = `{"model":"m","stream":true,"messages":[{"role":"user","content":"`, `"}]}`
	for _, length := range []int{1, 3 << 10, 4 << 10, 15 << 10, 16<<10 - 200, 16 << 10, 17 << 10, 32 << 10, 100_000, 1<<20 + 1, 5 << 20} {
		var text strings.Builder
		for i := 0; text.Len() < length; i++ {
			fmt.Fprintf(&text, "%d ", i)
		}
		body := head + text.String() + tail
		w.ok(t, post(t, chatPath, body))
		want := `{"stream_options":{"include_usage":true},` + body[1:]
		got := e.lastBody()
		require.Equal(t, len(want), len(got))
		require.True(t, want == got, "%d bytes", length)
	}
	assert.NotZero(t, w.t.Stats().Retries)
	w.idle(t)
}
