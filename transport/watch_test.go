package transport_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// pipes is a network within a synctest bubble: HTTP over net.Pipe.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// bubble runs a test on simulated time; handler serves all endpoints.
func bubble(t *testing.T, config transport.Config, router endpick.Config, handler http.HandlerFunc, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
		go server.Serve(p)
		base := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			client, server := net.Pipe()
			select {
			case p.accept <- server:
				return client, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		config.Base = base
		w := newWorldOf(t, config, router, "a:1")
		defer func() {
			base.CloseIdleConnections()
			server.Close()
		}()
		test(t, w)
		w.idle(t)
	})
}

// speak answers with the pieces, after a pause before each.
func speak(kind string, pauses []time.Duration, pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", kind)
		for i, piece := range pieces {
			select {
			case <-time.After(pauses[i]):
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
			if piece == "header" {
				w.WriteHeader(200)
			} else {
				io.WriteString(w, piece)
			}
			w.(http.Flusher).Flush()
		}
	}
}

const never = 1000 * time.Hour

// A server is given up once it has been silent for longer than a healthy one
// ever is, whatever it has sent before; one that sends in time is not.
func TestSilenceIsBounded(t *testing.T) {
	const stream, object = "text/event-stream", "application/json"
	const s, m = time.Second, time.Minute
	word := delta(`"content":"word"`)
	short := transport.Config{FirstByteTimeout: 30 * s, StallTimeout: 10 * s, ResponseTimeout: 5 * m}
	for _, tc := range []struct {
		name    string
		config  transport.Config
		request string
		kind    string
		pauses  []time.Duration
		pieces  []string
		after   time.Duration // when the client learns of it
		err     bool
	}{
		{"nothing at all", transport.Config{}, chatStream, stream, []time.Duration{never}, []string{"header"}, 2 * m, true},
		{"a header and then nothing", transport.Config{}, chatStream, stream, []time.Duration{s, never}, []string{"header", role}, 2 * m, true},
		{"a role and then nothing", transport.Config{}, chatStream, stream, []time.Duration{s, never}, []string{role, word}, 2*m + s, true},
		{"a token and then nothing", transport.Config{}, chatStream, stream, []time.Duration{s, s, never}, []string{role, word, word}, 2*m + 2*s, true},
		{"all said, but open", transport.Config{}, chatStream, stream, []time.Duration{s, s, never}, []string{word, finish + done, "x"}, 2*m + 2*s, true},
		{"a long wait for each", transport.Config{}, chatStream, stream, []time.Duration{100 * s, 119 * s, 119 * s, 119 * s}, []string{role, word, word, finish + done}, 457 * s, false},

		{"nothing, limits of its own", short, chatStream, stream, []time.Duration{never}, []string{"header"}, 30 * s, true},
		{"a role, limits of its own", short, chatStream, stream, []time.Duration{29 * s, never}, []string{role, word}, 59 * s, true},
		{"a role in time", short, chatStream, stream, []time.Duration{29 * s, 29 * s, s}, []string{role, word, finish + done}, 59 * s, false},
		{"a token, limits of its own", short, chatStream, stream, []time.Duration{29 * s, 29 * s, never}, []string{role, word, word}, 68 * s, true},
		{"an early token, limits of its own", short, chatStream, stream, []time.Duration{s, s, never}, []string{role, word, word}, 12 * s, true},
		{"tokens in time", short, chatStream, stream, []time.Duration{29 * s, 29 * s, 9 * s, 9 * s}, []string{role, word, word, finish + done}, 76 * s, false},
		{"a stream is not bounded in all", short, chatStream, stream, append([]time.Duration{s}, times(50, 9*s)...), append([]string{role}, append(times(49, word), finish+done)...), 451 * s, false},

		{"a stall longer than a first byte", transport.Config{FirstByteTimeout: 10 * s, StallTimeout: 30 * s}, chatStream, stream, []time.Duration{9 * s, 29 * s, 29 * s}, []string{role, word, finish + done}, 67 * s, false},
		{"no answer", transport.Config{}, chatAtOnce, object, []time.Duration{never}, []string{"header"}, 10 * m, true},
		{"a header and no answer", transport.Config{}, chatAtOnce, object, []time.Duration{s, never}, []string{"header", "{}"}, 10 * m, true},
		{"half an answer", transport.Config{}, chatAtOnce, object, []time.Duration{s, s, never}, []string{"header", "{", "}"}, 10 * m, true},
		{"drops of an answer", short, chatAtOnce, object, times(100, 7*s), times(100, " "), 5 * m, true},
		{"an answer in the last second", transport.Config{}, chatAtOnce, object, []time.Duration{s, 598 * s}, []string{"header", "{}"}, 599 * s, false},
		{"an answer to a stream that is none", short, chatStream, object, []time.Duration{29 * s, 200 * s}, []string{"{", "}"}, 229 * s, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.config.MaxAttempts = 1
			bubble(t, tc.config, endpick.Config{}, speak(tc.kind, tc.pauses, tc.pieces...), func(t *testing.T, w *world) {
				start := time.Now()
				_, body, err := w.do(t, post(t, chatPath, tc.request))
				assert.Equal(t, tc.after, time.Since(start).Round(time.Millisecond))
				if !tc.err {
					require.NoError(t, err)
					assert.Equal(t, endpick.Completed, w.outcome(t).Status)
					assert.Equal(t, strings.Join(tc.pieces, ""), strings.Repeat("header", strings.Count(strings.Join(tc.pieces, ""), "header"))+body)
					return
				}
				assert.ErrorIs(t, err, transport.ErrTimeout)
				assert.Equal(t, 504, transport.StatusOf(err))
				assert.Equal(t, endpick.Failed, w.outcome(t).Status)
				if tc.after >= 5*m {
					return
				}
				for range 3 {
					w.do(t, post(t, chatPath, tc.request))
				}
				assert.Error(t, w.monitor.Endpoints()[0].Err, "health has been told")
			})
		})
	}
}

