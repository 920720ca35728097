package whole

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nameServer answers each question with what lie makes of it; nil closes the
// connection.
func nameServer(lie func(query []byte) []byte) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			for {
				var n [2]byte
				if _, err := io.ReadFull(server, n[:]); err != nil {
					return
				}
				query := make([]byte, binary.BigEndian.Uint16(n[:]))
				if _, err := io.ReadFull(server, query); err != nil {
					return
				}
				said := lie(query)
				if said == nil {
					return
				}
				_, _ = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(said))), said...))
			}
		}()
		return client, nil
	}}
}

// says answers with a code and with IPv4 addresses.
func says(code byte, addresses ...string) func([]byte) []byte {
	return func(query []byte) []byte {
		end := 12
		for query[end] != 0 {
			end += 1 + int(query[end])
		}
		end += 5
		var records []byte
		n := 0
		if binary.BigEndian.Uint16(query[end-4:]) == 1 {
			for _, a := range addresses {
				ip := netip.MustParseAddr(a).As4()
				records = append(append(records, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4), ip[:]...)
				n++
			}
		}
		header := []byte{query[0], query[1], 0x81, 0x80 | code, 0, 1, byte(n >> 8), byte(n), 0, 0, 0, 0}
		return append(append(header, query[12:end]...), records...)
	}
}

// listed is a source that returns what it is told to.
type listed struct {
	list []endpick.Endpoint
	err  error
}

func (l *listed) Endpoints(context.Context) ([]endpick.Endpoint, error) { return l.list, l.err }

func lyingNames(t *testing.T) []row {
	here := good(t)
	at := netip.MustParseAddrPort(here)
	dns := func(lie func([]byte) []byte) discover.Source {
		return &discover.DNS{Name: "models.test.", Port: int(at.Port()), Resolver: nameServer(lie), Endpoint: endpick.Endpoint{Models: []string{"m"}}}
	}
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf("127.1.%d.%d", i/250, i%250+1)
	}
	good := endpick.Endpoint{ID: "good", Address: here, Models: []string{"m"}}
	lies := []fault[discover.Source]{
		{"is correct", dns(says(0, "127.0.0.1"))},
		{"says that the name does not exist", dns(says(3))},
		{"answers SERVFAIL", dns(says(2))},
		{"is empty", dns(says(0))},
		{"refuses", dns(says(5))},
		{"answers with garbage", dns(func([]byte) []byte { return []byte("garbage") })},
		{"answers another question", dns(func(query []byte) []byte {
			said := says(0, "127.0.0.9")(query)
			said[13] ^= 1
			return said
		})},
		{"hangs up", dns(func([]byte) []byte { return nil })},
		{"never answers", &discover.DNS{Name: "models.test.", Port: 80, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }}}},
		{"names a dead address beside the right one", dns(says(0, "127.0.0.1", "127.0.0.2"))},
		{"names only a dead address", dns(says(0, "127.0.0.2"))},
		{"names 2,000 dead addresses", dns(says(0, many...))},
		{"names one address twice", &listed{list: []endpick.Endpoint{good, good}}},
		{"names something that is not an address", &listed{list: []endpick.Endpoint{{ID: "bad", Address: "http://[::1", Models: []string{"m"}}, good}}},
		{"panics", panics{}},
	}
	return each(t, lies, func(t *testing.T, name string, source discover.Source) []string {
		g := newGateway(t, transport.Config{}, endpick.Config{})
		require.NoError(t, g.router.SetEndpoints([]endpick.Endpoint{{ID: here, Address: here, Models: []string{"m"}}})) // the state before
		told, limit := "nothing", patience
		if name == "never answers" {
			limit = 100 * time.Millisecond
		}
		w := rig.Must(discover.New(discover.Config{Router: g.router, Source: source, Timeout: limit, OnError: func(err error) {
			if told = "an error"; errors.Is(err, discover.ErrEmpty) {
				told = "that it is empty"
			}
		}}))
		_ = w.Poll(t.Context())
		return []string{told, fmt.Sprint(len(g.router.Endpoints())), g.ask(t, true, nil)}
	})
}

