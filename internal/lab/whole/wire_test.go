package whole

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/require"
)

const question = `{"model":"m","messages":[{"role":"user","content":"Tell me a story."}]}`

// asks is a request as HTTP/1.1 text.
func asks(header, body string) string {
	return "POST " + chatPath + " HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n" + header + "\r\n" + body
}

func whole(body string) string { return asks(fmt.Sprintf("Content-Length: %d\r\n", len(body)), body) }

// wireClients are what clients send on a connection of their own. slow:
// the engine sends nothing until its client leaves.
func wireClients() []fault[wireClient] {
	says := func(texts ...string) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			for _, text := range texts {
				_, _ = io.WriteString(c, text)
			}
		}
	}
	chunked := func(chunks string) string { return asks("Transfer-Encoding: chunked\r\n", chunks) }
	chunk := func(extension, s string) string { return fmt.Sprintf("%x%s\r\n%s\r\n", len(s), extension, s) }

	return []fault[wireClient]{
		{"sends a good request", wireClient{false, 1, says(whole(question))}},
		{"sends a byte at a time", wireClient{false, 1, says(strings.Split(whole(question), "")...)}},
		{"pipelines ten requests", wireClient{false, 10, says(strings.Repeat(whole(question), 10))}},
		{"closes in the middle of its header", wireClient{false, 0, func(c *net.TCPConn) { says(whole(question)[:40])(c); c.Close() }}},
		{"closes in the middle of its body", wireClient{false, 1, func(c *net.TCPConn) { says(whole(question)[:len(whole(question))-5])(c); _ = c.CloseWrite() }}},
		{"expects 100-continue, and leaves", wireClient{false, 0, func(c *net.TCPConn) {
			says(asks("Content-Length: 1000\r\nExpect: 100-continue\r\n", ""))(c)
			_, _ = c.Read(make([]byte, len("HTTP/1.1 100 Continue")))
			c.Close()
		}}},
		{"expects something other than 100-continue", wireClient{false, 1, says(asks("Content-Length: 2\r\nExpect: a miracle\r\n", "{}"))}},
		{"closes its side of the connection, and waits", wireClient{true, 1, func(c *net.TCPConn) { says(whole(question))(c); _ = c.CloseWrite() }}},
		{"resets the connection after its request", wireClient{true, 0, func(c *net.TCPConn) {
			says(whole(question))(c)
			_ = c.SetLinger(0)
			c.Close()
		}}},
		{"sends chunk extensions", wireClient{false, 1, says(chunked(chunk(";a=b;c", question) + "0\r\n\r\n"))}},
		{"sends chunk extensions without end", wireClient{false, 1, says(chunked(strings.Repeat(chunk(";"+strings.Repeat("x", 3000), " "), 30) + "0\r\n\r\n"))}},
		{"sends a malformed chunk", wireClient{false, 1, says(chunked("zz\r\n{}\r\n0\r\n\r\n"))}},
		{"sends a chunk of 2⁶³ bytes", wireClient{false, 1, func(c *net.TCPConn) { says(chunked("8000000000000000\r\n{}\r\n"))(c); _ = c.CloseWrite() }}},
		{"sends an undeclared trailer", wireClient{false, 1, says(chunked(chunk("", question) + "0\r\nX-Sum: 7\r\n\r\n"))}},
		{"sends Content-Length and chunks", wireClient{false, 1, says(asks("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunk("", question)+"0\r\n\r\n"))}},
		{"sends two Content-Lengths", wireClient{false, 1, says(asks("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"))}},
		{"sends a negative Content-Length", wireClient{false, 1, says(asks("Content-Length: -2\r\n", "{}"))}},
		{"sends no Host", wireClient{false, 1, says("POST " + chatPath + " HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")}},
		{"sends a header of 2 MB", wireClient{false, 1, says(asks("Content-Length: 2\r\nX-Header: "+strings.Repeat("x", 2<<20)+"\r\n", "{}"))}},
		{"folds a header line", wireClient{false, 1, says(asks("X-Header: one\r\n two\r\nContent-Length: "+fmt.Sprint(len(question))+"\r\n", question))}},
		{"sends HEAD", wireClient{false, 1, says(strings.Replace(whole(question), "POST", "HEAD", 1))}},
		{"speaks TLS", wireClient{false, 1, says("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")}},
		{"speaks HTTP/9.9", wireClient{false, 1, says(strings.Replace(whole(question), "HTTP/1.1", "HTTP/9.9", 1))}},
		{"speaks HTTP/1.0", wireClient{false, 1, says(strings.Replace(whole(question), "HTTP/1.1", "HTTP/1.0", 1))}},
	}
}

type wireClient struct {
	slow    bool
	answers int // the number it waits for
	does    func(*net.TCPConn)
}

// sluggish does not answer a request until its client leaves.
func sluggish(t *testing.T) string {
	return listen(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if in, err := http.ReadRequest(r); err == nil {
			_, _ = io.Copy(io.Discard, in.Body)
			_, _ = io.Copy(io.Discard, r)
		}
	})
}

func wires(t *testing.T) []row {
	return each(t, wireClients(), func(t *testing.T, name string, client wireClient) []string {
		server := sluggish
		if !client.slow {
			server = good
		}
		g := newGateway(t, transport.Config{}, endpick.Config{}, server(t))
		c, err := net.Dial("tcp", g.server.Listener.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		written := make(chan struct{})
		go func() { // a client that has received enough stops reading
			defer close(written)
			client.does(c.(*net.TCPConn))
		}()
		saw := "–, it has left"
		if client.answers == 0 {
			<-written
			_, _ = io.Copy(io.Discard, c)
		}
		method := http.MethodPost
		if strings.Contains(name, "HEAD") {
			method = http.MethodHead
		}
		r := bufio.NewReader(c)
		for i := range client.answers {
			response, err := http.ReadResponse(r, &http.Request{Method: method})
			require.NoError(t, err, "answer %d", i)
			body, err := io.ReadAll(response.Body)
			if saw = view(response.StatusCode, string(body), err); response.StatusCode >= 400 && !strings.Contains(saw, "“") {
				saw = fmt.Sprint(response.StatusCode)
			}
		}
		c.Close()
		<-written
		leases := g.leases(t)
		if client.slow { // its leaving may be noticed before its request is routed
			require.Contains(t, []string{"none", "canceled"}, leases)
			leases = "none or canceled"
		}
		if client.answers > 1 {
			saw = fmt.Sprintf("%d times %s", client.answers, saw)
			require.Equal(t, strings.Repeat("completed, ", client.answers-1)+"completed", leases)
			leases = "completed, each"
		}
		return []string{saw, leases}
	})
}
