package kvevents

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
)

const (
	helloText = "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL"
	readyHead = "\x05READY\x0bSocket-Type\x00\x00\x00"
	noEvents  = "\x93\x00\x90\x00"
)

var zeros48 = string(make([]byte, 48))

func command(flags byte, body string) string { return string([]byte{flags, byte(len(body))}) + body }

func numbered(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

// greeting is a peer's side of a handshake.
func greeting(kind string) string {
	return helloText + zeros48 + command(4, readyHead+string(rune(len(kind)))+kind)
}

// empty is a batch without events, as it is sent.
func empty(number uint64) string {
	return command(1, "") + command(1, numbered(number)) + command(0, noEvents)
}

// noted is a connection that records its deadlines and its end.
type noted struct {
	net.Conn
	deadlines []time.Time
	closed    atomic.Bool
}

func (n *noted) SetDeadline(at time.Time) error {
	n.deadlines = append(n.deadlines, at)
	return n.Conn.SetDeadline(at)
}

func (n *noted) Close() error {
	n.closed.Store(true)
	return n.Conn.Close()
}

// script is a connection to a peer that says something, and hears nothing.
type script struct {
	net.Conn // for deadlines
	says     *strings.Reader
}

func (s script) Read(p []byte) (int, error)  { return s.says.Read(p) }
func (s script) Write(p []byte) (int, error) { return len(p), nil }

func shake(t *testing.T, says string, most int) (*noted, *zmq4.Conn, error) {
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close(); there.Close() })
	n := &noted{Conn: script{here, strings.NewReader(says)}}
	z, err := open(n, zmq4.Sub, most)
	return n, z, err
}

// A peer has ten seconds for the handshake, and any time after that. What it says wrong is an error.
func TestHandshakes(t *testing.T) {
	ready := func(body string) string { return helloText + zeros48 + command(4, "\x05READY"+body) }
	much := func(n int) string {
		const head = "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB\x01a"
		rest := n - len(head) - 4
		return helloText + zeros48 + "\x06" + numbered(uint64(n)) + head + string(binary.BigEndian.AppendUint32(nil, uint32(rest))) + strings.Repeat("x", rest)
	}
	for name, tc := range map[string]struct {
		says string
		ok   bool
	}{
		"a publisher":            {greeting("PUB"), true},
		"another kind of it":     {greeting("XPUB"), true},
		"of a later version":     {strings.Replace(greeting("PUB"), "\x7f\x03", "\x7f\x04", 1), true},
		"of an older version":    {strings.Replace(greeting("PUB"), "\x7f\x03", "\x7f\x02", 1), false},
		"without a signature":    {strings.Replace(greeting("PUB"), "\xff", "\xfe", 1), false},
		"with another mechanism": {strings.Replace(greeting("PUB"), "NULL\x00", "CURVE", 1), false},
		"a message":              {strings.Replace(greeting("PUB"), "\x04\x19", "\x00\x19", 1), false},
		"another type":           {greeting("PULL"), false},
		"no type":                {ready(""), false},
		"a type behind others":   {ready("\x01a\x00\x00\x00\x02xy\x0bSocket-Type\x00\x00\x00\x03PUB"), true},
		"more than there is":     {ready("\x0bSocket-Type\x00\x00\x00\x04PUB"), false},
		"a name without a size":  {ready("\x0bSocket-Type\x00\x00\x00"), false},
		"a name that is cut":     {ready("\xffS"), false},
		"much":                   {much(maxHandshake), true},
		"too much":               {much(maxHandshake + 1), false},
	} {
		n, z, err := shake(t, tc.says, 64<<20)
		left := time.Until(n.deadlines[0])
		require.True(t, left > 0 && left <= 10*time.Second, name)
		if !tc.ok {
			require.Error(t, err, name)
			continue
		}
		require.NoError(t, err, name)
		require.NotNil(t, z)
		require.True(t, n.deadlines[len(n.deadlines)-1].IsZero(), name)
	}
}

