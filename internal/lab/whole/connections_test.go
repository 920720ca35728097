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
)

// issue makes a certificate, signed by parent or by itself.
func issue(t *testing.T, change func(*x509.Certificate), parent *tls.Certificate) tls.Certificate {
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
	ca := issue(t, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }, nil)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Leaf)
	type engine struct {
		secure *tls.Config
		plain  func(net.Conn) // instead
	}
	of := func(c tls.Certificate) engine { return engine{secure: &tls.Config{Certificates: []tls.Certificate{c}}} }
	well := issue(t, nil, &ca)
	servers := []fault[engine]{
		{"answers well", of(well)},
		{"has a self-signed certificate", of(issue(t, nil, nil))},
		{"has an expired certificate", of(issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, &ca))},
		{"has a certificate that is not valid yet", of(issue(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, &ca))},
		{"has a certificate for another name", of(issue(t, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"engine"} }, &ca))},
		{"has a client certificate", of(issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, &ca))},
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