func times[T any](n int, v T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = v
	}
	return all
}

// The body of a failure is bounded as well.
func TestAnErrorThatDoesNotEnd(t *testing.T) {
	bubble(t, transport.Config{MaxAttempts: 1}, endpick.Config{}, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(400)
		io.WriteString(w, `{"error"`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}, func(t *testing.T, w *world) {
		start := time.Now()
		resp, body, err := w.do(t, post(t, chatPath, chatStream))
		require.ErrorIs(t, err, transport.ErrTimeout)
		assert.Equal(t, 400, resp.StatusCode)
		assert.Equal(t, `{"error"`, body)
		assert.Equal(t, 10*time.Minute, time.Since(start).Round(time.Millisecond))
	})
}

// A client that reads slowly makes no server look silent.
func TestAClientThatDoesNotRead(t *testing.T) {
	word := delta(`"content":"` + strings.Repeat("word ", 100) + `"`)
	config := transport.Config{FirstByteTimeout: time.Second, StallTimeout: time.Second, ResponseTimeout: time.Second}
	for request, answer := range map[string]http.HandlerFunc{
		chatStream: speak("text/event-stream", times(21, time.Duration(0)), append(times(20, word), finish+done)...),
		chatAtOnce: speak("application/json", []time.Duration{0, 0}, `{"x":"`+strings.Repeat("x", 10000), `"}`),
	} {
		bubble(t, config, endpick.Config{}, answer, func(t *testing.T, w *world) {
			resp, err := w.client.Do(post(t, chatPath, request))
			require.NoError(t, err)
			for range 5 {
				time.Sleep(time.Minute)
				_, err = io.ReadFull(resp.Body, make([]byte, 1000))
				require.NoError(t, err)
			}
			time.Sleep(time.Minute)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			resp.Body.Close()
			assert.Equal(t, endpick.Completed, w.outcome(t).Status)
		})
	}
}

