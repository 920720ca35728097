package whole

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/require"
)

// The frames of HTTP/2, RFC 9113, that a misbehaving server needs.
const (
	dataFrame, headersFrame, resetFrame, settingsFrame, pushFrame, pingFrame, goAwayFrame = 0, 1, 3, 4, 5, 6, 7

	endStream, ack, endHeaders = 1, 1, 4

	noError, internalError, enhanceCalm = 0, 2, 11
)

// h2 is a connection to a server that speaks HTTP/2 in the clear.
type h2 struct {
	net.Conn
	r *bufio.Reader
}

func (c *h2) frame(kind, flags byte, stream uint32, payload string) {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	b = binary.BigEndian.AppendUint32(b, stream)
	_, _ = c.Write(append(b, payload...))
}

func (c *h2) code(kind byte, stream uint32, before string, code uint32) {
	c.frame(kind, 0, stream, before+string(binary.BigEndian.AppendUint32(nil, code)))
}

// header is a status of 200 and a content type, without Huffman coding.
func (c *h2) header(flags byte) {
	const kind = "text/event-stream"
	// :status 200 is the eighth entry of the static table, content-type the 31st name.
	c.frame(headersFrame, endHeaders|flags, 1, "\x88\x0f\x10"+string(rune(len(kind)))+kind)
}

// request reads frames until the request has ended; false if the client has closed.
func (c *h2) request() bool {
	for {
		var head [9]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return false
		}
		n := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		if _, err := c.r.Discard(n); err != nil {
			return false
		}
		kind, flags, stream := head[3], head[4], binary.BigEndian.Uint32(head[5:])
		if stream == 1 && (kind == dataFrame || kind == headersFrame) && flags&endStream != 0 {
			return true
		}
	}
}

// http2Servers are what servers do after receiving a request.
func http2Servers() []fault[func(*h2)] {
	first, rest, _ := strings.Cut(streamed, "\n\n")
	first += "\n\n"
	begins := func(c *h2) { c.header(0); c.frame(dataFrame, 0, 1, first) }
	return []fault[func(*h2)]{
		{"answers well", func(c *h2) { c.header(0); c.frame(dataFrame, endStream, 1, streamed) }},
		{"sends frames of unknown types in between", func(c *h2) {
			c.frame(0xee, 0xff, 1, "what?")
			c.header(0)
			c.frame(0xef, 0, 0, "")
			c.frame(dataFrame, endStream, 1, streamed)
		}},
		{"closes the connection", func(*h2) {}},
		{"resets the stream before its header", func(c *h2) { c.code(resetFrame, 1, "", internalError) }},
		{"resets the stream after its header", func(c *h2) { c.header(0); c.code(resetFrame, 1, "", internalError) }},
		{"resets the stream after a token", func(c *h2) { begins(c); c.code(resetFrame, 1, "", internalError) }},
		{"resets the stream with NO_ERROR after a token", func(c *h2) { begins(c); c.code(resetFrame, 1, "", noError) }},
		{"sends GOAWAY with ENHANCE_YOUR_CALM", func(c *h2) { c.code(goAwayFrame, 0, "\x00\x00\x00\x00", enhanceCalm) }},
		{"sends GOAWAY after the request, and finishes it", func(c *h2) {
			c.code(goAwayFrame, 0, "\x00\x00\x00\x01", noError)
			c.header(0)
			c.frame(dataFrame, endStream, 1, streamed)
		}},
		{"sends GOAWAY with an error in the middle of a stream", func(c *h2) { begins(c); c.code(goAwayFrame, 0, "\x00\x00\x00\x00", internalError) }},
		{"closes the connection after a token", begins},
		{"ends the stream with its header", func(c *h2) { c.header(endStream) }},
		{"ends the stream unfinished", func(c *h2) { c.header(0); c.frame(dataFrame, endStream, 1, first) }},
		{"sends DATA before HEADERS", func(c *h2) { c.frame(dataFrame, endStream, 1, streamed) }},
		{"sends a header that HPACK can't decode", func(c *h2) { c.frame(headersFrame, endHeaders, 1, "\xff\xff\xff\xff\xff\xff\xff") }},
		{"sends a header without :status", func(c *h2) { c.frame(headersFrame, endHeaders, 1, "\x0f\x10\x01x") }},
		{"announces a frame of 16 MB", func(c *h2) { _, _ = c.Write([]byte{0xff, 0xff, 0xff, dataFrame, 0, 0, 0, 0, 1}) }},
		{"sends PUSH_PROMISE", func(c *h2) { c.frame(pushFrame, endHeaders, 1, "\x00\x00\x00\x02\x82\x87") }},
		{"answers on a stream that was never opened", func(c *h2) { c.frame(headersFrame, endHeaders, 99, "\x88"); c.frame(dataFrame, endStream, 99, "x") }},
		{"sends DATA after END_STREAM", func(c *h2) {
			c.header(0)
			c.frame(dataFrame, endStream, 1, streamed)
			c.frame(dataFrame, endStream, 1, rest)
		}},
		{"sends a PING of the wrong length", func(c *h2) { c.frame(pingFrame, 0, 0, "too long to be one"); c.header(0) }},
	}
}

func http2Faults(t *testing.T) []row {
	return each(t, http2Servers(), func(t *testing.T, _ string, does func(*h2)) []string {
		g := newGateway(t, transport.Config{}, endpick.Config{}, "h2c://"+listen(t, func(c net.Conn) {
			server := &h2{c, bufio.NewReader(c)}
			if _, err := server.r.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
				return
			}
			server.frame(settingsFrame, 0, 0, "")
			server.frame(settingsFrame, ack, 0, "")
			if server.request() {
				does(server)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, server.r)
			}
		}))
		return []string{g.ask(t, true, nil), g.leases(t)}
	})
}

// listen serves connections until the test ends.
func listen(t *testing.T, serve func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}
