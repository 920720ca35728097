package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/endpick/endpick"
)

// Dial connects to a NATS server, or to one of several whose URLs stand in a list with
// commas, and stays connected: it tries again for ever, also if there is none yet, or it
// lets nobody in. Options come on top, such as nats.UserCredentials and nats.RootCAs: whoever can read the bus
// sees which endpoints there are, names of models and tenants, and hashes of prompts.
func Dial(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{
		nats.Name("endpick replica"),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // what has expired is renewed, and who was forgotten is let in
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1), // what could not be sent is of no use later
		nats.PingInterval(5 * time.Second),
		nats.NoEcho(),
	}, options...)...)
}

// NATS is a bus over a connection that the caller makes and closes, for replicas of the
// same group: those before one fleet. Its subjects are endpick.GROUP.all and
// endpick.GROUP.INSTANCE.
func NATS(conn *nats.Conn, group string) Bus { return &natsBus{conn, "endpick." + group} }

type natsBus struct {
	conn    *nats.Conn
	subject string
}

// What a slow replica may leave unread before it misses something.
const (
	pendingMessages = 1 << 16
	pendingBytes    = 64 << 20
)

func (b *natsBus) Open(instance uint32, receive func([]byte)) (Line, error) {
	l := &natsLine{natsBus: b}
	for _, subject := range []string{b.subject + ".all", b.to(instance)} {
		s, err := b.conn.Subscribe(subject, func(m *nats.Msg) { receive(m.Data) })
		if err == nil {
			l.subscriptions = append(l.subscriptions, s)
			err = s.SetPendingLimits(pendingMessages, pendingBytes)
		}
		if err != nil {
			return nil, errors.Join(&endpick.ConfigError{Field: "replica.NATS", Reason: fmt.Sprintf("can't subscribe to %q: %v", subject, err)}, l.Close())
		}
	}
	return l, nil
}

func (b *natsBus) to(instance uint32) string {
	if instance == 0 {
		return b.subject + ".all"
	}
	return fmt.Sprintf("%s.%08x", b.subject, instance)
}

type natsLine struct {
	*natsBus
	subscriptions []*nats.Subscription
}

func (l *natsLine) Publish(to uint32, message []byte) error {
	return l.conn.Publish(l.to(to), message)
}

func (l *natsLine) Connected() bool { return l.conn.IsConnected() }

func (l *natsLine) Close() error {
	var errs []error
	for _, s := range l.subscriptions {
		if err := s.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
