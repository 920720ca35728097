package transport_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fleet is a base transport whose servers answer in a synctest bubble. A
// healthy server takes longer to the first token the busier it is.
type fleet struct {
	mu      sync.Mutex
	illness map[string]string // by host: a status, "hang", "header" (and then nothing), or "break" (after the first token)
	sent    map[string]int
	busy    map[string]int
	cured   chan struct{} // closed when the hanging requests continue
}

func newFleet() *fleet {
	return &fleet{illness: map[string]string{}, sent: map[string]int{}, busy: map[string]int{}, cured: make(chan struct{})}
}

func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	illness, cured := f.illness[r.URL.Host], f.cured
	f.sent[r.URL.Host]++
	f.busy[r.URL.Host]++
	wait := 100*time.Millisecond + 20*time.Millisecond*time.Duration(f.busy[r.URL.Host])
	f.mu.Unlock()
	if strings.Contains(string(body), "takes a minute") {
		wait = time.Minute
	}
	over := func() {
		f.mu.Lock()
		f.busy[r.URL.Host]--
		f.mu.Unlock()
	}
	if _, what, ok := strings.Cut(string(body), "every engine answers "); ok {
		illness = what[:3]
	}
	if code, err := strconv.Atoi(illness); err == nil {
		over()
		return answered(code, "text/event-stream", "{}")
	}
	if illness == "hang" {
		defer over()
		select {
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		case <-cured:
		}
	}
	from, to := io.Pipe()
	context.AfterFunc(r.Context(), func() { to.CloseWithError(context.Cause(r.Context())) })
	go func() {
		defer over()
		if illness == "header" {
			<-r.Context().Done()
			return
		}
		time.Sleep(wait)
		for range 8 {
			if _, err := io.WriteString(to, delta(`"content":"word"`)); err != nil {
				return
			}
			if illness == "break" {
				to.CloseWithError(io.ErrUnexpectedEOF)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		io.WriteString(to, finish+done)
		to.Close()
	}()
	resp, err := answered(200, "text/event-stream", "")
	resp.Body = from
	return resp, err
}

// took returns how many requests each host has received since the last call.
func (f *fleet) took() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.sent
	f.sent = map[string]int{}
	return sent
}

func (f *fleet) falls(host, illness string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if illness == "" {
		close(f.cured)
		f.cured = make(chan struct{})
	}
	f.illness[host] = illness
}

// load sends requests at a rate for a while and returns how many were not
// served.
func load(t testing.TB, tr *transport.Transport, body string, perSecond int, for_ time.Duration) *atomic.Int64 {
	unserved := new(atomic.Int64)
	for range int(for_.Seconds() * float64(perSecond)) {
		go func() {
			resp, err := tr.RoundTrip(post(t, chatPath, body))
			if err != nil {
				unserved.Add(1)
				return
			}
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 {
				unserved.Add(1)
			}
		}()
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	return unserved
}

// fleetOf returns a transport over three servers of a fleet.
func fleetOf(f *fleet, policy string) (*transport.Transport, *endpick.Router) {
	config := rig.Must(all.ByName(policy))
	config.Seed = 1
	return fleetWith(f, config, transport.Config{})
}

func fleetWith(f *fleet, of endpick.Config, config transport.Config) (*transport.Transport, *endpick.Router) {
	for _, host := range []string{"a", "b", "c"} {
		of.Endpoints = append(of.Endpoints, endpick.Endpoint{ID: host, Address: host})
	}
	config.Router, config.Base = rig.Must(endpick.New(of)), f
	return rig.Must(transport.New(config)), config.Router
}

// A server that fails at once looks idle, and one that hangs holds its requests.
// After ten seconds neither has more than a twentieth of the traffic, and a
// minute after its recovery it has its share again.
func TestAServerThatFailsDoesNotDrawTheTraffic(t *testing.T) {
	for _, policy := range []string{"round-robin", "least-loaded", "lmetric"} {
		for _, illness := range []string{"500", "404", "400", "503", "hang", "header", "break"} {
			t.Run(policy+" "+illness, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const perSecond = 12
					f := newFleet()
					tr, router := fleetOf(f, policy)
					assert.Zero(t, load(t, tr, chatStream, perSecond, 10*time.Second).Load())
					f.took()
					f.falls("b", illness)
					first := load(t, tr, chatStream, perSecond, 10*time.Second)
					early := f.took()
					later := load(t, tr, chatStream, perSecond, time.Minute)
					unhealthy := f.took()
					f.falls("b", "")
					recovering := load(t, tr, chatStream, perSecond, time.Minute)
					f.took()
					well := load(t, tr, chatStream, perSecond, 20*time.Second)
					shares := f.took()
					time.Sleep(5 * time.Minute)
					t.Logf("first 10 s %v, next minute %v, after recovery %v; unserved %d, %d, %d", early, unhealthy, shares, first.Load(), later.Load(), recovering.Load()+well.Load())
					all := unhealthy["a"] + unhealthy["b"] + unhealthy["c"]
					assert.LessOrEqual(t, unhealthy["b"], all/20, "%v", unhealthy)
					fair := 20 * perSecond / 3
					assert.Zero(t, tr.Stats().Unhealthy)
					assert.GreaterOrEqual(t, shares["b"], fair*3/4, "%v", shares)
					assert.Zero(t, router.Stats().OpenLeases)
					unserved := first.Load() + later.Load()
					switch illness {
					case "break": // after the first token no other server can take over
					case "400", "401", "404": // the first of several in a row is blamed on the client
						assert.LessOrEqual(t, unserved, int64(5))
					default:
						assert.Zero(t, unserved)
					}
					assert.Zero(t, recovering.Load()+well.Load())
				})
			})
		}
	}
}

