package transport_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

// A panic in a callback costs only the work it was called for, on whatever
// goroutine it runs: when the response ends, or when the client leaves.
func TestPanicsOfCallbacksAreContained(t *testing.T) {
	for _, tc := range []struct {
		name   string
		set    func(*transport.Config)
		stage  string // "": no place to report it
		status int
	}{
		{"Record", func(c *transport.Config) { c.Record = func(recording.Request) { panic("boom") } }, "transport.Config.Record", 200},
		{"Warn", func(c *transport.Config) { c.Warn = func(*http.Request, error) { panic("boom") } }, "", 200},
		{"Describe", func(c *transport.Config) {
			c.Describe = func(*http.Request, []byte, *endpick.Request) { panic("boom") }
		}, "transport.Config.Describe", 500},
		{"Tokens", func(c *transport.Config) {
			c.Tokens = func(context.Context, *endpick.Request, string, []byte) ([]uint32, int) { panic("boom") }
		}, "transport.Config.Tokens", 200},
		{"Record and Warn", func(c *transport.Config) {
			c.Record = func(recording.Request) { panic("boom") }
			c.Warn = func(*http.Request, error) { panic("boom") }
		}, "", 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				if r.Header.Get("X-Mood") == "" {
					return false
				}
				sse(role+delta(`"content":"Once"`))(w, r, body)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return true
			})
			w := newWorld(t, transport.Config{}, e.URL)
			var mu sync.Mutex
			var panics []*endpick.PanicError
			config := transport.Config{Router: w.router, Warn: func(_ *http.Request, err error) {
				if p, ok := err.(*endpick.PanicError); ok {
					mu.Lock()
					defer mu.Unlock()
					panics = append(panics, p)
				}
			}}
			tc.set(&config)
			tr := rig.Must(transport.New(config))
			w.client.Transport = tr
			defer tr.CloseIdleConnections()

			_, _, err := w.do(t, post(t, chatPath, chatStream, transport.PriorityHeader, "x"))
			if tc.status == 200 {
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(context.Background())
				resp, err := w.client.Do(post(t, chatPath, chatStream, "X-Mood", "hang", transport.PriorityHeader, "x").WithContext(ctx))
				require.NoError(t, err)
				_, err = io.ReadFull(resp.Body, make([]byte, len(role)))
				require.NoError(t, err)
				cancel() // no reader: the exchange ends on a goroutine of its own
				require.Eventually(t, func() bool { return len(w.observer.all()) == 2 }, 30*time.Second, time.Millisecond)
				assert.Equal(t, endpick.Completed, w.observer.all()[0].Status)
				assert.Equal(t, endpick.Canceled, w.observer.all()[1].Status)
				resp.Body.Close()
			} else {
				var p *endpick.PanicError
				require.ErrorAs(t, err, &p)
				assert.Equal(t, tc.status, transport.StatusOf(err))
				assert.Empty(t, w.observer.all(), "it was not sent")
			}
			w.idle(t)
			require.Eventually(t, func() bool { return tr.Stats().Panics >= 1 }, 30*time.Second, time.Millisecond)
			if tc.stage != "" {
				mu.Lock()
				defer mu.Unlock()
				panics[0].Stack = nil
				assert.Equal(t, &endpick.PanicError{Stage: tc.stage, Value: "boom"}, panics[0])
			}
		})
	}
}
