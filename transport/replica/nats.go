package replica

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/internal/check"
	"github.com/nats-io/nats.go"
)

// Dial connects to a NATS server, or to one of several whose URLs are separated by commas,
// and stays connected: it keeps trying forever, even if there is no server yet or the
// server refuses the credentials. Pass options such as nats.UserCredentials and
// nats.RootCAs, because anybody who can read the bus sees the IDs of endpoints, the names
// of models and tenants, and hashes of prompts.
func Dial(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{
		nats.Name("endpick replica"),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // expired credentials may be renewed, and a removed user restored
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1), // what could not be sent is useless later
		nats.PingInterval(5 * time.Second),
		nats.FlusherTimeout(2 * time.Second), // a connection that accepts nothing is replaced
		nats.NoEcho(),
	}, options...)...)
}

// NATS returns a bus over a connection that the caller opens and closes, for the
// replicas of one group: those in front of one fleet. Its subjects are
// endpick.GROUP.all and endpick.GROUP.INSTANCE.
func NATS(conn *nats.Conn, group string) Bus { return &natsBus{conn, "endpick." + group} }

type natsBus struct {
	conn    *nats.Conn
	subject string
}

// What a slow replica may leave unread before it misses messages.
const (
	pendingMessages = 1 << 16
	pendingBytes    = 64 << 20
)

func (b *natsBus) Open(instance uint32, receive func([]byte)) (Line, error) {
	if strings.ContainsAny(b.subject, "*> \t\r\n") || strings.Contains(b.subject+".", "..") {
		return nil, check.Bad("replica.NATS", "has the subject group %q, which is not a name or several with dots between them", b.subject)
	}
	l := &natsLine{natsBus: b, out: make(chan outgoing, maxOutgoing), sent: make(chan struct{})}
	for _, subject := range []string{b.subject + ".all", b.to(instance)} {
		s, err := b.conn.Subscribe(subject, func(m *nats.Msg) { receive(m.Data) })
		if err == nil {
			l.subscriptions = append(l.subscriptions, s)
			err = s.SetPendingLimits(pendingMessages, pendingBytes)
		}
		if err != nil {
			return nil, errors.Join(check.Bad("replica.NATS", "can't subscribe to %q: %v", subject, err), l.unsubscribe())
		}
	}
	go l.send()
	return l, nil
}

func (b *natsBus) to(instance uint32) string {
	if instance == 0 {
		return b.subject + ".all"
	}
	return fmt.Sprintf("%s.%08x", b.subject, instance)
}

// natsLine sends in a goroutine of its own: a connection that is open but accepts
// nothing blocks whoever uses it, even for its status.
type natsLine struct {
	*natsBus
	subscriptions []*nats.Subscription

	out       chan outgoing
	waiting   atomic.Int64 // bytes in out
	connected atomic.Bool
	since     atomic.Int64  // start of the current send, in nanoseconds since 1970; 0: none
	left      atomic.Bool   // drop whatever is still waiting
	sent      chan struct{} // closed when nothing is sent any more
}

type outgoing struct {
	subject string
	message []byte
}

const (
	maxOutgoing      = 1 << 12 // messages waiting to be sent
	maxOutgoingBytes = 16 << 20
	hangs            = time.Second // sending a message takes microseconds
	farewell         = time.Second // time to send what is waiting at the end
)

var errSlow = errors.New("replica: NATS does not accept messages")

func (l *natsLine) Publish(to uint32, message []byte) error {
	size := int64(len(message))
	if l.waiting.Add(size) > maxOutgoingBytes {
		l.waiting.Add(-size)
		return errSlow
	}
	select {
	case l.out <- outgoing{l.to(to), message}:
		return nil
	default:
		l.waiting.Add(-size)
		return errSlow
	}
}

// send sends published messages until the line is closed.
func (l *natsLine) send() {
	defer close(l.sent)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		l.since.Store(time.Now().UnixNano())
		l.connected.Store(l.conn.IsConnected())
		l.since.Store(0)
		select {
		case o, open := <-l.out:
			if !open {
				return
			}
			l.waiting.Add(-int64(len(o.message)))
			if !l.left.Load() {
				l.since.Store(time.Now().UnixNano())
				_ = l.conn.Publish(o.subject, o.message) // lost messages will be requested
				l.since.Store(0)
			}
		case <-tick.C:
		}
	}
}

func (l *natsLine) Connected() bool {
	since := l.since.Load()
	return l.connected.Load() && (since == 0 || time.Since(time.Unix(0, since)) < hangs)
}

func (l *natsLine) Close() error {
	close(l.out)
	select {
	case <-l.sent:
	case <-time.After(farewell):
		l.left.Store(true)
	}
	return l.unsubscribe()
}

func (l *natsLine) unsubscribe() error {
	var errs []error
	for _, s := range l.subscriptions {
		if err := s.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