// pinned sends everything to a, as a shared prefix or a session does.
var pinned = endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: inOrder, Weight: 1}}}}

// A server that is well again gets requests even if others are always preferred, and none before it has been
// left alone for long.
func TestATrialForWhomNobodyChooses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.falls("b", "500")
		tr, router := fleetOf(f, "round-robin")
		assert.Zero(t, load(t, tr, chatStream, 5, 3*time.Second).Load())
		require.Equal(t, 1, tr.Stats().Unhealthy)
		require.NoError(t, router.SetPolicy(pinned.Policy))
		f.took()
		assert.Zero(t, load(t, tr, chatStream, 5, 15*time.Second).Load())
		assert.Zero(t, f.took()["b"])
		assert.Zero(t, load(t, tr, chatStream, 5, 45*time.Second).Load())
		took := f.took()["b"]
		assert.True(t, 1 <= took && took <= 3, took)
		require.Equal(t, 1, tr.Stats().Unhealthy)
		f.falls("b", "")
		assert.Zero(t, load(t, tr, chatStream, 5, time.Minute).Load())
		assert.Equal(t, 1, f.took()["b"], "it is well, and not preferred")
		assert.Zero(t, tr.Stats().Unhealthy)
		synctest.Wait()
		time.Sleep(time.Minute)
	})
}

// A request that every engine fails or refuses counts against no endpoint,
// however many of them a client sends, and wherever.
func TestAClientMakesNobodyLookUnhealthy(t *testing.T) {
	for _, code := range []string{"500", "503", "400", "404", "429"} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				tr, router := fleetWith(f, pinned, transport.Config{})
				poison := strings.Replace(chatStream, "story", "tale of which every engine answers "+code, 1)
				go load(t, tr, poison, 50, time.Minute)
				bad := new(atomic.Int64)
				go func() {
					for range 60 {
						time.Sleep(time.Second)
						bad.Add(int64(tr.Stats().Unhealthy))
					}
				}()
				unserved := load(t, tr, chatStream, 5, time.Minute)
				time.Sleep(time.Minute)
				assert.Zero(t, unserved.Load())
				assert.Zero(t, bad.Load())
				sent := f.took()
				t.Log(sent, tr.Stats())
				if code[0] == '4' && code != "429" {
					assert.LessOrEqual(t, sent["b"]+sent["c"], 2*(60+4), "who refuses is checked once a second")
				}
				assert.Zero(t, router.Stats().OpenLeases)
			})
		})
	}
}

