package replica_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/replica"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hub is a bus in memory.
type hub struct {
	mu    sync.Mutex
	down  bool
	lines map[*line]bool
}

type line struct {
	*hub
	instance uint32
	receive  func([]byte)
}

func newHub() *hub { return &hub{lines: map[*line]bool{}} }

func (h *hub) Open(instance uint32, receive func([]byte)) (replica.Line, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &line{h, instance, receive}
	h.lines[l] = true
	return l, nil
}

func (l *line) Publish(to uint32, message []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return errors.New("the bus is down")
	}
	for o := range l.lines {
		if to == 0 || to == o.instance {
			o.receive(message)
		}
	}
	return nil
}

func (l *line) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down
}

func (l *line) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lines, l)
	return nil
}

func (h *hub) set(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
}

// gateway is a router with its replica.
type gateway struct {
	*endpick.Router
	replica *replica.Replica
	index   *prefix.Index
	quota   endpick.Admitter
	heard   *heard
	stop    func()
}

// heard records the measured latencies of ended requests.
type heard struct {
	mu   sync.Mutex
	ttft map[int]time.Duration // by prompt length
	took map[int]time.Duration
}

func (*heard) Admit(*endpick.Request, []endpick.Candidate) error { return nil }

func (h *heard) Done(e *endpick.Event, _ *endpick.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ttft, ok := e.TTFT(); ok {
		h.ttft[e.Request.InputTokens], h.took[e.Request.InputTokens] = ttft, e.Now.Sub(e.RoutedAt)
	}
}

var key = prefix.NewKey()

func endpoints(n int) (all []endpick.Endpoint) {
	for i := range n {
		all = append(all, endpick.Endpoint{ID: fmt.Sprint("server-", i)})
	}
	return all
}

// start starts a gateway to the same servers as all others.
func start(t testing.TB, bus replica.Bus, change func(*replica.Config, *endpick.Config)) *gateway {
	g := &gateway{heard: &heard{ttft: map[int]time.Duration{}, took: map[int]time.Duration{}}}
	g.index = rig.Must(prefix.NewIndex(prefix.IndexConfig{}))
	g.quota = rig.Must(quota.New(quota.Config{Limits: func(tenant string) quota.Limits {
		if tenant == "limited" {
			return quota.Limits{Rate: 1, Burst: 1000}
		}
		return quota.Limits{}
	}}))
	config := replica.Config{Key: key}
	rc := endpick.Config{Endpoints: endpoints(3)}
	if change != nil {
		change(&config, &rc)
	}
	g.replica = rig.Must(replica.New(config))
	rc.Policy = endpick.Policy{Matcher: g.index, Admitters: []endpick.Admitter{g.quota, g.heard, g.replica}}
	g.Router = rig.Must(endpick.New(rc))
	g.stop = run(t, g.replica, g.Router, bus)
	return g
}

// run runs a replica until stop is called, or the test ends.
func run(t testing.TB, r *replica.Replica, router *endpick.Router, bus replica.Bus) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, router, bus) }()
	stop = sync.OnceFunc(func() { cancel(); assert.NoError(t, <-ended) })
	t.Cleanup(stop)
	return stop
}

// two are gateways that know each other.
func two(t testing.TB, changeA, changeB func(*replica.Config, *endpick.Config)) (bus *hub, a, b *gateway) {
	bus = newHub()
	a, b = start(t, bus, changeA), start(t, bus, changeB)
	meet(t, a, b)
	return bus, a, b
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	require.Eventually(t, is, 30*time.Second, time.Millisecond, what)
}

// meet waits until all gateways know each other.
func meet(t testing.TB, all ...*gateway) {
	for _, g := range all {
		eventually(t, "replicas meet", func() bool {
			s := g.replica.Status()
			live := 0
			for _, p := range s.Peers {
				if p.Live && !p.Behind {
					live++
				}
			}
			return s.Running && live == len(all)-1
		})
	}
}

func (g *gateway) inFlight(id string) endpick.InFlight {
	for _, e := range g.Endpoints() {
		if e.Candidate.Endpoint.ID == id {
			return e.Candidate.InFlight
		}
	}
	return endpick.InFlight{}
}

