package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/replica"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// member is a router with its replica, over a connection of its own to a real NATS server.
type member struct {
	*endpick.Router
	replica *replica.Replica
	wire    *wire
	stop    func()
}

var key = prefix.NewKey()

func join(t *testing.T, b *broker, options ...nats.Option) *member {
	m := &member{}
	index := rig.Must(prefix.NewIndex(prefix.IndexConfig{}))
	m.replica = rig.Must(replica.New(replica.Config{Key: key}))
	m.Router = rig.Must(endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}},
		Policy:    endpick.Policy{Matcher: index, Admitters: []endpick.Admitter{m.replica}},
	}))
	m.wire = b.wire()
	conn := rig.Must(replica.Dial(m.wire.url(), options...))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.replica.Run(ctx, m.Router, replica.NATS(conn, t.Name())) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
		_ = conn.FlushTimeout(10 * time.Second) // its goodbye, if anything is listening
		conn.Close()
	})
	t.Cleanup(m.stop)
	return m
}

func eventually(t *testing.T, what string, is func() bool) {
	require.Eventually(t, is, 60*time.Second, 2*time.Millisecond, what)
}

// know waits until n others are known, all alive.
func (m *member) know(t *testing.T, n int) {
	eventually(t, "replicas meet", func() bool {
		peers := m.replica.Status().Peers
		for _, p := range peers {
			if !p.Live || p.Behind {
				return false
			}
		}
		return len(peers) == n
	})
}

// sees waits until a member sees exactly the same in flight as another does.
func (m *member) sees(t *testing.T, other *member) {
	flying := func(m *member) (all []endpick.InFlight) {
		for _, e := range m.Endpoints() {
			all = append(all, e.Candidate.InFlight)
		}
		return all
	}
	eventually(t, "they see the same", func() bool { return assert.ObjectsAreEqual(flying(other), flying(m)) })
}

func (m *member) route(n int) (all []endpick.Lease) {
	for i := range n {
		l := rig.Must(m.Route(endpick.Request{InputTokens: 100 + i, Blocks: []uint64{uint64(i + 1), uint64(i + 1001)}, Stream: true}))
		if i%2 == 0 {
			l.FirstToken()
		}
		all = append(all, l)
	}
	return all
}

func end(all ...[]endpick.Lease) {
	for _, leases := range all {
		for _, l := range leases {
			l.Done(endpick.Outcome{})
		}
	}
}

// What happens when replicas join, leave and lose messages is tested in package replica, and what
// happens when NATS is not there or comes back with gateways, below: here is NATS itself.
func TestConvergence(t *testing.T) {
	b := newBroker(t)
	x, y, z := join(t, b), join(t, b), join(t, b)
	for _, m := range []*member{x, y, z} {
		m.know(t, 2)
	}
	open := [][]endpick.Lease{x.route(30), y.route(20), z.route(10)}
	y.sees(t, x)
	z.sees(t, x)
	assert.Equal(t, 60, x.Stats().OpenLeases)
	end(open[0][:7], open[2])
	eventually(t, "43 are left", func() bool {
		return x.Stats().OpenLeases == 43 && y.Stats().OpenLeases == 43 && z.Stats().OpenLeases == 43
	})
	y.sees(t, x)
	z.sees(t, x)
	x.stop() // with a goodbye
	y.know(t, 1)
	eventually(t, "its own are over", func() bool { return y.Stats().OpenLeases == 20 && z.Stats().OpenLeases == 20 })
	end(open...)
	eventually(t, "all is over", func() bool { return y.Stats().OpenLeases == 0 && z.Stats().OpenLeases == 0 })
	for _, m := range []*member{x, y, z} {
		s := m.replica.Status()
		assert.Zero(t, s.Malformed+s.Refused+s.Restarts+s.Missed, fmt.Sprintf("%+v", s))
	}
}

// NATS hangs: its connection is open and accepts nothing. A gateway goes on and forgets
// the others' state, though it has more to send than any buffer on the way holds.
func TestNATSHangs(t *testing.T) {
	b := newBroker(t)
	x, y := join(t, b), join(t, b)
	x.know(t, 1)
	y.know(t, 1)
	y.route(10)
	x.sees(t, y)
	release := x.wire.hold()
	defer release()
	blocks := make([]uint64, 2000)
	routed := 0
	eventually(t, "it is alone", func() bool {
		for i := range blocks {
			blocks[i] = uint64(routed)<<32 | uint64(i+1)
		}
		l, err := x.Route(endpick.Request{InputTokens: 16 * len(blocks), Blocks: blocks, Stream: true})
		if !assert.NoError(t, err) {
			return false
		}
		l.Done(endpick.Outcome{})
		routed++
		// That it hangs shows once the buffers on the way are full, which may be after the
		// others have fallen silent; then it is as if it were not there.
		s := x.replica.Status()
		return s.Alone() && !s.Connected && x.Stats().OpenLeases == 0
	})
	release()
	x.know(t, 1)
	y.know(t, 1)
	x.sees(t, y)
}

// A replica that NATS has turned away, even repeatedly, connects once NATS accepts it.
func TestNATSLetsNobodyIn(t *testing.T) {
	b := newBroker(t)
	b.kill()
	b.password = "another"
	b.start(t)
	as := func(refused *atomic.Int64) []nats.Option {
		return []nats.Option{nats.UserInfo("gateway", "secret"), nats.CustomReconnectDelay(func(int) time.Duration {
			refused.Add(1)
			return time.Millisecond
		})}
	}
	var xs, ys atomic.Int64
	x, y := join(t, b, as(&xs)...), join(t, b, as(&ys)...)
	eventually(t, "they are refused", func() bool { return xs.Load() > 5 && ys.Load() > 5 })
	assert.False(t, x.replica.Status().Connected)
	b.kill()
	b.password = "secret"
	b.start(t)
	x.know(t, 1)
	y.know(t, 1)
}

func TestBusIsClosed(t *testing.T) {
	w := newBroker(t).wire()
	conn := rig.Must(nats.Connect(w.url()))
	conn.Close()
	r := rig.Must(replica.New(replica.Config{Key: key}))
	router := rig.Must(endpick.New(endpick.Config{Policy: endpick.Policy{Admitters: []endpick.Admitter{r}}}))
	var bad *endpick.ConfigError
	require.ErrorAs(t, r.Run(context.Background(), router, replica.NATS(conn, "x")), &bad)
	assert.Equal(t, "replica.NATS", bad.Field)
	assert.Contains(t, bad.Reason, "can't subscribe")
	for _, group := range []string{"", "*", "a.>", "a..b", "a b", "a."} {
		require.ErrorAs(t, r.Run(context.Background(), router, replica.NATS(conn, group)), &bad, group)
		assert.Contains(t, bad.Reason, "dots between them")
	}
}