// A request at a silent server is sent elsewhere long before the limit; one
// that takes long everywhere is still served.
func TestARequestThatIsStuckIsSentElsewhereOnce(t *testing.T) {
	minute := strings.Replace(chatStream, "story", "tale that takes a minute", 1)
	for _, tc := range []struct {
		name, illness, request string
		config                 transport.Config
		others                 time.Duration // for so long, requests come in between and are answered
		after                  time.Duration
		sent                   map[string]int
	}{
		{"hang", "hang", chatStream, transport.Config{}, 0, 10 * time.Second, map[string]int{"a": 1, "b": 1}},
		{"header", "header", chatStream, transport.Config{}, 0, 10 * time.Second, map[string]int{"a": 1, "b": 1}},
		{"slow everywhere", "", minute, transport.Config{}, 0, 70 * time.Second, map[string]int{"a": 1, "b": 1}},
		{"the server answers others", "", minute, transport.Config{}, time.Minute, time.Minute, map[string]int{"a": 121}},
		{"and then hangs", "", minute, transport.Config{}, 5 * time.Second, 78 * time.Second, map[string]int{"a": 11, "b": 1}},
		{"it loads the model", "", minute, transport.Config{}, 0, time.Minute, map[string]int{"a": 1}},
		{"others are full", "", minute, transport.Config{}, 0, time.Minute, map[string]int{"a": 1}},
		{"no retries", "", minute, transport.Config{MaxAttempts: 1}, 0, time.Minute, map[string]int{"a": 1}},
		{"not to be sent twice", "", `{"model":"m","stream":true,"tools":[{"type":"mcp"}],"input":"A tale that takes a minute."}`, transport.Config{}, 0, time.Minute, map[string]int{"a": 1}},
		{"budget for one", "hang", chatStream, transport.Config{RetryShare: 1e-9, RetryBurst: 1}, 0, 10 * time.Second, map[string]int{"a": 1, "b": 1}},
		{"no budget", "", minute, transport.Config{RetryShare: 1e-9, RetryBurst: 1}, 0, time.Minute, map[string]int{"a": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				of := pinned
				if strings.Contains(tc.name, "budget") { // which nothing refills
					of.Clock = func() time.Time { return time.Unix(1000, 0) }
				}
				tr, router := fleetWith(f, of, tc.config)
				if tc.name == "no budget" {
					f.falls("a", "500")
					load(t, tr, chatStream, 10, 100*time.Millisecond)
					f.falls("a", "")
				}
				assert.Zero(t, load(t, tr, chatStream, 10, 2*time.Second).Load())
				time.Sleep(time.Second)
				if tc.name == "it loads the model" {
					loads := *router.Endpoints()[0].Candidate.Endpoint
					loads.Residents = []endpick.Resident{{Model: "m", State: endpick.OnDisk}}
					require.NoError(t, router.Update(loads))
				}
				for _, other := range router.Endpoints()[1:] {
					if e := *other.Candidate.Endpoint; tc.name == "others are full" {
						e.MaxInFlight = 1
						require.NoError(t, router.Update(e))
						lease := rig.Must(router.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: e.ID}}))
						time.AfterFunc(100*time.Second, func() { lease.Done(endpick.Outcome{}) })
					}
				}
				f.took()
				f.falls("a", tc.illness)
				go load(t, tr, chatStream, 2, tc.others)
				path := chatPath
				if strings.Contains(tc.request, "input") {
					path = "/v1/responses"
				}
				start := time.Now()
				resp := rig.Must(tr.RoundTrip(post(t, path, tc.request)))
				assert.InDelta(t, tc.after.Seconds(), time.Since(start).Seconds(), 0.5)
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				time.Sleep(time.Minute)
				assert.Equal(t, tc.sent, f.took())
				assert.Zero(t, router.Stats().OpenLeases)
			})
		})
	}
}

