package whole

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The frames of HTTP/2, RFC 9113, that misbehaving servers and clients need.
const (
	dataFrame, headersFrame, priorityFrame, resetFrame, settingsFrame, pushFrame, pingFrame, goAwayFrame, continuationFrame = 0, 1, 2, 3, 4, 5, 6, 7, 9

	endStream, ack, endHeaders = 1, 1, 4

	noError, internalError, cancel, enhanceCalm = 0, 2, 8, 11
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
		kind, flags, stream, _, err := c.read()
		if ends := stream == 1 && (kind == dataFrame || kind == headersFrame) && flags&endStream != 0; ends || err != nil {
			return err == nil
		}
	}
}

// read reads a frame.
func (c *h2) read() (kind, flags byte, stream uint32, payload []byte, err error) {
	var head [9]byte
	if _, err = io.ReadFull(c.r, head[:]); err == nil {
		payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		_, err = io.ReadFull(c.r, payload)
	}
	return head[3], head[4], binary.BigEndian.Uint32(head[5:]), payload, err
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
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	var conns rig.List[net.Conn]
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(c)
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		for _, c := range conns.Take() {
			c.Close()
		}
		wg.Wait()
	})
	return l.Addr().String()
}

// block is a header with literal names and values.
func block(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		b.WriteByte(0)
		for _, s := range pairs[i : i+2] {
			b.WriteByte(byte(len(s)))
			b.WriteString(s)
		}
	}
	return b.String()
}

func requestBlock(pairs ...string) string {
	return block(append([]string{":method", "POST", ":scheme", "http", ":path", chatPath, ":authority", "gateway", "content-type", "application/json"}, pairs...)...)
}

// asks sends a request on a stream.
func (c *h2) asks(stream uint32) {
	c.frame(headersFrame, endHeaders, stream, requestBlock())
	c.frame(dataFrame, endStream, stream, question)
}

// hears reads frames until the stream or the connection has ended, or nothing more can follow, and describes them.
func (c *h2) hears(stream uint32) string {
	saw := ""
	for {
		kind, flags, of, payload, err := c.read()
		if err != nil {
			return saw + "the connection ends"
		}
		switch {
		case kind == settingsFrame && flags&ack == 0:
			c.frame(settingsFrame, ack, 0, "")
		case kind == goAwayFrame:
			if binary.BigEndian.Uint32(payload[4:]) != noError {
				return saw + "the connection ends"
			}
		case of != stream:
		case kind == resetFrame:
			return saw + fmt.Sprintf("the stream is reset, error %d", binary.BigEndian.Uint32(payload))
		case kind == headersFrame && payload[0] == 0x88:
			saw = "200, "
		case kind == headersFrame:
			saw = "a refusal, "
		}
		if of == stream && (kind == headersFrame || kind == dataFrame) && flags&endStream != 0 {
			return saw + "complete"
		}
	}
}

