package kvevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// conn is the client's end of a ZMTP 3.0 connection without encryption
// (rfc.zeromq.org/spec/23). One goroutine may read while another writes.
type conn struct {
	net.Conn
	in     *bufio.Reader
	most   int // bytes per message
	buffer []byte
	frames [][]byte
}

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	maxFrames = 16
	// handshakeWithin limits the time of the handshake.
	handshakeWithin = 10 * time.Second
)

var errTooLong = errors.New("kvevents: message is too long")

// handshake makes a connection. Another goroutine may close c.
func handshake(c net.Conn, socketType string, peers []string, most int) (*conn, error) {
	z := &conn{Conn: c, in: bufio.NewReaderSize(c, 64<<10), most: most}
	if err := c.SetDeadline(time.Now().Add(handshakeWithin)); err != nil {
		return nil, err
	}
	hello := [64]byte{0: 0xff, 9: 0x7f, 10: 3}
	copy(hello[12:], "NULL")
	if _, err := c.Write(hello[:]); err != nil {
		return nil, err
	}
	var peer [64]byte
	if _, err := io.ReadFull(z.in, peer[:]); err != nil {
		return nil, err
	}
	switch {
	case peer[0] != 0xff || peer[9] != 0x7f || peer[10] < 3:
		return nil, errors.New("kvevents: the peer doesn't speak ZMTP 3")
	case string(peer[12:16]) != "NULL" || peer[16] != 0:
		return nil, fmt.Errorf("kvevents: the peer wants security mechanism %q", peer[12:20])
	}
	ready := appendProperty([]byte("\x05READY"), "Socket-Type", socketType)
	if err := z.write(flagCommand, appendProperty(ready, "Identity", "")); err != nil {
		return nil, err
	}
	command, body, err := z.frame(nil)
	if err != nil {
		return nil, err
	}
	theirs, ok := socketTypeOf(body)
	if command&flagCommand == 0 || !ok {
		return nil, fmt.Errorf("kvevents: the peer is not ready: %.60q", body)
	}
	for _, p := range peers {
		if p == theirs {
			return z, c.SetDeadline(time.Time{})
		}
	}
	return nil, fmt.Errorf("kvevents: the peer is a socket of type %.20q, not %s", theirs, peers[0])
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// socketTypeOf finds the socket type in the peer's READY.
func socketTypeOf(body []byte) (string, bool) {
	if len(body) < 6 || string(body[:6]) != "\x05READY" {
		return "", false
	}
	for body = body[6:]; len(body) > 0; {
		n := int(body[0])
		if len(body) < 1+n+4 {
			return "", false
		}
		name := string(body[1 : 1+n])
		size := binary.BigEndian.Uint32(body[1+n:])
		if body = body[1+n+4:]; uint64(size) > uint64(len(body)) {
			return "", false
		}
		if name == "Socket-Type" {
			return string(body[:size]), true
		}
		body = body[size:]
	}
	return "", false
}

// write sends one frame.
func (z *conn) write(flags byte, body []byte) error {
	b := make([]byte, 0, 9+len(body))
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	_, err := z.Write(append(b, body...))
	return err
}

// frame reads a frame and appends it to dst, if it is within the limit.
func (z *conn) frame(dst []byte) (flags byte, out []byte, err error) {
	if flags, err = z.in.ReadByte(); err != nil {
		return 0, dst, err
	}
	var size uint64
	if flags&flagLong != 0 {
		var b [8]byte
		if _, err := io.ReadFull(z.in, b[:]); err != nil {
			return 0, dst, err
		}
		size = binary.BigEndian.Uint64(b[:])
	} else {
		b, err := z.in.ReadByte()
		if err != nil {
			return 0, dst, err
		}
		size = uint64(b)
	}
	if size > uint64(z.most) || len(dst)+int(size) > z.most {
		return 0, dst, errTooLong
	}
	// Allocate as bytes arrive, not as the header promises.
	const step = 1 << 20
	for size > 0 {
		n := int(min(size, step))
		from := len(dst)
		if cap(dst)-from < n {
			dst = append(dst, make([]byte, n)...)
		} else {
			dst = dst[:from+n]
		}
		if _, err := io.ReadFull(z.in, dst[from:]); err != nil {
			return 0, dst, err
		}
		size -= uint64(n)
	}
	return flags, dst, nil
}

// read returns the frames of the next message, which are valid until the next call.
// It answers heartbeats.
func (z *conn) read() ([][]byte, error) {
	var ends [maxFrames]int
	n := 0
	z.buffer = z.buffer[:0]
	for {
		from := len(z.buffer)
		flags, b, err := z.frame(z.buffer)
		if err != nil {
			return nil, err
		}
		z.buffer = b
		if flags&flagCommand != 0 {
			body := b[from:]
			z.buffer = b[:from]
			if len(body) >= 7 && string(body[:5]) == "\x04PING" {
				if err := z.write(flagCommand, append([]byte("\x04PONG"), body[7:min(len(body), 7+16)]...)); err != nil {
					return nil, err
				}
			}
			continue
		}
		if n == maxFrames {
			return nil, errTooLong
		}
		ends[n] = len(b)
		n++
		if flags&flagMore != 0 {
			continue
		}
		z.frames = z.frames[:0]
		from = 0
		for _, end := range ends[:n] {
			z.frames = append(z.frames, b[from:end])
			from = end
		}
		return z.frames, nil
	}
}
