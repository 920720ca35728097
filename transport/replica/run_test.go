package replica_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/replica"
)

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