// A message is limited in bytes and in frames, before memory is allocated for it.
func TestMessagesAreBounded(t *testing.T) {
	const most = 2 * maxHandshake
	frame := func(more byte, n int) string {
		if n > 255 {
			return string([]byte{2 | more}) + numbered(uint64(n)) + strings.Repeat("x", n)
		}
		return command(more, strings.Repeat("x", n))
	}
	for name, tc := range map[string]struct {
		says   string
		frames int // of the last message; 0: it is refused
	}{
		"one":                    {frame(0, 5), 1},
		"empty ones":             {frame(1, 0) + frame(1, 3) + frame(0, 0), 3},
		"the longest":            {frame(1, 255) + frame(1, 256) + frame(0, most-511), 3},
		"one after another":      {frame(0, most) + frame(0, most) + frame(1, 1) + frame(0, most-1), 2},
		"the most frames":        {strings.Repeat(frame(1, 1), maxFrames-1) + frame(0, 1), maxFrames},
		"and again":              {strings.Repeat(strings.Repeat(frame(1, 1), maxFrames-1)+frame(0, 1), 3), maxFrames},
		"too long":               {frame(0, most+1), 0},
		"a header that is cut":   {frame(0, 5) + "\x02\x00\x00", 1},
		"too long together":      {frame(1, most/2) + frame(0, most/2+1), 0},
		"too many frames":        {strings.Repeat(frame(1, 0), maxFrames) + frame(0, 0), 0},
		"2^63":                   {"\x02" + numbered(1<<63), 0},
		"2^64 - 1 after a frame": {frame(1, 1) + "\x02" + numbered(1<<64-1), 0},
		"a command of 2^40":      {"\x06" + numbered(1<<40), 0},
	} {
		_, z, err := shake(t, greeting("PUB")+tc.says, most)
		require.NoError(t, err)
		last := 0
		for {
			var frames [][]byte
			if frames, err = receive(z); err != nil {
				break
			}
			last = len(frames)
		}
		if tc.frames == 0 {
			require.ErrorIs(t, err, errTooLong, name)
			continue
		}
		require.ErrorIs(t, err, io.EOF, name)
		require.Equal(t, tc.frames, last, name)
	}
}

// peer is the other end of a connection, which a test plays byte by byte.
type peer struct {
	t *testing.T
	net.Conn
}

func (p peer) say(s string) { require.NoError(p.t, rig.Err(io.WriteString(p, s))) }

func (p peer) hear(n int) string {
	b := make([]byte, n)
	require.NoError(p.t, rig.Err(io.ReadFull(p, b)))
	return string(b)
}

// Subscriptions name their topic, heartbeats are answered, and a message that is too long
// ends the connection.
func TestWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := make(chan net.Conn, 1)
		sub := rig.Must(New(Config{
			Events: "e:1", Topic: "kv@", MaxMessage: 1000, Sink: &resets{},
			Dial: func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				others <- there
				return here, nil
			},
		}))
		stop := running(t, sub)
		p := peer{t, <-others}
		require.Equal(t, helloText, p.hear(64)[:16])
		p.say(greeting("PUB"))
		header := p.hear(2)
		require.Equal(t, byte(4), header[0])
		require.Contains(t, p.hear(int(header[1])), "Socket-Type\x00\x00\x00\x03SUB")
		require.Equal(t, "\x00\x04\x01kv@", p.hear(6))
		synctest.Wait()
		require.Equal(t, Live, sub.Stats().State)
		p.say("\x04\x0a\x04PING\x00\x0aabc")
		require.Equal(t, "\x04\x05\x04PONG", p.hear(7))

		p.say("\x01\x03kv@" + "\x01\x08" + numbered(0) + "\x00\x04" + noEvents)
		p.say("\x01\x03kv@" + "\x03" + numbered(8) + numbered(1) + "\x02" + numbered(4) + noEvents)
		p.say("\x01\x03kv@" + "\x01\x01x" + "\x00\x04" + noEvents) // no number
		synctest.Wait()
		s := sub.Stats()
		require.Equal(t, []any{uint64(2), uint64(1), Live, nil}, []any{s.Next, s.Malformed, s.State, s.Err})

		p.say("\x03" + numbered(600) + strings.Repeat("x", 600) + "\x03" + numbered(600))
		require.NoError(t, rig.Err(io.ReadAll(p)), "it ends the connection")
		synctest.Wait()
		require.ErrorIs(t, sub.Stats().Err, errTooLong)
		stop()
	})
}
