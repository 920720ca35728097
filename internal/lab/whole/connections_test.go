package whole

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// issue makes a certificate, signed by parent or by itself.
func issue(change func(*x509.Certificate), parent *tls.Certificate) tls.Certificate {
	key := rig.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "engine"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if change != nil {
		change(template)
	}
	by, signer := template, any(key)
	if parent != nil {
		by, signer = parent.Leaf, parent.PrivateKey
	}
	der := rig.Must(x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, signer))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: rig.Must(x509.ParseCertificate(der))}
}

// tlsFaults are faults of servers whose authority the gateway trusts.
func tlsFaults(t *testing.T) []row {
	ca := issue(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }, nil)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Leaf)
	type engine struct {
		secure *tls.Config
		plain  func(net.Conn) // instead
	}
	of := func(c tls.Certificate) engine { return engine{secure: &tls.Config{Certificates: []tls.Certificate{c}}} }
	well := issue(nil, &ca)
	servers := []fault[engine]{
		{"answers well", of(well)},
		{"has a self-signed certificate", of(issue(nil, nil))},
		{"has an expired certificate", of(issue(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, &ca))},
		{"has a certificate that is not valid yet", of(issue(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, &ca))},
		{"has a certificate for another name", of(issue(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"engine"} }, &ca))},
		{"has a client certificate", of(issue(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, &ca))},
		{"requires a client certificate", engine{secure: &tls.Config{Certificates: []tls.Certificate{well}, ClientAuth: tls.RequireAnyClientCert}}},
		{"speaks TLS 1.1 at most", engine{secure: &tls.Config{Certificates: []tls.Certificate{well}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}}},
		{"closes after the handshake", of(well)},
		{"closes in the middle of a stream", of(well)},
		{"ends a stream without close_notify", of(well)},
		{"does not speak TLS", engine{plain: func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") }}},
		{"closes the connection", engine{plain: func(net.Conn) {}}},
		{"sends a handshake_failure alert", engine{plain: func(c net.Conn) { _, _ = io.WriteString(c, "\x15\x03\x03\x00\x02\x02\x28") }}},
		{"closes in the middle of the handshake", engine{plain: func(c net.Conn) { _, _ = io.WriteString(c, "\x16\x03\x03\x00\x7a\x02\x00") }}},
		{"sends garbage in a well-formed record", engine{plain: func(c net.Conn) { _, _ = io.WriteString(c, "\x16\x03\x03\x00\x05garba") }}},
	}
	return each(t, servers, func(t *testing.T, name string, server engine) []string {
		address := listen(t, func(c net.Conn) {
			if server.plain != nil {
				_, _ = c.Read(make([]byte, 5))
				server.plain(c)
				drain(c)
				return
			}
			s := tls.Server(c, server.secure)
			in, err := http.ReadRequest(bufio.NewReader(s))
			if err != nil || name == "closes after the handshake" {
				drain(c)
				return
			}
			_, _ = io.Copy(io.Discard, in.Body)
			text := streamed
			if strings.Contains(name, "a stream") {
				text = event
			}
			_, _ = fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n%s", text)
			if name == "answers well" {
				_ = s.CloseWrite()
			}
			drain(c)
		})
		base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true}
		t.Cleanup(base.CloseIdleConnections)
		g := newGateway(t, transport.Config{Base: base}, endpick.Config{}, "https://"+address)
		return []string{g.ask(t, true, nil), g.leases(t)}
	})
}