func (g *gateway) open() int { return g.Stats().OpenLeases }

// held is how many tokens of a prompt an endpoint is expected to hold.
func (g *gateway) held(id string, blocks []uint64) int {
	for _, c := range g.AppendCandidates(nil) {
		if c.Endpoint.ID == id {
			one := []endpick.Candidate{c}
			req := endpick.Request{Blocks: blocks, InputTokens: 16 * len(blocks)}.At(time.Now(), 1, 1)
			g.index.Match(&req, one)
			return one[0].PrefixTokens
		}
	}
	return -1
}

func blocksOf(seed uint64, n int) (blocks []uint64) {
	for i := range n {
		blocks = append(blocks, seed<<32|uint64(i+1))
	}
	return blocks
}

func TestReplicas(t *testing.T) {
	bus, a, b := two(t, func(c *replica.Config, _ *endpick.Config) { c.Name = "a" }, nil)
	assert.Equal(t, "a", b.replica.Status().Peers[0].Name)

	blocks := blocksOf(1, 20)
	lease := rig.Must(a.Route(endpick.Request{Model: "m", Blocks: blocks, InputTokens: 325, ExpectedOutputTokens: 50, Stream: true}))
	id := lease.Endpoint().ID
	eventually(t, "the load is known", func() bool {
		return b.inFlight(id) == endpick.InFlight{Requests: 1, Prefilling: 1, PrefillTokens: 325, ContextTokens: 325}
	})
	assert.Equal(t, a.inFlight(id), b.inFlight(id))
	assert.Equal(t, 319, b.held(id, blocks), "and the blocks")
	lease.FirstToken()
	eventually(t, "so is the first token", func() bool { return b.inFlight(id) == endpick.InFlight{Requests: 1, ContextTokens: 325} })
	whole := append(blocks, blocksOf(2, 5)...)
	lease.Tokens(9)
	lease.Done(endpick.Outcome{Blocks: whole, InputTokens: 325, OutputTokens: 10})
	eventually(t, "and the end", func() bool { return b.inFlight(id) == endpick.InFlight{} && b.open() == 0 })
	assert.Equal(t, 399, b.held(id, whole), "with the response")
	b.heard.mu.Lock()
	assert.InDelta(t, a.heard.ttft[325], b.heard.ttft[325], float64(100*time.Microsecond), "and what was measured")
	assert.InDelta(t, a.heard.took[325], b.heard.took[325], float64(100*time.Microsecond))
	b.heard.mu.Unlock()

	// The next turn is routed by the other gateway and has 3 new blocks.
	before := b.replica.Status().Blocks
	turn := append(whole, blocksOf(3, 3)...)
	lease = rig.Must(b.Route(endpick.Request{Model: "m", Blocks: turn, Exclude: others(id)}))
	eventually(t, "the next turn is known", func() bool { return a.inFlight(id).Requests == 1 })
	assert.Equal(t, a.inFlight(id), b.inFlight(id))
	assert.Equal(t, 447, a.held(id, turn))
	lease.Done(endpick.Outcome{})
	eventually(t, "and ends", func() bool { return a.open() == 0 && b.replica.Status().Blocks == before+3 })

	st := b.Stats()
	assert.Equal(t, [2]uint64{2, 1}, [2]uint64{st.Routed, st.Mirrored})

	c := start(t, bus, func(c *replica.Config, _ *endpick.Config) { c.DisableIndex = true })
	meet(t, a, b, c)
	rig.Must(a.Route(endpick.Request{Blocks: turn, Exclude: others(id)}))
	eventually(t, "one without an index hears of load", func() bool { return c.inFlight(id).Requests == 1 })
	assert.Zero(t, c.held(id, turn))
}

