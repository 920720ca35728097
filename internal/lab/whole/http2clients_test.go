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
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	priorityFrame, continuationFrame = 2, 9

	cancel = 8
)

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

// hears reads frames until the stream or the connection has ended, or nothing more can
// follow, and describes them.
func (c *h2) hears(stream uint32) string {
	saw := ""
	for {
		var head [9]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return saw + "the connection ends"
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c.r, payload); err != nil {
			return saw + "the connection ends"
		}
		kind, flags, of := head[3], head[4], binary.BigEndian.Uint32(head[5:])
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

// clientInputs are the bodies of rig.Bodies, and the suite's exchanges with an odd
// client.
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
			status := strings.TrimPrefix(a.Status, "HTTP/1.1 ")
			switch {
			case a.End == "left":
				status = "–, it has left"
			case status == "":
				status = "a connection that breaks"
			default:
				code := 0
				_, _ = fmt.Sscan(status, &code)
				var broke error
				if a.End != "whole" {
					broke = fmt.Errorf("cut")
				}
				status = view(code, a.Body, broke)
			}
			saw = append(saw, status)
		}
		leases := g.leases(t)
		if name == "upgrade" { // which end closes first is up to chance
			require.Contains(t, []string{"canceled", "completed"}, leases)
			leases = "canceled or completed"
		}
		return []string{strings.Join(slices.Compact(saw), ", "), leases}
	})
}
