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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
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
		slow bool // the engine sends nothing until its client leaves
		does func(c *h2) string
	}
	all := map[string]client{}
	var names []string
	add := func(name string, slow bool, does func(c *h2) string) {
		names = append(names, name)
		all[name] = client{slow, does}
	}
	leaves := func(c *h2) string { c.Close(); return "–, it has left" }
	flood := func(frame func(c *h2, i int)) func(c *h2) string {
		return func(c *h2) string {
			for i := range 1000 {
				frame(c, i)
			}
			c.asks(1)
			return c.hears(1)
		}
	}
	add("sends a good request", false, func(c *h2) string { c.asks(1); return c.hears(1) })
	add("sends its body byte by byte", false, func(c *h2) string {
		c.frame(headersFrame, endHeaders, 1, requestBlock())
		for i := range question {
			c.frame(dataFrame, 0, 1, question[i:i+1])
		}
		c.frame(dataFrame, endStream, 1, "")
		return c.hears(1)
	})
	add("sends 200 requests at once", false, func(c *h2) string {
		for i := range uint32(200) {
			c.asks(2*i + 1)
		}
		return c.hears(399)
	})
	add("resets 200 requests at once", true, func(c *h2) string {
		for i := range uint32(200) {
			c.asks(2*i + 1)
			c.code(resetFrame, 2*i+1, "", cancel)
		}
		return leaves(c)
	})
	add("resets its stream in the middle of the body", true, func(c *h2) string {
		c.frame(headersFrame, endHeaders, 1, requestBlock())
		c.frame(dataFrame, 0, 1, question[:10])
		c.code(resetFrame, 1, "", cancel)
		return leaves(c)
	})
	add("sends GOAWAY after its request", true, func(c *h2) string {
		c.asks(1)
		c.code(goAwayFrame, 0, "\x00\x00\x00\x00", internalError)
		return leaves(c)
	})
	add("sends 1,000 pings", false, flood(func(c *h2, _ int) { c.frame(pingFrame, 0, 0, "12345678") }))
	add("sends 1,000 SETTINGS frames", false, flood(func(c *h2, _ int) { c.frame(settingsFrame, 0, 0, "") }))
	add("sends 1,000 PRIORITY frames", false, flood(func(c *h2, i int) {
		c.frame(priorityFrame, 0, uint32(2*i+3), string(binary.BigEndian.AppendUint32(nil, uint32(2*i+5)))+"\xff")
	}))
	add("sends 1,000 WINDOW_UPDATE frames", false, flood(func(c *h2, _ int) { c.code(8, 0, "", 1) }))
	add("sends frames of unknown types", false, flood(func(c *h2, _ int) { c.frame(0xee, 0xff, 1, "what?") }))
	add("opens no flow-control window", false, func(c *h2) string {
		c.frame(settingsFrame, 0, 0, "\x00\x04\x00\x00\x00\x00") // the initial window of streams
		c.asks(1)
		return leaves(c)
	})
	add("sends a header without end", false, func(c *h2) string {
		c.frame(headersFrame, 0, 1, requestBlock())
		for range 400 {
			c.frame(continuationFrame, 0, 1, block(strings.Repeat("x", 60), strings.Repeat("y", 100))+strings.Repeat(block("a", "b"), 1000))
		}
		return c.hears(1)
	})
	add("sends a header that HPACK can't decode", false, func(c *h2) string {
		c.frame(headersFrame, endHeaders|endStream, 1, "\xff\xff\xff\xff\xff\xff\xff")
		return c.hears(1)
	})
	add("sends a header name in capitals", false, func(c *h2) string {
		c.frame(headersFrame, endHeaders|endStream, 1, requestBlock("X-Header", "x"))
		return c.hears(1)
	})
	add("sends no :path", false, func(c *h2) string {
		c.frame(headersFrame, endHeaders|endStream, 1, block(":method", "POST", ":scheme", "http", ":authority", "gateway"))
		return c.hears(1)
	})
	add("sends less than its content-length", false, func(c *h2) string {
		c.frame(headersFrame, endHeaders, 1, requestBlock("content-length", "1000"))
		c.frame(dataFrame, endStream, 1, question)
		return c.hears(1)
	})
	add("sends more than its content-length", false, func(c *h2) string {
		c.frame(headersFrame, endHeaders, 1, requestBlock("content-length", "2"))
		c.frame(dataFrame, endStream, 1, question)
		return c.hears(1)
	})
	add("sends DATA on a stream that was never opened", false, func(c *h2) string { c.frame(dataFrame, endStream, 7, question); return c.hears(7) })
	add("sends a PING of the wrong length", false, func(c *h2) string { c.frame(pingFrame, 0, 0, "too long to be one"); return c.hears(1) })
	return each(t, names, func(t *testing.T, name string) []string {
		server := sluggish
		if !all[name].slow {
			server = good
		}
		var g *gateway
		t.Cleanup(func() { g.leases(t) }) // once the server has closed, late events included
		g = newGateway(t, transport.Config{}, endpick.Config{}, server(t))
		conn, err := net.Dial("tcp", g.server.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		c := &h2{conn, bufio.NewReader(conn)}
		_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		c.frame(settingsFrame, 0, 0, "")
		saw := all[name].does(c)
		conn.Close()
		leases := g.leases(t)
		if may := map[bool]string{true: "none or canceled", false: "none, canceled or completed"}[all[name].slow]; strings.HasPrefix(saw, "–") || strings.Contains(leases, ",") {
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
	scenarios := map[string]suite.Scenario{}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		s := shapes[name]
		names = append(names, name)
		scenarios[name] = suite.Scenario{Name: name, Request: suite.Request{Path: s.Path, Body: string(s.Bytes(16 << 10))}, Replies: []suite.Reply{{Parts: []string{answer}}}}
	}
	odd := []string{"headers", "body in chunks", "body of 1 MiB", "body with a trailer", "body that is no JSON", "no body", "gzip", "100-continue", "upgrade", "multipart", "a path of no API", "abort", "slow"}
	for _, s := range suite.Scenarios() {
		if slices.ContainsFunc(odd, func(part string) bool { return strings.Contains(s.Name, part) }) {
			names = append(names, s.Name)
			scenarios[s.Name] = s
		}
	}
	return each(t, names, func(t *testing.T, name string) []string {
		var g *gateway
		way := suite.Way{Name: "gateway", Open: func(servers []string) (*suite.Front, error) {
			g = newGateway(t, transport.Config{}, endpick.Config{}, servers[0])
			return &suite.Front{
				Network: "tcp", Address: g.server.Listener.Addr().String(), Router: func() *endpick.Router { return g.router },
				Close: func() error { return nil },
			}, nil
		}}
		began := time.Now()
		played, err := suite.Play(t.Context(), way, scenarios[name])
		require.NoError(t, err)
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
