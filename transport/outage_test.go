package transport_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
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
				f.took()
				f.falls("a", tc.illness)
				go load(t, tr, chatStream, 2, tc.others)
				path := chatPath
				if strings.Contains(tc.request, "input") {
					path = "/v1/responses"
				}
				start := time.Now()
				resp, err := tr.RoundTrip(post(t, path, tc.request))
				require.NoError(t, err)
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
