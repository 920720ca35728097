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

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

const question = `{"model":"m","messages":[{"role":"user","content":"Tell me a story."}]}`

// asks is a request as HTTP/1.1 text.
func asks(header, body string) string {
	return "POST " + chatPath + " HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n" + header + "\r\n" + body
}

func whole(body string) string { return asks(fmt.Sprintf("Content-Length: %d\r\n", len(body)), body) }

// wireClients are what clients send on a connection of their own, by name. slow:
// the engine sends nothing until its client leaves.
func wireClients() (names []string, all map[string]wireClient) {
	all = map[string]wireClient{}
	add := func(name string, slow bool, answers int, does func(c *net.TCPConn)) {
		names = append(names, name)
		all[name] = wireClient{slow, answers, does}
	}
	says := func(texts ...string) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			for _, text := range texts {
				_, _ = io.WriteString(c, text)
			}
		}
	}
	chunked := func(chunks string) string { return asks("Transfer-Encoding: chunked\r\n", chunks) }
	chunk := func(extension, s string) string { return fmt.Sprintf("%x%s\r\n%s\r\n", len(s), extension, s) }

	add("sends a good request", false, 1, says(whole(question)))
	add("sends a byte at a time", false, 1, says(strings.Split(whole(question), "")...))
	add("pipelines ten requests", false, 10, says(strings.Repeat(whole(question), 10)))
	add("closes in the middle of its header", false, 0, func(c *net.TCPConn) { says(whole(question)[:40])(c); c.Close() })
	add("closes in the middle of its body", false, 1, func(c *net.TCPConn) { says(whole(question)[:len(whole(question))-5])(c); _ = c.CloseWrite() })
	add("expects 100-continue, and leaves", false, 0, func(c *net.TCPConn) {
		says(asks("Content-Length: 1000\r\nExpect: 100-continue\r\n", ""))(c)
		_, _ = c.Read(make([]byte, len("HTTP/1.1 100 Continue")))
		c.Close()
	})
	add("expects something other than 100-continue", false, 1, says(asks("Content-Length: 2\r\nExpect: a miracle\r\n", "{}")))
	add("closes its side of the connection, and waits", true, 1, func(c *net.TCPConn) { says(whole(question))(c); _ = c.CloseWrite() })
	add("resets the connection after its request", true, 0, func(c *net.TCPConn) {
		says(whole(question))(c)
		_ = c.SetLinger(0)
		c.Close()
	})
	add("sends chunk extensions", false, 1, says(chunked(chunk(";a=b;c", question)+"0\r\n\r\n")))
	add("sends chunk extensions without end", false, 1, says(chunked(strings.Repeat(chunk(";"+strings.Repeat("x", 3000), " "), 30)+"0\r\n\r\n")))
	add("sends a malformed chunk", false, 1, says(chunked("zz\r\n{}\r\n0\r\n\r\n")))
	add("sends a chunk of 2⁶³ bytes", false, 1, func(c *net.TCPConn) { says(chunked("8000000000000000\r\n{}\r\n"))(c); _ = c.CloseWrite() })
	add("sends an undeclared trailer", false, 1, says(chunked(chunk("", question)+"0\r\nX-Sum: 7\r\n\r\n")))
	add("sends Content-Length and chunks", false, 1, says(asks("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunk("", question)+"0\r\n\r\n")))
	add("sends two Content-Lengths", false, 1, says(asks("Content-Length: 2\r\nContent-Length: 3\r\n", "{}")))
	add("sends a negative Content-Length", false, 1, says(asks("Content-Length: -2\r\n", "{}")))
	add("sends no Host", false, 1, says("POST "+chatPath+" HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"))
	add("sends a header of 2 MB", false, 1, says(asks("Content-Length: 2\r\nX-Header: "+strings.Repeat("x", 2<<20)+"\r\n", "{}")))
	add("folds a header line", false, 1, says(asks("X-Header: one\r\n two\r\nContent-Length: "+fmt.Sprint(len(question))+"\r\n", question)))
	add("sends HEAD", false, 1, says(strings.Replace(whole(question), "POST", "HEAD", 1)))
	add("speaks TLS", false, 1, says("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"))
	add("speaks HTTP/9.9", false, 1, says(strings.Replace(whole(question), "HTTP/1.1", "HTTP/9.9", 1)))
	add("speaks HTTP/1.0", false, 1, says(strings.Replace(whole(question), "HTTP/1.1", "HTTP/1.0", 1)))
	return names, all
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
	names, clients := wireClients()
	return each(t, names, func(t *testing.T, name string) []string {
		client := clients[name]
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