func others(id string) (ids []string) {
	for _, e := range endpoints(3) {
		if e.ID != id {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// Without the bus a router goes on alone, reports it, and forgets the others; once
// the bus is back, all are known again.
func TestOutage(t *testing.T) {
	bus, a, b := two(t, nil, nil)
	kept := rig.Must(a.Route(endpick.Request{InputTokens: 10}))
	eventually(t, "load", func() bool { return b.open() == 1 })
	bus.set(true)
	eventually(t, "it is forgotten", func() bool {
		s := b.replica.Status()
		return b.open() == 0 && s.Alone() && !s.Connected
	})
	more := rig.Must(a.Route(endpick.Request{InputTokens: 80, Blocks: blocksOf(9, 4), Stream: true}))
	more.FirstToken()
	gone := rig.Must(a.Route(endpick.Request{InputTokens: 70, Blocks: blocksOf(8, 4), Stream: true}))
	gone.FirstToken()
	gone.Done(endpick.Outcome{})
	bus.set(false)
	meet(t, a, b)
	eventually(t, "what is in flight is known", func() bool { return b.open() == 2 })
	for _, l := range []endpick.Lease{kept, more} {
		assert.Equal(t, a.inFlight(l.Endpoint().ID), b.inFlight(l.Endpoint().ID))
	}
	assert.Equal(t, 63, b.held(gone.Endpoint().ID, blocksOf(8, 4)), "and what was sent meanwhile")
	kept.Done(endpick.Outcome{})
	more.Done(endpick.Outcome{})
	eventually(t, "all ends", func() bool { return b.open() == 0 })
}

// A replica that leaves takes what it has mirrored with it, and its own requests are forgotten
// at once.
func TestLeave(t *testing.T) {
	long := func(c *replica.Config, _ *endpick.Config) { c.Forget = time.Hour }
	_, a, b := two(t, long, long)
	_ = rig.Must(a.Route(endpick.Request{}))
	_ = rig.Must(b.Route(endpick.Request{}))
	eventually(t, "load", func() bool { return a.open() == 2 && b.open() == 2 })
	a.stop()
	assert.Equal(t, 1, a.open())
	assert.False(t, a.replica.Status().Running)
	eventually(t, "it is forgotten", func() bool { return b.open() == 1 && len(b.replica.Status().Peers) == 0 })
}

func TestJoin(t *testing.T) {
	bus := newHub()
	a := start(t, bus, nil)
	eventually(t, "it runs", func() bool { return a.replica.Status().Running })
	var open []endpick.Lease
	for i := range 50 {
		l := rig.Must(a.Route(endpick.Request{InputTokens: 100 + i, Blocks: blocksOf(uint64(100+i), 6), Stream: true, Tenant: "t"}))
		if i%2 == 0 {
			l.FirstToken()
		}
		if i%4 == 0 {
			l.Done(endpick.Outcome{})
		} else {
			open = append(open, l)
		}
	}
	b := start(t, bus, nil)
	meet(t, a, b)
	eventually(t, "it catches up", func() bool { return b.open() == len(open) })
	for _, e := range endpoints(3) {
		assert.Equal(t, a.inFlight(e.ID), b.inFlight(e.ID))
	}
	for i := range 50 {
		for _, e := range endpoints(3) {
			blocks := blocksOf(uint64(100+i), 6)
			assert.Equal(t, a.held(e.ID, blocks), b.held(e.ID, blocks), "request %d", i)
		}
	}
	assert.Zero(t, b.replica.Status().Shared, "nothing of it is its own")
	for _, l := range open {
		l.Done(endpick.Outcome{})
	}
	eventually(t, "all ends", func() bool { return b.open() == 0 })
}

// With different keys neither understands the other, and both report it.
func TestKeys(t *testing.T) {
	bus := newHub()
	a := start(t, bus, nil)
	b := start(t, bus, func(c *replica.Config, _ *endpick.Config) { c.Key = prefix.NewKey() })
	for _, g := range []*gateway{a, b} {
		eventually(t, "it is noticed", func() bool {
			s := g.replica.Status()
			return s.Refused > 2 && s.Alone() && len(s.Peers) == 0
		})
	}
}

// A tenant that has used up its tokens at one gateway has used them up at all.
func TestQuotasAreShared(t *testing.T) {
	bus, a, b := two(t, nil, nil)
	l := rig.Must(a.Route(endpick.Request{Tenant: "limited", InputTokens: 900}))
	eventually(t, "load", func() bool { return b.open() == 1 })
	_, err := b.Route(endpick.Request{Tenant: "limited", InputTokens: 200})
	require.ErrorAs(t, err, new(*endpick.RejectedError))
	_ = rig.Must(b.Route(endpick.Request{Tenant: "another", InputTokens: 200}))
	// A failure costs nothing, at either gateway.
	l.Done(endpick.Outcome{Status: endpick.Failed})
	eventually(t, "it is over", func() bool {
		_, err = b.Route(endpick.Request{Tenant: "limited", InputTokens: 200})
		return err == nil
	})
	// A replica that joins is not charged again for earlier requests.
	c := start(t, bus, nil)
	l = rig.Must(a.Route(endpick.Request{Tenant: "limited", InputTokens: 300, Blocks: blocksOf(5, 18), Stream: true}))
	l.FirstToken()
	l.Done(endpick.Outcome{})
	d := start(t, bus, nil)
	meet(t, a, b, c, d)
	eventually(t, "it has learned", func() bool { return d.held(l.Endpoint().ID, blocksOf(5, 18)) == 287 })
	_ = rig.Must(d.Route(endpick.Request{Tenant: "limited", InputTokens: 700}))
	// Nor does it take caches for larger or smaller than others do.
	sizes := map[int]bool{}
	for _, g := range []*gateway{a, d} {
		for _, e := range g.index.Stats().Endpoints {
			sizes[e.Bound], sizes[e.Capacity] = true, true
		}
	}
	assert.Len(t, sizes, 1)
}

// Endpoints that only some gateways know do no harm.
func TestDifferentFleets(t *testing.T) {
	bus := newHub()
	a := start(t, bus, func(_ *replica.Config, c *endpick.Config) { c.Endpoints = []endpick.Endpoint{{ID: "only-a"}} })
	b := start(t, bus, nil)
	meet(t, a, b)
	l := rig.Must(a.Route(endpick.Request{InputTokens: 10, Stream: true}))
	l.FirstToken()
	l.Done(endpick.Outcome{})
	eventually(t, "it is counted", func() bool { return b.replica.Status().Unmirrored == 1 })
	assert.Zero(t, b.Stats().Routed)
}

// A server that fails one gateway's requests is avoided by another that has had
// no failures.
func TestHealthIsShared(t *testing.T) {
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) }))
	defer good.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	defer broken.Close()
	bus := newHub()
	fleet := []endpick.Endpoint{{ID: "good-1", Address: good.URL}, {ID: "good-2", Address: good.URL}, {ID: "broken", Address: broken.URL}}
	gate := func() (*transport.Transport, *health.Monitor, *replica.Replica) {
		// The monitor needs the router, and the replica is part of it: the router is made first.
		router := rig.Must(endpick.New(endpick.Config{Endpoints: fleet}))
		m := rig.Must(health.New(health.Config{Router: router}))
		r := rig.Must(replica.New(replica.Config{Key: key, Health: m}))
		require.NoError(t, router.SetPolicy(endpick.Policy{Admitters: []endpick.Admitter{r}}))
		tr := rig.Must(transport.New(transport.Config{Router: router, Health: m, RetryBurst: 1000}))
		run(t, r, router, bus)
		return tr, m, r
	}
	a, _, ra := gate()
	_, m, rb := gate()
	for _, r := range []*replica.Replica{ra, rb} {
		eventually(t, "they meet", func() bool { s := r.Status(); return !s.Alone() })
	}
	eventually(t, "it is out", func() bool {
		req, _ := http.NewRequest("POST", "http://x/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
		rig.Must(a.RoundTrip(req)).Body.Close()
		return slices.ContainsFunc(m.Endpoints(), func(s health.Status) bool { return s.Endpoint == "broken" && s.State.Out() })
	})
}

