package kvevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	greetingBytes = 64
	maxFrames     = 16
	// maxHandshake limits a message of the handshake, which the library reads at a megabyte per second.
	maxHandshake = 4 << 10
	// handshakeWithin limits the time of the handshake.
	handshakeWithin = 10 * time.Second
)

// The flags of a frame.
const (
	flagMore = 1
	flagLong = 2
)

var errTooLong = errors.New("kvevents: message is too long")

// bounded limits the messages that a peer sends, because the library allocates what the
// header of a frame promises, and takes any number of frames.
type bounded struct {
	net.Conn
	in     *bufio.Reader
	most   uint64 // bytes per message
	left   uint64 // bytes of the greeting or the current frame that are yet to be read
	size   uint64 // of the message so far
	frames int
}

func newBounded(c net.Conn, most int) *bounded {
	return &bounded{Conn: c, in: bufio.NewReaderSize(c, 64<<10), most: uint64(most), left: greetingBytes}
}

// Read reads no further than to the end of a frame.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		if err := b.frame(); err != nil {
			return 0, err
		}
	}
	n, err := b.in.Read(p[:min(uint64(len(p)), b.left)])
	b.left -= uint64(n)
	return n, err
}

// frame looks at the header of the next frame.
func (b *bounded) frame() error {
	header, err := b.in.Peek(2)
	if err != nil {
		return err
	}
	flags, size := header[0], uint64(header[1])
	if flags&flagLong != 0 {
		if header, err = b.in.Peek(9); err != nil {
			return err
		}
		size = binary.BigEndian.Uint64(header[1:])
	}
	if b.frames++; b.frames > maxFrames || size > b.most-b.size {
		return errTooLong
	}
	b.left = uint64(len(header)) + size
	if b.size += size; flags&flagMore == 0 {
		b.size, b.frames = 0, 0
	}
	return nil
}

// open makes a ZMTP connection without encryption, which is one end of a pair of sockets.
func open(c net.Conn, own zmq4.SocketType, most int) (z *zmq4.Conn, err error) {
	defer func() { // the library trusts the lengths in a handshake
		if v := recover(); v != nil {
			err = fmt.Errorf("kvevents: malformed handshake: %v", v)
		}
	}()
	if err := c.SetDeadline(time.Now().Add(handshakeWithin)); err != nil {
		return nil, err
	}
	b := newBounded(c, min(most, maxHandshake))
	if z, err = zmq4.Open(b, null.Security(), own, nil, false, nil); err != nil {
		return nil, err
	}
	b.most = uint64(most)
	return z, c.SetDeadline(time.Time{})
}

// receive returns the frames of the next message. The library answers heartbeats.
func receive(z *zmq4.Conn) ([][]byte, error) {
	for {
		m, err := z.RecvMsg()
		if err != nil || m.Type != zmq4.CmdMsg {
			return m.Frames, err
		}
	}
}
