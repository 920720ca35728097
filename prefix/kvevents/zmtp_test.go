package kvevents

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// peer is the other end of a connection, which a test plays byte by byte.
type peer struct {
	t *testing.T
	net.Conn
}

const (
	helloText = "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL"
	readyHead = "\x05READY\x0bSocket-Type\x00\x00\x00"
)

func (p peer) say(s string) {
	_, err := io.WriteString(p, s)
	require.NoError(p.t, err)
}

func (p peer) hear(n int) string {
	b := make([]byte, n)
	_, err := io.ReadFull(p, b)
	require.NoError(p.t, err)
	return string(b)
}

// greet plays the handshake of a socket type.
func (p peer) greet(kind, theirs string) {
	hello := p.hear(64)
	require.Equal(p.t, helloText, hello[:16])
	p.say(helloText + string(make([]byte, 48)))
	body := readyHead + string(rune(len(theirs))) + theirs + "\x08Identity\x00\x00\x00\x00"
	require.Equal(p.t, "\x04"+string(rune(len(body)))+body, p.hear(2+len(body)))
	body = readyHead + string(rune(len(kind))) + kind
	p.say("\x04" + string(rune(len(body))) + body)
}

// connect connects a subscriber to peers, over real connections.
func connect(t *testing.T, change func(*Config)) (accept func() peer, r *reading) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	r = read(t, &engine{}, func(c *Config) {
		c.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		}
		c.Replay = ""
		change(c)
	})
	return func() peer {
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
		t.Cleanup(func() { c.Close() })
		return peer{t, c}
	}, r
}

func numbered(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

// Subscriptions name their topic, heartbeats are answered, frames may be long, and
// messages with several frames are limited.
func TestWire(t *testing.T) {
	accept, r := connect(t, func(c *Config) { c.Topic, c.MaxMessage = "kv@", 1000 })
	p := accept()
	p.greet("PUB", "SUB")
	require.Equal(t, "\x00\x04\x01kv@", p.hear(6))
	p.say("\x04\x0a\x04PING\x00\x0aabc") // of 3 bytes of context
	require.Equal(t, "\x04\x08\x04PONGabc", p.hear(10))

	payload := "\x93\x00\x90\x00" // no events
	p.say("\x01\x03kv@" + "\x01\x08" + numbered(0) + "\x00\x04" + payload)
	p.say("\x01\x03kv@" + "\x04\x09\x04PING\x00\x0aab" + "\x03" + numbered(8) + numbered(1) + "\x02" + numbered(4) + payload)
	require.Equal(t, "\x04\x07\x04PONGab", p.hear(9), "within a message too")
	r.until("two", func(s Stats) bool { return s.Next == 2 })
	p.say("\x01\x03kv@" + "\x01\x01x" + "\x00\x04" + payload) // no number
	r.until("a strange one", func(s Stats) bool { return s.Malformed == 1 })

	p.say("\x03" + numbered(600) + strings.Repeat("x", 600) + "\x03" + numbered(600))
	_, err := io.ReadAll(p)
	require.NoError(t, err, "it ends the connection")
	r.until("too long", func(s Stats) bool { return s.Err != nil && s.State == Connecting || s.Connections > 1 })
	r.end()
}

func TestLongFramesAreWritten(t *testing.T) {
	here, there := net.Pipe()
	go func() {
		z := &conn{Conn: here}
		_ = z.write(flagMore, make([]byte, 255))
		_ = z.write(0, make([]byte, 256))
	}()
	p := peer{t, there}
	require.Equal(t, "\x01\xff", p.hear(257)[:2])
	require.Equal(t, "\x02"+numbered(256), p.hear(9 + 256)[:9])
}

// Replies with falling numbers are rejected.
func TestReplayInDisorder(t *testing.T) {
	accept, r := connect(t, func(c *Config) { c.Replay, c.ReplayWithin = c.Events, time.Hour })
	p := accept()
	p.greet("PUB", "SUB")
	p.hear(3)
	q := accept()
	q.greet("ROUTER", "DEALER")
	require.Equal(t, "\x01\x00\x00\x08"+numbered(0), q.hear(12))
	for _, n := range []uint64{5, 4} {
		q.say("\x01\x00\x01\x08" + numbered(n) + "\x00\x04\x93\x00\x90\x00")
	}
	_, err := io.ReadAll(q)
	require.NoError(t, err, "we hang up")
	r.until("it has failed", func(s Stats) bool { return s.ReplaysFailed == 1 && s.State == Live })
	p.say("\x01\x00\x01\x08" + numbered(6) + "\x00\x04\x93\x00\x90\x00")
	r.until("live", func(s Stats) bool { return s.Next == 7 })
	r.end()
}

// A replay that does not come is abandoned.
func TestReplayThatNeverComes(t *testing.T) {
	accept, r := connect(t, func(c *Config) { c.Replay, c.ReplayWithin = c.Events, time.Millisecond })
	p := accept()
	p.greet("PUB", "SUB")
	p.hear(3) // nobody accepts the second connection
	r.until("it has failed", func(s Stats) bool { return s.ReplaysFailed == 1 && s.State == Live })
	p.say("\x01\x00\x01\x08" + numbered(0) + "\x00\x04\x93\x00\x90\x00")
	r.until("live", func(s Stats) bool { return s.Next == 1 })
	r.end()
}