// When all servers are unhealthy all are used, and all are back within a minute
// of their recovery.
func TestAllAreUnhealthy(t *testing.T) {
	for _, illness := range []string{"500", "404", "hang", "break"} {
		t.Run(illness, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				tr, router := fleetOf(f, "least-loaded")
				for _, host := range []string{"a", "b", "c"} {
					f.falls(host, illness)
				}
				load(t, tr, chatStream, 10, time.Minute)
				for host, n := range f.took() {
					assert.Greater(t, n, 100, host)
				}
				for _, host := range []string{"a", "b", "c"} {
					f.falls(host, "")
				}
				assert.Zero(t, load(t, tr, chatStream, 10, time.Minute).Load())
				f.took()
				assert.Zero(t, load(t, tr, chatStream, 10, 30*time.Second).Load())
				for host, n := range f.took() {
					assert.InDelta(t, 100, n, 25, host)
				}
				assert.Zero(t, tr.Stats().Unhealthy)
				time.Sleep(5 * time.Minute)
				assert.Zero(t, router.Stats().OpenLeases)
			})
		})
	}
}

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
		{"a stream is not bounded in all", short, chatStream, stream, append([]time.Duration{s}, slices.Repeat([]time.Duration{9 * s}, 50)...), append([]string{role}, append(slices.Repeat([]string{word}, 49), finish+done)...), 451 * s, false},

		{"a stall longer than a first byte", transport.Config{FirstByteTimeout: 10 * s, StallTimeout: 30 * s}, chatStream, stream, []time.Duration{9 * s, 29 * s, 29 * s}, []string{role, word, finish + done}, 67 * s, false},
		{"no answer", transport.Config{}, chatAtOnce, object, []time.Duration{never}, []string{"header"}, 10 * m, true},
		{"a header and no answer", transport.Config{}, chatAtOnce, object, []time.Duration{s, never}, []string{"header", "{}"}, 10 * m, true},
		{"half an answer", transport.Config{}, chatAtOnce, object, []time.Duration{s, s, never}, []string{"header", "{", "}"}, 10 * m, true},
		{"drops of an answer", short, chatAtOnce, object, slices.Repeat([]time.Duration{7 * s}, 100), slices.Repeat([]string{" "}, 100), 5 * m, true},
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
		chatStream: speak("text/event-stream", make([]time.Duration, 21), append(slices.Repeat([]string{word}, 20), finish+done)...),
		chatAtOnce: speak("application/json", []time.Duration{0, 0}, `{"x":"`+strings.Repeat("x", 10000), `"}`),
	} {
		bubble(t, config, endpick.Config{}, answer, func(t *testing.T, w *world) {
			resp := rig.Must(w.client.Do(post(t, chatPath, request)))
			for range 5 {
				time.Sleep(time.Minute)
				rig.Must(io.ReadFull(resp.Body, make([]byte, 1000)))
			}
			time.Sleep(time.Minute)
			rig.Must(io.Copy(io.Discard, resp.Body))
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
			resp := rig.Must(w.t.RoundTrip(upgrade(t, "m")))
			sweep(w, 45)
			conn := resp.Body.(io.ReadWriteCloser)
			fmt.Fprint(conn, "hello\n")
			rig.Must(io.ReadFull(conn, make([]byte, 6)))
			conn.Close()
			assert.Zero(t, w.router.Stats().Reaped)
			assert.Equal(t, endpick.Completed, w.outcome(t).Status)
		})
	})
	t.Run("nobody reads", func(t *testing.T) {
		bubble(t, hour, endpick.Config{}, speak("text/event-stream", []time.Duration{0, 0}, role, finish+done), func(t *testing.T, w *world) {
			resp := rig.Must(w.client.Do(post(t, chatPath, chatStream)))
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
			conn := rig.Must(w.t.RoundTrip(upgrade(t, "m"))).Body.(io.ReadWriteCloser)
			for _, line := range []string{"hello\n", "say more\n", "hello\n"} {
				time.Sleep(50 * time.Minute)
				rig.Must(fmt.Fprint(conn, line))
				rig.Must(io.ReadFull(conn, make([]byte, len(line))))
			}
			last := time.Now()
			assert.Error(t, rig.Err(conn.Read(make([]byte, 1))))
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
		resp := rig.Must(w.t.RoundTrip(upgrade(t, "m")))
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
			w := newWorld(t, transport.Config{FirstByteTimeout: time.Second, Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
				asked[r.URL.Host]++
				resp, err := answered(200, "text/event-stream", delta(`"content":"word"`)+finish+done)
				if len(asked) <= 2 {
					resp.Body = &late{ctx: r.Context(), rest: resp.Body, first: first}
				}
				return resp, err
			})}, "a", "b", "c")
			_, body := w.ok(t, post(t, chatPath, chatStream))
			assert.Contains(t, body, finish+done)
			assert.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, asked)
			w.idle(t)
		})
	}
}

// A stall is a timeout whatever the base makes of a request that is called off.
func TestAStallIsATimeoutWithAnyBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, transport.Config{StallTimeout: time.Second, FirstByteTimeout: time.Second, Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
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