func TestConfig(t *testing.T) {
	for field, c := range map[string]replica.Config{
		"Key":       {},
		"Name":      {Key: key, Name: strings.Repeat("x", 256)},
		"Forget":    {Key: key, Forget: time.Second - 1},
		"MaxBlocks": {Key: key, MaxBlocks: -1},
	} {
		assert.Equal(t, "replica.Config."+field, rig.Field(replica.New(c)))
	}
	g := start(t, newHub(), func(c *replica.Config, _ *endpick.Config) { c.Forget = time.Second })
	eventually(t, "it runs", func() bool { return g.replica.Status().Running })
	assert.ErrorContains(t, g.replica.Run(context.Background(), g.Router, newHub()), "already running")
	elsewhere := rig.Must(replica.New(replica.Config{Key: key, Health: rig.Must(health.New(health.Config{Router: g.Router}))}))
	assert.ErrorContains(t, elsewhere.Run(t.Context(), rig.Must(endpick.New(endpick.Config{})), newHub()), "Config.Health is over another router")
	_, err := endpick.New(endpick.Config{Policy: endpick.Policy{Admitters: []endpick.Admitter{g.replica}}})
	require.ErrorAs(t, err, new(*endpick.ConfigError), "it belongs to one router")
}

// A replica that is not running costs a decision no allocation.
func TestAllocs(t *testing.T) {
	rig.SkipUnderRace(t, "sync.Pool forgets")
	quiet := rig.Must(replica.New(replica.Config{Key: key}))
	router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints(3), Policy: endpick.Policy{Admitters: []endpick.Admitter{quiet}}}))
	blocks := blocksOf(1, 64)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		l, _ := router.Route(endpick.Request{Blocks: blocks, Stream: true})
		l.FirstToken()
		l.Done(endpick.Outcome{})
	}))
}