type panics struct{}

func (panics) Endpoints(context.Context) ([]endpick.Endpoint, error) { panic("a bad source") }

// jumpingClocks: the router's clock jumps during a stream, or between two requests.
func jumpingClocks(t *testing.T) []row {
	const age = time.Hour // after which a lease without events is lost
	type jump struct {
		by     time.Duration
		within bool // in a stream rather than between requests
	}
	jumps := []fault[jump]{
		{"stands still", jump{0, true}},
		{"jumps a minute ahead during a stream", jump{time.Minute, true}},
		{"jumps a minute back during a stream", jump{-time.Minute, true}},
		{"jumps a day ahead during a stream", jump{24 * time.Hour, true}},
		{"jumps a day back during a stream", jump{-24 * time.Hour, true}},
		{"jumps a century ahead during a stream", jump{100 * 365 * 24 * time.Hour, true}},
		{"jumps a day ahead between two requests", jump{24 * time.Hour, false}},
		{"jumps a day back between two requests", jump{-24 * time.Hour, false}},
		{"jumps a century back between two requests", jump{-100 * 365 * 24 * time.Hour, false}},
	}
	return each(t, jumps, func(t *testing.T, _ string, jump jump) []string {
		var now atomic.Int64
		began := time.Now()
		clock := func() time.Time { return began.Add(time.Duration(now.Load())) }
		var g *gateway
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
			_, _ = io.Copy(io.Discard, in.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
			if jump.within {
				now.Add(int64(jump.by))
				// Another request is routed, and the router looks for lost leases.
				if l, err := g.router.Route(endpick.Request{Model: "m", InputTokens: 5}); err == nil {
					l.Done(endpick.Outcome{})
				}
			}
			_, _ = io.WriteString(w, streamed)
		}))
		defer s.Close()
		g = newGateway(t, transport.Config{}, endpick.Config{Clock: clock, LeaseTimeout: age}, s.Listener.Addr().String())
		saw := []string{g.ask(t, true, nil)}
		if !jump.within {
			now.Add(int64(jump.by))
			saw = append(saw, g.ask(t, true, nil))
		}
		return []string{strings.Join(saw, "; then "), g.leases(t)}
	})
}

// full is a disk with room for this many bytes.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	if f.room -= n; n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func fullDisks(t *testing.T) []row {
	record := func(room int) func(*testing.T) []string {
		return func(t *testing.T) []string {
			disk := &full{room}
			write, end := recording.NewWriter(disk)
			g := newGateway(t, transport.Config{Record: write}, endpick.Config{}, good(t))
			var saw string
			for range 3 {
				saw = g.ask(t, true, nil)
			}
			g.leases(t)
			err := end()
			require.ErrorIs(t, err, syscall.ENOSPC)
			return []string{saw, "at its end: “" + err.Error() + "”"}
		}
	}
	disks := []fault[func(*testing.T) []string]{
		{"a recording, and nothing fits", record(0)},
		{"a recording, and half of a request fits", record(100)},
		{"a list of servers, and half of it fits", func(t *testing.T) []string {
			file := filepath.Join(t.TempDir(), "servers.json")
			require.NoError(t, os.WriteFile(file, []byte(`[{"address":"127.0.0.1:1","mod`), 0o600))
			g := newGateway(t, transport.Config{}, endpick.Config{}, good(t))
			var told error
			w := rig.Must(discover.New(discover.Config{Router: g.router, Source: discover.File(file), OnError: func(err error) { told = err }}))
			_ = w.Poll(t.Context())
			require.Error(t, told)
			assert.Len(t, g.router.Endpoints(), 1)
			return []string{g.ask(t, true, nil), "`OnError`; the list before stays"}
		}},
	}
	return each(t, disks, func(t *testing.T, _ string, observe func(*testing.T) []string) []string { return observe(t) })
}
