package faults

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
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// issue makes a certificate, by parent or by itself.
func issue(t *testing.T, change func(*x509.Certificate), parent *tls.Certificate) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
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
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, signer)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// tlsFaults are those of servers whose authority the gateway trusts.
func tlsFaults(t *testing.T) []row {
	ca := issue(t, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }, nil)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Leaf)
	of := func(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
	well := issue(t, nil, &ca)
	secure := map[string]*tls.Config{
		"answers well":                       of(well),
		"has a certificate of its own":       of(issue(t, nil, nil)),
		"has a certificate that is expired":  of(issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, &ca)),
		"has a certificate of tomorrow":      of(issue(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, &ca)),
		"has a certificate for another name": of(issue(t, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"engine"} }, &ca)),
		"has a certificate for clients":      of(issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, &ca)),
		"wants a certificate of the client":  {Certificates: []tls.Certificate{well}, ClientAuth: tls.RequireAnyClientCert},
		"speaks TLS 1.1 at most":             {Certificates: []tls.Certificate{well}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
		"breaks off after the handshake":     of(well),
		"breaks off within a stream":         of(well),
		"ends a stream without an alert":     of(well),
	}
	plain := map[string]func(net.Conn){
		"speaks no TLS":                    func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") },
		"closes the connection":            func(net.Conn) {},
		"says that it can't":               func(c net.Conn) { _, _ = io.WriteString(c, "\x15\x03\x03\x00\x02\x02\x28") },
		"breaks off within the handshake":  func(c net.Conn) { _, _ = io.WriteString(c, "\x16\x03\x03\x00\x7a\x02\x00") },
		"says garbage under a good header": func(c net.Conn) { _, _ = io.WriteString(c, "\x16\x03\x03\x00\x05garba") },
	}
	names := []string{
		"answers well", "has a certificate of its own", "has a certificate that is expired", "has a certificate of tomorrow", "has a certificate for another name",
		"has a certificate for clients", "wants a certificate of the client", "speaks TLS 1.1 at most", "breaks off after the handshake", "breaks off within a stream",
		"ends a stream without an alert", "speaks no TLS", "closes the connection", "says that it can't", "breaks off within the handshake", "says garbage under a good header",
	}
	return each(t, names, func(t *testing.T, name string) []string {
		address := listen(t, func(c net.Conn) {
			if does := plain[name]; does != nil {
				_, _ = c.Read(make([]byte, 5))
				does(c)
				drain(c)
				return
			}
			s := tls.Server(c, secure[name])
			in, err := http.ReadRequest(bufio.NewReader(s))
			if err != nil || name == "breaks off after the handshake" {
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

// drain ends what is sent, and waits for the other side to go.
func drain(c net.Conn) {
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// halfOpen are connections of which one side knows nothing any more.
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
	servers := map[string]struct {
		serve  func(net.Conn)
		stream bool
		times  int
		speaks bool // if it has time to
	}{
		"takes connections, and reads nothing":      {nil, true, 1, false},
		"reads a request, and says nothing":         {says(""), true, 1, false},
		"reads a whole request, and says nothing":   {says(""), false, 1, false},
		"stops within its header":                   {says(head[:30]), true, 1, false},
		"stops behind its header":                   {says(head), true, 1, false},
		"stops after a token":                       {says(head + chunk(event)), true, 1, true},
		"stops within an event":                     {says(head + chunk(event+event[:30])), true, 1, true},
		"stops within a whole answer":               {says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), false, 1, true},
		"ends all but the last chunk":               {says(head + chunk(streamed)), true, 1, true},
		"closes its side, and reads on":             {func(c net.Conn) { drain(c) }, true, 1, false},
		"answers once, and then nothing any more":   {once(chunk(streamed), head, false), true, 2, true},
		"answers once, and closes without a notice": {once(chunk(streamed), head, true), true, 2, true},
	}
	names := []string{
		"takes connections, and reads nothing", "reads a request, and says nothing", "reads a whole request, and says nothing", "stops within its header",
		"stops behind its header", "stops after a token", "stops within an event", "stops within a whole answer", "ends all but the last chunk",
		"closes its side, and reads on", "answers once, and then nothing any more", "answers once, and closes without a notice",
	}
	return each(t, names, func(t *testing.T, name string) []string {
		s := servers[name]
		if s.serve == nil {
			s.serve = func(c net.Conn) {
				_, _ = c.Read(make([]byte, 1))
				<-t.Context().Done()
			}
		}
		// On a machine that is busy even an answer that comes takes its time.
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