// A lease lives as long as its request waits for the endpoint, however long that
// is, and nothing else keeps it alive.
func TestLeasesOfLongResponsesAreNotReaped(t *testing.T) {
	const m = time.Minute
	hour := transport.Config{ResponseTimeout: 2 * time.Hour, FirstByteTimeout: 2 * time.Hour, StallTimeout: 2 * time.Hour}
	sweep := func(w *world, minutes int) {
		for range minutes {
			time.Sleep(m)
			w.router.Sweep(time.Now())
		}
	}
	for _, tc := range []struct {
		name, request string
		answer        http.HandlerFunc
	}{
		{"no header", chatAtOnce, speak("application/json", []time.Duration{45 * m}, "{}")},
		{"an early header", chatAtOnce, speak("application/json", []time.Duration{0, 45 * m}, "header", "{}")},
		{"half of it", chatAtOnce, speak("application/json", []time.Duration{0, 45 * m}, "{", "}")},
		{"a stream without a header", chatStream, speak("text/event-stream", []time.Duration{45 * m}, finish+done)},
		{"a stream that pauses", chatStream, speak("text/event-stream", []time.Duration{m, 44 * m}, role, finish+done)},
	} {
		for _, timeout := range []time.Duration{0, m} { // ten minutes
			t.Run(fmt.Sprint(tc.name, timeout), func(t *testing.T) {
				bubble(t, hour, endpick.Config{LeaseTimeout: timeout}, tc.answer, func(t *testing.T, w *world) {
					go sweep(w, 44)
					w.ok(t, post(t, chatPath, tc.request))
					assert.Equal(t, endpick.Completed, w.outcome(t).Status)
					assert.Zero(t, w.router.Stats().Reaped)
				})
			})
		}
	}
	t.Run("a connection that has left HTTP", func(t *testing.T) {
		bubble(t, transport.Config{}, endpick.Config{}, func(w http.ResponseWriter, r *http.Request) { upgrades(echo)(w, r, nil) }, func(t *testing.T, w *world) {
			resp, err := w.t.RoundTrip(upgrade(t, "m"))
			require.NoError(t, err)
			sweep(w, 45)
			conn := resp.Body.(io.ReadWriteCloser)
			fmt.Fprint(conn, "hello\n")
			_, err = io.ReadFull(conn, make([]byte, 6))
			require.NoError(t, err)
			conn.Close()
			assert.Zero(t, w.router.Stats().Reaped)
			assert.Equal(t, endpick.Completed, w.outcome(t).Status)
		})
	})
	t.Run("nobody reads", func(t *testing.T) {
		bubble(t, hour, endpick.Config{}, speak("text/event-stream", []time.Duration{0, 0}, role, finish+done), func(t *testing.T, w *world) {
			resp, err := w.client.Do(post(t, chatPath, chatStream))
			require.NoError(t, err)
			sweep(w, 45)
			assert.EqualValues(t, 1, w.router.Stats().Reaped)
			resp.Body.Close()
		})
	})
}

// A connection that has left HTTP is closed when it has been silent in both directions for
// too long, and not before.
func TestASilentUpgradeIsClosed(t *testing.T) {
	answers := func(c *bufio.ReadWriter) {
		for {
			line, err := c.ReadString('\n')
			if err != nil {
				return
			}
			if line == "say more\n" {
				time.Sleep(50 * time.Minute)
			}
			fmt.Fprint(c, line)
			c.Flush()
		}
	}
	for _, limit := range []time.Duration{0, 70 * time.Minute} { // an hour
		bubble(t, transport.Config{UpgradeTimeout: limit}, endpick.Config{}, func(w http.ResponseWriter, r *http.Request) { upgrades(answers)(w, r, nil) }, func(t *testing.T, w *world) {
			resp, err := w.t.RoundTrip(upgrade(t, "m"))
			require.NoError(t, err)
			conn := resp.Body.(io.ReadWriteCloser)
			for _, line := range []string{"hello\n", "say more\n", "hello\n"} {
				time.Sleep(50 * time.Minute)
				_, err = fmt.Fprint(conn, line)
				require.NoError(t, err)
				_, err = io.ReadFull(conn, make([]byte, len(line)))
				require.NoError(t, err)
			}
			last := time.Now()
			_, err = conn.Read(make([]byte, 1))
			assert.Error(t, err)
			assert.Equal(t, max(limit, time.Hour), time.Since(last).Round(time.Second))
			conn.Close()
			assert.Equal(t, endpick.Completed, w.outcome(t).Status)
		})
	}
}

// Its request ends then, even if nobody reads or closes it, as a proxy does whose client reads
// nothing.
func TestASilentUpgradeEnds(t *testing.T) {
	const limit = 70 * time.Minute
	bubble(t, transport.Config{UpgradeTimeout: limit}, endpick.Config{}, func(w http.ResponseWriter, r *http.Request) { upgrades(echo)(w, r, nil) }, func(t *testing.T, w *world) {
		resp, err := w.t.RoundTrip(upgrade(t, "m"))
		require.NoError(t, err)
		time.Sleep(limit + time.Second)
		assert.Zero(t, w.router.Stats().OpenLeases)
		assert.Zero(t, w.router.Stats().Reaped)
		assert.Equal(t, endpick.Completed, w.outcome(t).Status)
		w.record(t)
		resp.Body.Close()
		w.record(t)
	})
}