// http2Clients are clients that speak HTTP/2 to the gateway and misbehave.
func http2Clients(t *testing.T) []row {
	type client struct {
		slow  bool   // the engine sends nothing until its client leaves
		hears uint32 // the stream whose answer it waits for; 0: it leaves
		sends func(c *h2)
	}
	flood := func(frame func(c *h2, i int)) func(c *h2) {
		return func(c *h2) {
			for i := range 1000 {
				frame(c, i)
			}
			c.asks(1)
		}
	}
	sends := func(kind, flags byte, payload string) func(c *h2) {
		return func(c *h2) { c.frame(kind, flags, 1, payload) }
	}
	clients := []fault[client]{
		{"sends a good request", client{false, 1, func(c *h2) { c.asks(1) }}},
		{"sends its body byte by byte", client{false, 1, func(c *h2) {
			c.frame(headersFrame, endHeaders, 1, requestBlock())
			for i := range question {
				c.frame(dataFrame, 0, 1, question[i:i+1])
			}
			c.frame(dataFrame, endStream, 1, "")
		}}},
		{"sends 200 requests at once", client{false, 399, func(c *h2) {
			for i := range uint32(200) {
				c.asks(2*i + 1)
			}
		}}},
		{"resets 200 requests at once", client{true, 0, func(c *h2) {
			for i := range uint32(200) {
				c.asks(2*i + 1)
				c.code(resetFrame, 2*i+1, "", cancel)
			}
		}}},
		{"resets its stream in the middle of the body", client{true, 0, func(c *h2) {
			c.frame(headersFrame, endHeaders, 1, requestBlock())
			c.frame(dataFrame, 0, 1, question[:10])
			c.code(resetFrame, 1, "", cancel)
		}}},
		{"sends GOAWAY after its request", client{true, 0, func(c *h2) {
			c.asks(1)
			c.code(goAwayFrame, 0, "\x00\x00\x00\x00", internalError)
		}}},
		{"sends 1,000 pings", client{false, 1, flood(func(c *h2, _ int) { c.frame(pingFrame, 0, 0, "12345678") })}},
		{"sends 1,000 SETTINGS frames", client{false, 1, flood(func(c *h2, _ int) { c.frame(settingsFrame, 0, 0, "") })}},
		{"sends 1,000 PRIORITY frames", client{false, 1, flood(func(c *h2, i int) {
			c.frame(priorityFrame, 0, uint32(2*i+3), string(binary.BigEndian.AppendUint32(nil, uint32(2*i+5)))+"\xff")
		})}},
		{"sends 1,000 WINDOW_UPDATE frames", client{false, 1, flood(func(c *h2, _ int) { c.code(8, 0, "", 1) })}},
		{"sends frames of unknown types", client{false, 1, flood(func(c *h2, _ int) { c.frame(0xee, 0xff, 1, "what?") })}},
		{"opens no flow-control window", client{false, 0, func(c *h2) {
			c.frame(settingsFrame, 0, 0, "\x00\x04\x00\x00\x00\x00") // the initial window of streams
			c.asks(1)
		}}},
		{"sends a header without end", client{false, 1, func(c *h2) {
			c.frame(headersFrame, 0, 1, requestBlock())
			for range 400 {
				c.frame(continuationFrame, 0, 1, block(strings.Repeat("x", 60), strings.Repeat("y", 100))+strings.Repeat(block("a", "b"), 1000))
			}
		}}},
		{"sends a header that HPACK can't decode", client{false, 1, sends(headersFrame, endHeaders|endStream, "\xff\xff\xff\xff\xff\xff\xff")}},
		{"sends a header name in capitals", client{false, 1, sends(headersFrame, endHeaders|endStream, requestBlock("X-Header", "x"))}},
		{"sends no :path", client{false, 1, sends(headersFrame, endHeaders|endStream,
			block(":method", "POST", ":scheme", "http", ":authority", "gateway"))}},
		{"sends less than its content-length", client{false, 1, func(c *h2) {
			c.frame(headersFrame, endHeaders, 1, requestBlock("content-length", "1000"))
			c.frame(dataFrame, endStream, 1, question)
		}}},
		{"sends more than its content-length", client{false, 1, func(c *h2) {
			c.frame(headersFrame, endHeaders, 1, requestBlock("content-length", "2"))
			c.frame(dataFrame, endStream, 1, question)
		}}},
		{"sends DATA on a stream that was never opened", client{false, 7, func(c *h2) { c.frame(dataFrame, endStream, 7, question) }}},
		{"sends a PING of the wrong length", client{false, 1, func(c *h2) { c.frame(pingFrame, 0, 0, "too long to be one") }}},
	}
	return each(t, clients, func(t *testing.T, _ string, client client) []string {
		server := sluggish
		if !client.slow {
			server = good
		}
		var g *gateway
		t.Cleanup(func() { g.leases(t) }) // once the server has closed, late events included
		g = newGateway(t, transport.Config{}, endpick.Config{}, server(t))
		conn := rig.Must(net.Dial("tcp", g.server.Listener.Addr().String()))
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		c := &h2{conn, bufio.NewReader(conn)}
		_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		c.frame(settingsFrame, 0, 0, "")
		client.sends(c)
		saw := "–, it has left"
		if client.hears > 0 {
			saw = c.hears(client.hears)
		}
		conn.Close()
		leases := g.leases(t)
		if may := map[bool]string{true: "none or canceled", false: "none, canceled or completed"}[client.slow]; strings.HasPrefix(saw, "–") || strings.Contains(leases, ",") {
			// Unread data is lost with the connection.
			for _, end := range strings.Split(leases, ", ") {
				require.Contains(t, may, end)
			}
			leases = may
		}
		return []string{saw, leases}
	})
}

// clientInputs are the bodies of rig.Bodies, and the suite's exchanges with an odd client.
func clientInputs(t *testing.T) []row {
	shapes := rig.Bodies()
	var scenarios []fault[suite.Scenario]
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		s := shapes[name]
		request := suite.Request{Path: s.Path, Body: string(s.Bytes(16 << 10))}
		scenarios = append(scenarios, fault[suite.Scenario]{name, suite.Scenario{Name: name, Request: request, Replies: []suite.Reply{{Parts: []string{answer}}}}})
	}
	odd := []string{"headers", "body in chunks", "body of 1 MiB", "body with a trailer", "body that is no JSON", "no body", "gzip", "100-continue", "upgrade", "multipart", "a path of no API", "abort", "slow"}
	for _, s := range suite.Scenarios() {
		if slices.ContainsFunc(odd, func(part string) bool { return strings.Contains(s.Name, part) }) {
			scenarios = append(scenarios, fault[suite.Scenario]{s.Name, s})
		}
	}
	return each(t, scenarios, func(t *testing.T, name string, s suite.Scenario) []string {
		var g *gateway
		way := suite.Way{Name: "gateway", Open: func(servers []string) (*suite.Front, error) {
			g = newGateway(t, transport.Config{}, endpick.Config{}, servers[0])
			return &suite.Front{
				Network: "tcp", Address: g.server.Listener.Addr().String(), Router: func() *endpick.Router { return g.router },
				Close: func() error { return nil },
			}, nil
		}}
		began := time.Now()
		played := rig.Must(suite.Play(t.Context(), way, s))
		assert.Empty(t, played.Late, "after %v", time.Since(began))
		var saw []string
		for _, a := range played.Answers {
			code, broke := 0, io.ErrUnexpectedEOF
			_, _ = fmt.Sscan(strings.TrimPrefix(a.Status, "HTTP/1.1 "), &code)
			if a.End == "whole" {
				broke = nil
			}
			switch {
			case a.End == "left":
				saw = append(saw, "–, it has left")
			case a.Status == "":
				saw = append(saw, "a connection that breaks")
			default:
				saw = append(saw, view(code, a.Body, broke))
			}
		}
		leases := g.leases(t)
		if name == "upgrade" { // which end closes first is up to chance
			require.Contains(t, []string{"canceled", "completed"}, leases)
			leases = "canceled or completed"
		}
		return []string{strings.Join(slices.Compact(saw), ", "), leases}
	})
}