// drain stops sending and waits for the other side to close.
func drain(c net.Conn) {
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// halfOpen are connections that one side no longer knows.
func halfOpen(t *testing.T) []row {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	says := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			if in, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, in.Body)
				_, _ = io.WriteString(c, text)
				_, _ = io.Copy(io.Discard, c)
			}
		}
	}
	type engine struct {
		serve  func(net.Conn)
		stream bool
		times  int
		speaks bool // if it has time to
	}
	servers := []fault[engine]{
		{"accepts connections and reads nothing", engine{nil, true, 1, false}},
		{"reads a streaming request, and answers nothing", engine{says(""), true, 1, false}},
		{"reads a request that does not stream, and answers nothing", engine{says(""), false, 1, false}},
		{"stops in the middle of its header", engine{says(head[:30]), true, 1, false}},
		{"stops after its header", engine{says(head), true, 1, false}},
		{"stops after a token", engine{says(head + chunk(event)), true, 1, true}},
		{"stops in the middle of an event", engine{says(head + chunk(event+event[:30])), true, 1, true}},
		{"stops in the middle of a response that does not stream", engine{says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), false, 1, true}},
		{"sends everything but the last chunk", engine{says(head + chunk(streamed)), true, 1, true}},
		{"closes its side of the connection, and reads on", engine{func(c net.Conn) { drain(c) }, true, 1, false}},
		{"answers once, then never again", engine{once(chunk(streamed), head, false), true, 2, true}},
		{"answers once, then closes the idle connection", engine{once(chunk(streamed), head, true), true, 2, true}},
	}
	return each(t, servers, func(t *testing.T, _ string, s engine) []string {
		if s.serve == nil {
			s.serve = func(c net.Conn) {
				_, _ = c.Read(make([]byte, 1))
				<-t.Context().Done()
			}
		}
		// On a busy machine even a prompt answer takes its time.
		for moment := 200 * time.Millisecond; ; moment *= 4 {
			g := newGateway(t, transport.Config{FirstByteTimeout: moment, StallTimeout: moment, ResponseTimeout: moment}, endpick.Config{}, listen(t, s.serve))
			var saw []string
			for range s.times {
				saw = append(saw, g.ask(t, s.stream, nil))
			}
			if s.speaks && strings.HasPrefix(saw[0], "504") && moment < patience/2 {
				continue
			}
			return []string{strings.Join(saw, "; then "), g.leases(t)}
		}
	})
}

// once answers the first request of a connection, and not the second.
func once(chunks, head string, closes bool) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		for n := range 2 {
			in, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, in.Body)
			if n == 0 {
				_, _ = io.WriteString(c, head+chunks+"0\r\n\r\n")
			}
		}
		if !closes {
			_, _ = io.Copy(io.Discard, r)
		}
	}
}

// byChance are faults with two possible views, with and without a good server: a reset
// discards unread data, or comes before the connection is established; and ReverseProxy
// may or may not send the header of a response without any body.
var byChance = map[string][2]chance{
	"resets the connection before it reads the request": {{[]string{failed502, nobody503}, "failed"}, {[]string{toItsEnd}, "failed, completed"}},
	"resets the connection in the middle of the body":   {{[]string{cutOff, failed502}, "failed"}, {[]string{cutOff, toItsEnd}, "failed or failed, completed"}},
	"resets the connection in the middle of a stream":   {{[]string{cutOff, failed502}, "failed"}, {[]string{cutOff, toItsEnd}, "failed or failed, completed"}},
	"compresses, and closes in the middle":              {{[]string{cutOff, breaks}, "failed"}, {[]string{cutOff, breaks}, "failed"}},
	"declares gzip and sends plain text":                {{[]string{cutOff, breaks}, "failed"}, {[]string{cutOff, breaks}, "failed"}},
	"compresses a stream, and closes in the middle":     {{[]string{cutOff, breaks}, "failed"}, {[]string{cutOff, breaks}, "failed"}},
}

type chance struct {
	saw    []string
	leases string // as in the table
}

const (
	failed502 = "502 “the model server failed before it answered”"
	nobody503 = "503 “no server is available”"
	cutOff    = "200, cut off"
	toItsEnd  = "200, complete"
	breaks    = "a connection that breaks"
)

func serverFaults(t *testing.T) []row {
	var faults []fault[int]
	for _, name := range transporttest.Faults() {
		faults = append(faults, fault[int]{name: name})
	}
	return each(t, faults, func(t *testing.T, name string, _ int) []string {
		var cells []string
		for _, beside := range []bool{false, true} {
			e := transporttest.StartEngine(t, name)
			addresses := []string{e.Address}
			if beside {
				if e.Leaves {
					return append(cells, "–", "–")
				}
				addresses = append(addresses, good(t))
			}
			g := newGateway(t, transport.Config{}, endpick.Config{}, addresses...)
			var leaves <-chan struct{}
			if e.Leaves {
				leaves = e.Asked
			}
			saw := g.ask(t, e.Stream, leaves)
			ended := g.leases(t)
			if some, ok := byChance[name]; ok {
				this := some[len(addresses)-1]
				if !slices.Contains(this.saw, saw) || !strings.Contains(this.leases, ended) {
					assert.Fail(t, "none of what it may be", "%q, %s", saw, ended)
				}
				saw, ended = strings.Join(this.saw, " or "), this.leases
			}
			cells = append(cells, saw, ended)
		}
		return cells
	})
}

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
		c := rig.Must(net.Dial("tcp", g.server.Listener.Addr().String()))
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