// tape is a bus that records what one replica sends, and when.
type tape struct {
	mu    sync.Mutex
	began time.Time
	sent  []string // messages with the name of an endpoint or the model
	first time.Duration
}

func (p *tape) Open(uint32, func([]byte)) (replica.Line, error) { return p, nil }
func (p *tape) Connected() bool                                 { return true }
func (p *tape) Close() error                                    { return nil }

func (p *tape) Publish(_ uint32, message []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Since(p.began)
	if p.first == 0 {
		p.first = at
	}
	for _, name := range append(others(""), "the-model") {
		if bytes.Contains(message, []byte(name)) {
			p.sent = append(p.sent, fmt.Sprint(name, " ", at))
		}
	}
	return nil
}

// told returns what was sent so far, and when that began.
func (p *tape) reported() ([]string, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent), p.first
}

// A routed request is sent within a millisecond, with whatever else is pending; other
// messages may wait for 40 ms, in case a request is routed.
func TestWhenItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &tape{began: time.Now()}
		r := rig.Must(replica.New(replica.Config{Key: key}))
		router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints(3), Policy: endpick.Policy{Admitters: []endpick.Admitter{r}}}))
		defer run(t, r, router, bus)()
		synctest.Wait()
		until := func(ms float64) { time.Sleep(time.Duration(ms*1e6) - time.Since(bus.began)) }
		route := func(id string) endpick.Lease {
			return rig.Must(router.Route(endpick.Request{Exclude: others(id), Stream: true}))
		}
		// Names are sent once, so each of these is seen once.
		until(5)
		l := route("server-0")
		until(60)
		sent, first := bus.reported()
		assert.Equal(t, []string{"server-0 6ms"}, sent)
		assert.Equal(t, 6*time.Millisecond, first)
		until(101)
		l.FirstToken() // waits until 141 ms
		until(110)
		route("server-1")
		until(149)
		sent, _ = bus.reported()
		assert.Equal(t, []string{"server-0 6ms", "server-1 111ms"}, sent)
		until(202)
		l.Done(endpick.Outcome{})
		until(243)
		route("server-2")
		until(299)
		sent, _ = bus.reported()
		assert.Equal(t, []string{"server-0 6ms", "server-1 111ms", "server-2 244ms"}, sent)
		until(302)
		l = rig.Must(router.Route(endpick.Request{Model: "the-model", Stream: true}))
		synctest.Wait()
		l.FirstToken() // delays nothing
		until(349)
		sent, _ = bus.reported()
		assert.Equal(t, "the-model 303ms", sent[len(sent)-1])
	})
}

