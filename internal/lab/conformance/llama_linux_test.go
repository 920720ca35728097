package conformance

import (
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
)

// llama is one llama.cpp server, warmed up so that the same requests, in the same batches, get the same answers.
func llama(t *testing.T) (f fleet, why string) {
	if err := rig.LlamaAvailable(); err != nil {
		return f, err.Error()
	}
	s := rig.Must(rig.StartLlama())
	t.Cleanup(s.Kill)
	direct := func(t *testing.T) *target { return forward(t, strings.TrimPrefix(s.URL(), "http://")) }
	gateway := func(t *testing.T) *target { return gatewayBefore(t, []string{s.URL()}, nil) }
	return fleet{name: "llama.cpp", targets: []func(*testing.T) *target{direct, direct, gateway}, one: true}, ""
}

// forward passes bytes on, so that what a server sends is recorded.
func forward(t *testing.T, address string) *target {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = l.Close() })
	p := &target{url: "http://" + l.Addr().String(), wire: &recorder{Listener: l}}
	go func() {
		for {
			client, err := p.wire.Accept()
			if err != nil {
				return
			}
			go func() {
				server, err := net.Dial("tcp", address)
				if err != nil {
					_ = client.Close()
					return
				}
				go func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				}()
				_, _ = io.Copy(client, server)
				_ = client.Close()
			}()
		}
	}()
	p.server = httptest.NewUnstartedServer(nil) // only there to be closed
	return p
}