// A first byte that arrives just as the endpoint is given up does not start a
// response, since its rest would be cut off. Another endpoint is asked.
func TestAFirstByteTooLate(t *testing.T) {
	for _, first := range []int{1, 512} { // a part of the first event, or all of it
		synctest.Test(t, func(t *testing.T) {
			asked := map[string]int{}
			w := newWorld(t, transport.Config{FirstByteTimeout: time.Second, Base: tripper(func(r *http.Request) (*http.Response, error) {
				asked[r.URL.Host]++
				resp, err := answered(200, "text/event-stream", delta(`"content":"word"`)+finish+done)
				if len(asked) == 1 {
					resp.Body = &late{ctx: r.Context(), rest: resp.Body, first: first}
				}
				return resp, err
			})}, "a", "b", "c")
			_, body := w.ok(t, post(t, chatPath, chatStream))
			assert.Contains(t, body, finish+done)
			assert.Equal(t, map[string]int{"a": 1, "b": 1}, asked)
			w.idle(t)
		})
	}
}

// A stall is a timeout whatever the base makes of a request that is called off.
func TestAStallIsATimeoutWithAnyBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, transport.Config{StallTimeout: time.Second, FirstByteTimeout: time.Second, Base: tripper(func(r *http.Request) (*http.Response, error) {
			from, to := io.Pipe()
			go io.WriteString(to, delta(`"content":"word"`))
			context.AfterFunc(r.Context(), func() { to.CloseWithError(r.Context().Err()) })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: from}, nil
		})}, "a", "b", "c")
		resp, _, err := w.do(t, post(t, chatPath, chatStream))
		require.NotNil(t, resp)
		assert.ErrorIs(t, err, transport.ErrTimeout)
	})
}

// late is a body that returns its first bytes once the request has been given up,
// and nothing after them.
type late struct {
	ctx   context.Context
	rest  io.ReadCloser
	first int
	given bool
}

func (l *late) Read(p []byte) (int, error) {
	<-l.ctx.Done()
	if l.given {
		return 0, context.Cause(l.ctx)
	}
	l.given = true
	return l.rest.Read(p[:min(l.first, len(p))])
}

func (l *late) Close() error { return l.rest.Close() }

// A model may take longer to be loaded than a first token may take, and that is no failure.
func TestLoadsTakeTime(t *testing.T) {
	slow := func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		time.Sleep(300 * time.Millisecond)
		return false
	}
	for _, tc := range []struct {
		state   endpick.Residency
		context int // with which it is loaded
		served  bool
	}{{endpick.OnDisk, 0, true}, {endpick.Loading, 0, true}, {endpick.InMemory, 0, false}, {endpick.InMemory, 8192, false}, {endpick.InMemory, 4096, true}} {
		w := newWorldOf(t, transport.Config{FirstByteTimeout: 50 * time.Millisecond}, endpick.Config{Endpoints: []endpick.Endpoint{
			{ID: "a", Address: startEngine(t, slow).URL, Residents: []endpick.Resident{{Model: "m:latest", State: tc.state, Context: tc.context}}}}})
		_, _, err := w.do(t, post(t, "/api/chat", `{"model":"m","messages":[{"role":"user","content":"hi"}],"options":{"num_ctx":8192}}`))
		if tc.served {
			assert.NoError(t, err, tc)
		} else {
			assert.ErrorIs(t, err, transport.ErrTimeout)
		}
	}
}

// A client that leaves in the middle of a response gets its own error, and no server is blamed
// for silence.
func TestLeavingIsNoTimeout(t *testing.T) {
	bubble(t, transport.Config{}, endpick.Config{}, speak("text/event-stream", []time.Duration{time.Second, never}, role, "x"), func(t *testing.T, w *world) {
		ctx, leave := context.WithTimeout(t.Context(), 5*time.Second)
		defer leave()
		_, _, err := w.do(t, post(t, chatPath, chatStream).WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotErrorIs(t, err, transport.ErrTimeout)
		assert.Equal(t, endpick.Canceled, w.outcome(t).Status)
	})
}