// A lone replica says so from the start, and ignores its own messages.
func TestAReplicaAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newHub()
		own := &tape{}
		for _, b := range []replica.Bus{bus, own} {
			r := rig.Must(replica.New(replica.Config{Key: key}))
			router := rig.Must(endpick.New(endpick.Config{}))
			own.began = time.Now()
			stop := run(t, r, router, b)
			time.Sleep(time.Second)
			s := r.Status()
			assert.Zero(t, s.Received+s.Missed+s.SnapshotBytes)
			assert.NotZero(t, s.Instance)
			assert.InDelta(t, 4, s.Sent, 1)
			stop()
		}
		_, first := own.reported()
		assert.Equal(t, 50*time.Millisecond, first)
	})
}

// Another replica is forgotten after the silence that Config sets; if it has no name,
// its number is shown.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patient := func(c *replica.Config, _ *endpick.Config) { c.Forget = 10 * time.Second }
		bus, a, b := two(t, nil, patient)
		assert.Equal(t, fmt.Sprintf("%08x", a.replica.Status().Instance), b.replica.Status().Peers[0].Name)
		_ = rig.Must(a.Route(endpick.Request{}))
		_ = rig.Must(b.Route(endpick.Request{}))
		time.Sleep(time.Second)
		require.Equal(t, []int{2, 2}, []int{a.open(), b.open()})
		bus.set(true)
		time.Sleep(3 * time.Second)
		assert.Equal(t, []int{1, 2}, []int{a.open(), b.open()})
		time.Sleep(6 * time.Second)
		assert.Equal(t, 2, b.open())
		time.Sleep(2 * time.Second)
		assert.Equal(t, 1, b.open())
		a.stop()
		b.stop()
	})
}

// A request of another is not taken for lost, however long it lasts.
func TestALongRequestElsewhereIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short := func(_ *replica.Config, c *endpick.Config) { c.LeaseTimeout = time.Minute }
		_, a, b := two(t, nil, short)
		lease := rig.Must(a.Route(endpick.Request{}))
		for range 50 {
			time.Sleep(10 * time.Second)
			b.Sweep(time.Now())
		}
		assert.Equal(t, 1, b.open())
		assert.Zero(t, b.Stats().Reaped)
		lease.Done(endpick.Outcome{})
		a.stop()
		b.stop()
	})
}

// A replica that could not keep up continues with a new identity and is sent everything anew.
func TestWhoCouldNotKeepUpGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := two(t, nil, nil)
		was := a.replica.Status()
		theirs := rig.Must(b.Route(endpick.Request{InputTokens: 7}))
		var leases []endpick.Lease
		for range 20_000 { // no other goroutine runs meanwhile
			leases = append(leases, rig.Must(a.Route(endpick.Request{})))
		}
		time.Sleep(3 * time.Second)
		meet(t, a, b)
		now := a.replica.Status()
		assert.EqualValues(t, 1, now.Restarts)
		assert.NotEqual(t, was.Instance, now.Instance)
		assert.GreaterOrEqual(t, now.Sent, was.Sent)
		assert.Equal(t, 20_001, a.open(), "its own and the other's")
		assert.Equal(t, 1, b.open(), "what was lost is known to nobody else")
		more := rig.Must(a.Route(endpick.Request{}))
		time.Sleep(time.Second)
		assert.Equal(t, 2, b.open())
		for _, l := range append(leases, more, theirs) {
			l.Done(endpick.Outcome{})
		}
		time.Sleep(time.Second)
		assert.Equal(t, []int{0, 0}, []int{a.open(), b.open()})
		a.stop()
		b.stop()
	})
}

// A request that was already under way has no known duration, so none is sent.
func TestWhatWasUnderWayHasNoTimes(t *testing.T) {
	_, a, b := two(t, nil, nil)
	for tokens, adopted := range map[int]*endpick.Adopted{11: {Endpoint: "server-1"}, 12: nil} {
		lease := rig.Must(a.Route(endpick.Request{InputTokens: tokens, Stream: true, Adopted: adopted}))
		eventually(t, "it is known", func() bool { return b.open() == 1 })
		lease.FirstToken()
		lease.Done(endpick.Outcome{OutputTokens: 3})
		eventually(t, "and that it has ended", func() bool { return b.open() == 0 })
	}
	b.heard.mu.Lock()
	defer b.heard.mu.Unlock()
	assert.NotContains(t, b.heard.ttft, 11)
	assert.Contains(t, b.heard.ttft, 12)
}
