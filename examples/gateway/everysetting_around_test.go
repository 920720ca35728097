package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// What is around the gateway of TestEverySetting.

// modelServer answers chats, or as it is told, and remembers requests. It has no metrics.
type modelServer struct {
	*httptest.Server
	mu      sync.Mutex
	got     []*http.Request // with a body
	bodies  []string
	answers http.HandlerFunc
	arrived chan struct{}
}

func newModelServer(t *testing.T) *modelServer {
	m := &modelServer{arrived: make(chan struct{}, 100)}
	m.answers = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"Hi."}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)
	}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost && r.Header.Get("Upgrade") == "" {
			http.NotFound(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		m.mu.Lock()
		m.got, m.bodies = append(m.got, r), append(m.bodies, string(body))
		answers := m.answers
		m.mu.Unlock()
		m.arrived <- struct{}{}
		answers(w, r)
	}))
	t.Cleanup(func() {
		m.CloseClientConnections()
		m.Close()
	})
	return m
}

func (m *modelServer) all() []*http.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// then sets how the server answers; for ever keeps requests until their client leaves.
func (m *modelServer) then(answers http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers = answers
}

func forever(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// listener tells calls of its name when it is called.
func (w *world) listener(name string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w, err)
	w.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			w.tell(name)
		}
	}()
	return l.Addr().String()
}

func (w *world) tell(line string) {
	select {
	case w.calls <- line:
	default: // nobody wants so many
	}
}

// nats acts as a NATS server, over TLS if there is a configuration, and tells what clients say.
func (w *world) nats(config *tls.Config) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w, err)
	w.Cleanup(func() { _ = l.Close() })
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(conn, `INFO {"server_id":"x","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576,"nonce":"n","tls_required":%t}`+"\r\n", config != nil)
		if config != nil {
			secure := tls.Server(conn, config)
			if err := secure.Handshake(); err != nil {
				w.tell(err.Error())
				return
			}
			for _, c := range secure.ConnectionState().PeerCertificates {
				w.tell("client " + c.SerialNumber.String())
			}
			conn = secure
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			if w.tell(lines.Text()); lines.Text() == "PING" {
				_, _ = io.WriteString(conn, "PONG\r\n")
			}
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return l.Addr().String()
}

// writeKeys writes one.pem and two.pem, certificates 1 and 2 of key.pem, other.pem, another key
// with its certificate other-cert.pem, and the credentials one.creds and two.creds.
func writeKeys(t *testing.T, write func(name, text string)) {
	private := func(name string) *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		write(name, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
		return key
	}
	certify := func(name string, serial int64, key *ecdsa.PrivateKey) {
		template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		require.NoError(t, err)
		write(name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	}
	key := private("key.pem")
	certify("one.pem", 1, key)
	certify("two.pem", 2, key)
	certify("other-cert.pem", 3, private("other.pem"))
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	for _, name := range []string{"one", "two"} {
		write(name+".creds", "-----BEGIN NATS USER JWT-----\ne30.e30."+name+"\n------END NATS USER JWT------\n\n"+
			"-----BEGIN USER NKEY SEED-----\n"+string(seed)+"\n------END USER NKEY SEED------\n")
	}
}
