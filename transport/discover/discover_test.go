package discover_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// following is a watcher that polls every second in a synctest bubble.
type following struct {
	router   *endpick.Router
	reported rig.List[string] // errors
	count    atomic.Int64     // number of changes
}

func follow(t *testing.T, config discover.Config, test func(*following)) {
	synctest.Test(t, func(t *testing.T) {
		f := &following{}
		f.router = rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "own", Address: "own"}}}))
		config.Router, config.Interval = f.router, time.Second
		config.OnError = func(err error) {
			f.reported.Add(errors.Unwrap(err).Error())
			panic("a logger")
		}
		config.OnChange = func(discover.Change) {
			f.count.Add(1)
			panic("a logger")
		}
		w := rig.Must(discover.New(config))
		defer rig.Running(t.Context(), w.Run)()
		time.Sleep(500 * time.Millisecond)
		test(f)
	})
}

func (f *following) ids() (ids []string) {
	for _, e := range f.router.Endpoints() {
		if !e.Removed {
			ids = append(ids, e.Candidate.Endpoint.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// Whatever becomes of the file, the last good list stays, and each error is reported
// once, with its line.
func TestAFileThatTurnsToGarbage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("a:1\n\n# spare\n http://b:1 \n")
	follow(t, discover.Config{Source: discover.File(path)}, func(f *following) {
		good := []string{"a:1", "http://b:1"}
		assert.Equal(t, good, f.ids(), "the first is taken at once")
		for _, tc := range []struct{ text, reported string }{
			{"# nobody\n", path + ": discover: no endpoints"},
			{"a:1\nftp://c\n", path + ":2: the address is neither a host nor a URL of http, https or h2c"},
			{"a:1\n\na:1", path + `:3: endpick: endpoint "a:1" is listed twice`},
			{"[]", path + ": discover: no endpoints"},
			{"[\n {\"address\": \"a:1\"},\n {\"adress\": \"b:1\"}\n]", path + `:3: json: unknown field "adress"`},
			{"[\n {\"address\": \"a:1\"},\n null\n]", path + ":3: an endpoint without an address"},
		} {
			write(tc.text)
			time.Sleep(10 * time.Second)
			assert.Equal(t, good, f.ids(), tc.text)
			if reported := f.reported.Take(); assert.Len(t, reported, 1, tc.text) {
				assert.True(t, strings.HasPrefix(reported[0], tc.reported), reported[0])
			}
			write("a:1\nhttp://b:1")
			time.Sleep(3 * time.Second)
			assert.Empty(t, f.reported.Take())
		}
		require.NoError(t, os.Remove(path))
		time.Sleep(10 * time.Second)
		assert.Equal(t, []string{path + ": no such file or directory"}, f.reported.Take())
		assert.Equal(t, good, f.ids())
		write("b:2")
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{"b:2"}, f.ids())
	})
}

// source is a source of the test's.
type source func(ctx context.Context) ([]endpick.Endpoint, error)

func (s source) Endpoints(ctx context.Context) ([]endpick.Endpoint, error) { return s(ctx) }

// list is a source of endpoints at these addresses.
func list(addresses ...string) source {
	return func(context.Context) (all []endpick.Endpoint, _ error) {
		for _, a := range addresses {
			all = append(all, endpick.Endpoint{Address: a})
		}
		return all, nil
	}
}

// A source that fails, panics, takes too long, lists no endpoints or invalid ones
// changes nothing; once it recovers it is followed again.
func TestSourcesThatFail(t *testing.T) {
	var current atomic.Pointer[source]
	set := func(s source) { current.Store(&s) }
	broken := errors.New("broken")
	half := []endpick.Endpoint{{Address: "half of it"}}
	gone := func(context.Context) ([]endpick.Endpoint, error) {
		return half, fmt.Errorf("%w: gone", discover.ErrEmpty)
	}
	set(func(context.Context) ([]endpick.Endpoint, error) { return half, broken })
	config := discover.Config{Timeout: 2 * time.Second, Source: source(func(ctx context.Context) ([]endpick.Endpoint, error) { return (*current.Load())(ctx) })}
	follow(t, config, func(f *following) {
		assert.Equal(t, []string{"own"}, f.ids(), "until the first good list")
		assert.Equal(t, []string{"broken"}, f.reported.Take())
		set(list("a:1", "b:1"))
		time.Sleep(2 * time.Second)
		for reported, bad := range map[string]source{
			"broken": func(context.Context) ([]endpick.Endpoint, error) { return half, broken },
			"the source, or Config.Fill, panicked: oops": func(context.Context) ([]endpick.Endpoint, error) { panic("oops") },
			"context deadline exceeded":                  func(ctx context.Context) ([]endpick.Endpoint, error) { <-ctx.Done(); return nil, ctx.Err() },
			"discover: no endpoints":                     list(),
			"discover: no endpoints: gone":               gone,
			`endpick: endpoint "a:1" is listed twice`:    list("a:1", "b:1", "a:1"),
			`endpoint 2 of the list, "": transport: the endpoint's address is neither host:port nor an http, https or h2c URL`: list("a:1", "gopher://x"),
		} {
			set(bad)
			time.Sleep(10 * time.Second)
			assert.Equal(t, []string{reported}, f.reported.Take())
			assert.Equal(t, []string{"a:1", "b:1"}, f.ids())
			set(list("b:1", "a:1")) // order does not matter
			time.Sleep(4 * time.Second)
		}
		assert.EqualValues(t, 1, f.count.Load())
		set(list("b:1"))
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"b:1"}, f.ids())
	})
	config.AllowEmpty = true
	for _, empty := range []source{list(), gone} { // even as the first
		set(empty)
		follow(t, config, func(f *following) {
			for n := range int64(3) {
				set(empty)
				time.Sleep(2 * time.Second)
				assert.Empty(t, f.ids())
				assert.Equal(t, 1+2*n, f.count.Load())
				set(list("a:1"))
				time.Sleep(2 * time.Second)
				assert.Equal(t, []string{"a:1"}, f.ids())
			}
			assert.Empty(t, f.reported.Take())
		})
	}
}

func TestConfig(t *testing.T) {
	router, current := rig.Must(endpick.New(endpick.Config{})), list()
	lists := source(func(ctx context.Context) ([]endpick.Endpoint, error) { return current(ctx) })
	for field, c := range map[string]discover.Config{
		"Router": {Source: lists}, "Source": {Router: router},
		"Interval": {Router: router, Source: lists, Interval: -1}, "Timeout": {Router: router, Source: lists, Timeout: -1},
	} {
		assert.Equal(t, "discover.Config."+field, rig.Field(discover.New(c)))
	}
	for want, s := range map[string]discover.Source{
		"discover.DNS.Name is empty":                           &discover.DNS{Port: 80},
		"discover.DNS.Port is 0, not within 1 and 65535":       &discover.DNS{Name: "models.test"},
		`discover.DNS.Network is "tcp", not ip4 or ip6`:        &discover.DNS{Name: "models.test", Port: 80, Network: "tcp"},
		`discover.DNS.Scheme is "ftp", not http, https or h2c`: &discover.DNS{Name: "models.test", Port: 80, Scheme: "ftp"},
		"discover.DNS.Port is 70000, not within 1 and 65535":   &discover.DNS{Name: "models.test", Port: 70000},
		"discover.Config.Source is nil":                        (*discover.DNS)(nil),
		"discover.File has no path":                            discover.File(""),
	} {
		assert.EqualError(t, rig.Err(discover.New(discover.Config{Router: router, Source: s})), "endpick: config: "+want)
	}
	_, err := discover.New(discover.Config{Router: router, Source: &discover.DNS{SRV: true, Name: "models.test"}})
	require.NoError(t, err, "the records have the port")
	w := rig.Must(discover.New(discover.Config{Router: router, Source: lists}))
	current = list("::bad::")
	assert.ErrorIs(t, w.Poll(t.Context()), transport.ErrAddress)
}

// Servers from a file, with facts that the program adds.
func ExampleFile() {
	path := filepath.Join(os.TempDir(), "endpick-example-servers")
	defer os.Remove(path)
	_ = os.WriteFile(path, []byte("10.0.0.1:8000\n10.0.0.2:8000\n"), 0o600)
	router, err := endpick.New(endpick.Config{})
	if err != nil {
		panic(err)
	}
	watcher, err := discover.New(discover.Config{
		Router: router, Source: discover.File(path),
		Fill:     func(e *endpick.Endpoint) { e.Models = []string{"llama"} },
		OnChange: func(c discover.Change) { fmt.Println(c.Endpoints, "endpoints, new:", c.Added) },
	})
	if err != nil {
		panic(err)
	}
	if err := watcher.Poll(context.Background()); err != nil { // a gateway calls go watcher.Run(ctx)
		panic(err)
	}
	// Output: 2 endpoints, new: [10.0.0.1:8000 10.0.0.2:8000]
}

// everybody is every server there is: each answers.
type everybody struct{}

func (everybody) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)),
	}, nil
}

// A file replaces a tenth of a list of a thousand servers, ten times, under load. No
// request is lost; an endpoint that stays keeps its identity, requests in flight and
// prefixes; requests in flight at a removed endpoint finish there.
func TestThousandEndpointsReplacedUnderLoad(t *testing.T) {
	size, replaced, times := 1000, 100, 10
	if rig.Race {
		size, replaced = 200, 20
	}
	id := func(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255) }
	path := filepath.Join(t.TempDir(), "servers")
	router := rig.Must(endpick.New(all.LMetric()))
	changes := make(chan discover.Change, times+1)
	w := rig.Must(discover.New(discover.Config{
		Router: router, Source: discover.File(path), Interval: time.Millisecond,
		OnChange: func(c discover.Change) { changes <- c }, OnError: func(err error) { t.Error(err) },
	}))
	next := func(first int) discover.Change { // lists the servers from that number on
		var text strings.Builder
		for i := range size {
			fmt.Fprintln(&text, id(first+i))
		}
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
		for range 2 { // a file counts once two polls see the same
			require.NoError(t, w.Poll(t.Context()))
			if len(changes) > 0 {
				break
			}
		}
		require.Len(t, changes, 1)
		return <-changes
	}
	require.Len(t, next(0).Added, size)
	tr := rig.Must(transport.New(transport.Config{Router: router, Base: everybody{}}))

	others := func(id string) (all []string) {
		for _, e := range router.Endpoints() {
			if other := e.Candidate.Endpoint.ID; other != id {
				all = append(all, other)
			}
		}
		return all
	}
	// One endpoint that stays throughout and one that goes at once: each has a
	// long prompt in flight.
	stays, goes := id(size-1), id(0)
	blocks := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	warm := rig.Must(router.Route(endpick.Request{InputTokens: 130, Blocks: blocks, Stream: true, Exclude: others(stays)}))
	warm.FirstToken()
	ref, _ := router.Ref(stays)
	gone := rig.Must(router.Route(endpick.Request{InputTokens: 77, Exclude: others(goes)}))

	var load sync.WaitGroup
	var over atomic.Bool
	var served, lost atomic.Int64
	for n := range 3 {
		load.Go(func() {
			for i := 0; !over.Load(); i++ {
				body := fmt.Sprintf(`{"model":"m","prompt":"%s"}`, strings.Repeat(fmt.Sprint(n, i%50), 20))
				req, _ := http.NewRequest("POST", "http://gateway/v1/completions", strings.NewReader(body))
				resp, err := tr.RoundTrip(req)
				if err != nil || resp.StatusCode != 200 {
					lost.Add(1)
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				served.Add(1)
			}
		})
	}
	for i := 1; i < times; i++ { // the last server of the first list is in all lists
		before := served.Load()
		c := next(i * replaced)
		assert.Equal(t, size, c.Endpoints)
		assert.Len(t, c.Added, replaced)
		assert.Len(t, c.Removed, replaced)
		require.Eventually(t, func() bool { return served.Load() > before }, 30*time.Second, time.Millisecond)
	}
	again, ok := router.Ref(stays)
	assert.True(t, ok)
	assert.Equal(t, ref, again, "the same endpoint, with its state")
	for _, e := range router.Endpoints() {
		if e.Candidate.Endpoint.ID == stays {
			assert.GreaterOrEqual(t, e.Candidate.InFlight.ContextTokens, 130, "what is in flight is counted")
		}
		if e.Candidate.Endpoint.ID == goes {
			assert.True(t, e.Removed)
			assert.Equal(t, 77, e.Candidate.InFlight.ContextTokens)
		}
	}
	var r endpick.Receipt
	lease := rig.Must(router.Route(endpick.Request{InputTokens: 130, Blocks: blocks, Receipt: &r, Exclude: others(stays)}))
	lease.Done(endpick.Outcome{})
	assert.Equal(t, 128, r.Verdicts[0].Candidate.PrefixTokens, "and what it holds is known")

	assert.True(t, warm.Done(endpick.Outcome{}))
	assert.True(t, gone.Done(endpick.Outcome{}))
	next(times * replaced)
	over.Store(true)
	load.Wait()
	assert.Zero(t, lost.Load())
	_, ok = router.Ref(stays)
	assert.False(t, ok)
	s := router.Stats()
	assert.Equal(t, []int{size, 0, 0}, []int{s.Endpoints, s.OpenLeases, s.RemovedOpen})
}

// zone is a name server for one name, speaking DNS over TCP on a pipe.
type zone struct {
	mu        sync.Mutex
	addresses []netip.Addr
	services  []net.SRV
	code      byte   // of the answer: 2 is SERVFAIL, 3 is NXDOMAIN
	fails     uint16 // the kind of question that is answered with SERVFAIL; 0: none
}

// zoneOf is a zone whose name has these addresses.
func zoneOf(addresses ...string) *zone {
	z := &zone{}
	for _, a := range addresses {
		z.addresses = append(z.addresses, netip.MustParseAddr(a))
	}
	return z
}

// set changes what it answers to a code, and services.
func (z *zone) set(code byte, services ...net.SRV) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.code, z.addresses, z.services = code, nil, services
}

// resolver returns a resolver that asks the zone.
func (z *zone) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go z.serve(server)
		return client, nil
	}}
}

func (z *zone) serve(c net.Conn) {
	defer c.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		answer := z.answer(query)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer builds a message of the header, the question as received, and the records.
func (z *zone) answer(query []byte) []byte {
	z.mu.Lock()
	defer z.mu.Unlock()
	end := 12
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5
	const a, aaaa, srv = 1, 28, 33
	kind := binary.BigEndian.Uint16(query[end-4:])
	if kind == z.fails {
		return append([]byte{query[0], query[1], 0x81, 0x82, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
	}
	var records []byte
	n := 0
	add := func(data []byte) {
		n++
		records = append(records, 0xc0, 12) // the name in the question
		records = binary.BigEndian.AppendUint16(records, kind)
		records = append(records, 0, 1, 0, 0, 0, 60)
		records = binary.BigEndian.AppendUint16(records, uint16(len(data)))
		records = append(records, data...)
	}
	if z.code == 0 {
		for _, ip := range z.addresses {
			if ip.Is4() && kind == a || ip.Is6() && kind == aaaa {
				add(ip.AsSlice())
			}
		}
		for _, s := range z.services {
			if kind != srv {
				break
			}
			var data []byte
			for _, v := range []uint16{s.Priority, s.Weight, s.Port} {
				data = binary.BigEndian.AppendUint16(data, v)
			}
			for label := range strings.SplitSeq(strings.TrimSuffix(s.Target, "."), ".") {
				if label != "" {
					data = append(append(data, byte(len(label))), label...)
				}
			}
			add(append(data, 0))
		}
	}
	header := []byte{query[0], query[1], 0x81, 0x80 | z.code, 0, 1, byte(n >> 8), byte(n), 0, 0, 0, 0}
	return append(append(header, query[12:end]...), records...)
}

func addresses(list []endpick.Endpoint) (all []string) {
	for _, e := range list {
		all = append(all, e.ID+" "+e.Address)
	}
	return all
}

func TestDNS(t *testing.T) {
	z := zoneOf("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1", "::ffff:10.0.0.1")
	d := &discover.DNS{
		Name: "models.test.", Port: 8000, Scheme: "https", Resolver: z.resolver(),
		Endpoint: endpick.Endpoint{ID: "x", Address: "?", Models: []string{"m"}, Labels: map[string]string{"z": "a"}, Variant: "h100"},
	}
	for range 2 {
		list := rig.Must(d.Endpoints(t.Context()))
		assert.Equal(t, []string{"10.0.0.1:8000 https://10.0.0.1:8000", "10.0.0.2:8000 https://10.0.0.2:8000", "[fd00::1]:8000 https://[fd00::1]:8000"}, addresses(list))
		for _, e := range list { // which share no models and labels
			assert.Equal(t, "h100[m] map[z:a]", fmt.Sprint(e.Variant, e.Models, e.Labels))
			e.Models[0], e.Labels["z"] = "?", "?"
		}
	}
	d.Network, d.Scheme = "ip4", ""
	list := rig.Must(d.Endpoints(t.Context()))
	assert.Equal(t, []string{"10.0.0.1:8000 10.0.0.1:8000", "10.0.0.2:8000 10.0.0.2:8000"}, addresses(list))

	d.Network = ""
	for _, z.fails = range []uint16{1, 28} { // A and AAAA
		list, err := d.Endpoints(t.Context())
		assert.Error(t, err, "half an answer: %v", list)
		z.addresses = z.addresses[:2]
		assert.NotErrorIs(t, rig.Err(d.Endpoints(t.Context())), discover.ErrEmpty, "the other half is empty")
	}
	z.fails = 0

	z.set(3)
	_, err := d.Endpoints(t.Context())
	assert.ErrorIs(t, err, discover.ErrEmpty, "no such name")
	assert.ErrorAs(t, err, new(*net.DNSError))
	z.set(0)
	assert.ErrorIs(t, rig.Err(d.Endpoints(t.Context())), discover.ErrEmpty, "no addresses")
	z.set(2)
	_, err = d.Endpoints(t.Context())
	assert.Error(t, err)
	assert.NotErrorIs(t, err, discover.ErrEmpty, "who knows")

	var port atomic.Int64
	d.Resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "read", Net: "udp", Source: &net.UDPAddr{Port: int(port.Add(1))}, Addr: &net.UDPAddr{Port: 53}, Err: os.ErrDeadlineExceeded}
	}}
	_, err = d.Endpoints(t.Context())
	assert.ErrorContains(t, err, ": read udp :53: i/o timeout")
	assert.EqualError(t, rig.Err(d.Endpoints(t.Context())), err.Error(), "from another port, but the same error")
}

// An address is the same however it is written: resolvers also return IPv4 addresses
// as IPv6, and one server must not count twice.
func TestDNSAddressesAreOfOneKind(t *testing.T) {
	for name, want := range map[string]string{
		"10.0.0.7": "10.0.0.7:80", "::ffff:10.0.0.7": "10.0.0.7:80", "fd00::7": "[fd00::7]:80", "fd00::ffff:a00:1": "[fd00::ffff:a00:1]:80",
	} {
		list := rig.Must((&discover.DNS{Name: name, Port: 80, Scheme: "http"}).Endpoints(t.Context()))
		assert.Equal(t, []string{want + " http://" + want}, addresses(list), name)
	}
}

func TestSRV(t *testing.T) {
	z := &zone{}
	z.set(0,
		net.SRV{Target: "b.test.", Port: 8001, Priority: 1, Weight: 5}, net.SRV{Target: "a.test.", Port: 8000, Priority: 1},
		net.SRV{Target: "spare.test.", Port: 8000, Priority: 2}, net.SRV{Target: "a.test.", Port: 8001, Priority: 1},
		net.SRV{Target: "B.Test.", Port: 8001, Priority: 1}) // names are the same in any case
	s := &discover.DNS{SRV: true, Name: "_http._tcp.models.test.", Scheme: "h2c", Resolver: z.resolver(), Endpoint: endpick.Endpoint{Variant: "h100"}}
	list := rig.Must(s.Endpoints(t.Context()))
	assert.Equal(t, []string{"a.test:8000 h2c://a.test:8000", "a.test:8001 h2c://a.test:8001", "b.test:8001 h2c://b.test:8001"}, addresses(list))
	assert.Equal(t, "h100", list[2].Variant)
	z.set(0, net.SRV{Target: "."})
	assert.Empty(t, rig.Must(s.Endpoints(t.Context())), "there is no such service")
	z.set(3)
	assert.ErrorIs(t, rig.Err(s.Endpoints(t.Context())), discover.ErrEmpty)
}

// Each way in which a list may be cut off, malformed or refused is reported with its line and
// cause.
func TestMistakesHaveALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	many := "[\n" + strings.Repeat("{\"address\": \"a\"},\n", 100)
	for text, want := range map[string]string{
		"[":                                   ":1: unexpected end of JSON input",
		"[\n\n":                               ":3: unexpected end of JSON input",
		"[\n{\"address\": \"a\"":              ":2: unexpected end of JSON input",
		"[\n{\"address\": \"a\"}":             ":2: unexpected end of JSON input",
		"[\n{\"address\": \"a\"},":            ":2: unexpected end of JSON input",
		"[}":                                  ":1: invalid character '}' looking for beginning of value",
		"[\n{\"address\": \"a\"}}":            ":2: invalid character '}' after array element",
		"[\n{\"address\": \"a\" x\n}]":        ":2: invalid character 'x' after object key:value pair",
		"[\n{\"address\": \"a\"}\n]\n[]":      ":4: invalid character '[' after top-level value",
		"[\n{\"address\": \"a\"}\n]\n\n7":     ":5: invalid character '7' after top-level value",
		"[\n{\"address\": \"a\", \"id\": 7}]": ":2: unexpected number for id",
		"[7]":                                 ":1: unexpected number for an endpoint",
		"[{\"kv_tokens\": 1.5}]":              ":1: unexpected number 1.5 for kv_tokens",
		// However many lines precede it.
		"[\n{\"address\":\n\"a\"\n\n!}]":    ":5: invalid character '!' after object key:value pair",
		many + "{\"address\": x}]":          ":102: invalid character 'x' looking for beginning of value",
		many + "{\"address\" 1}]":           ":102: invalid character '1' after object key",
		many + "{\"address\": \"a\",\n\n}]": ":104: invalid character '}' looking for beginning of object key string",
		// What the router would refuse.
		"[\n{\"address\": \"b\"},\n{\"address\": \"a\", \"kv_tokens\": -1}]":                                              `:3: endpick: endpoint "a" KVTokens is negative`,
		"[\n{\"address\": \"b\"},\n{\"address\": \"a\", \"max_sequences\": -1}]":                                          `:3: endpick: endpoint "a" MaxSequences is negative`,
		"[\n{\"address\": \"b\"},\n{\"id\": \"x\",\n\"address\": \"a\", \"rank\": -1}]":                                   `:3: endpick: endpoint "x" Rank is negative`,
		"[\n{\"address\": \"b\"},\n\n\n{\"address\": \"a\", \"models\": [\"m\", \"\"]}\n]":                                `:5: endpick: endpoint "a" has an empty name at Models[1]`,
		"[{\"id\": \"x\\u0000\", \"address\": \"b\"}]":                                                                    `:1: endpick: endpoint "x\x00" has an ID that is not printable UTF-8`,
		"[\n{\"address\": \"c\"},\n{\"address\": \"a\"},\n{\"address\": \"b\"},\n{\"id\": \"a\",\n\"address\": \"d\"}\n]": `:5: endpick: endpoint "a" is listed twice`,
		"a\nhttp://b\n\nhttp://user:secret@b\n":                                                                           `:4: endpick: endpoint "http://b" is listed twice`,
		"a\nb\u0085b\n":                                                                                                   ":2: endpick: endpoint \"b\\u0085b\" has an address with spaces or control characters, or not in UTF-8",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := discover.File(path).Endpoints(t.Context())
		assert.EqualError(t, err, path+want, text)
		if strings.Contains(want, "endpick: ") {
			assert.ErrorAs(t, err, new(*endpick.EndpointError), text)
		}
	}
	_, err := discover.File(path + "?").Endpoints(t.Context())
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.EqualError(t, err, path+"?: no such file or directory")
	require.NoError(t, os.WriteFile(path, []byte("#"), 0o600))
	require.ErrorIs(t, rig.Err(discover.File(path).Endpoints(t.Context())), discover.ErrEmpty)
}

// Everything that a file says of a server is taken over, including rank 0.
func TestWhatAFileSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	require.NoError(t, os.WriteFile(path, []byte(`[
		{"address": "a:1", "rank": 0}, {"address": "a:1", "id": "i", "rank": 3, "models": ["m"], "adapters": ["l"], "labels": {"z": "a"},
		"variant": "v", "max_sequences": 5, "kv_tokens": 7, "max_in_flight": 2, "max_context": 9, "tier": 3, "weight": 0.5}, {"address": "b:1"}]`), 0o600))
	f := discover.File(path)
	for range 2 {
		list := rig.Must(f.Endpoints(t.Context()))
		assert.Equal(t, []endpick.Endpoint{
			{Address: "a:1", Ranked: true},
			{
				ID: "i", Address: "a:1", Ranked: true, Rank: 3, Models: []string{"m"}, Adapters: []string{"l"}, Labels: map[string]string{"z": "a"},
				Variant: "v", MaxSequences: 5, KVTokens: 7, MaxInFlight: 2, MaxContext: 9, Tier: 3, Weight: 0.5,
			},
			{Address: "b:1"},
		}, list)
		// The caller may change the list.
		list[1].Models[0], list[1].Labels["z"], list[2].Address = "?", "?", "?"
	}
	for _, text := range []string{"a:1\n", `[{"address":"a:1"}]`} {
		require.NoError(t, os.WriteFile(path, []byte("\xef\xbb\xbf"+text), 0o600)) // as editors of Windows do
		assert.Equal(t, []endpick.Endpoint{{Address: "a:1"}}, rig.Must(discover.File(path).Endpoints(t.Context())))
	}
}

// A list may be exactly as long as the bound; an error is reported as it is, and again when
// it returns after a good list. The source's context ends when it returns.
func TestWhatIsWrongWithAList(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{}))
	good := []endpick.Endpoint{{Address: "b"}, {Address: "a"}, {Address: "a", Rank: 1, Ranked: true}}
	bad := []endpick.Endpoint{{Address: "a"}, {Address: "a"}}
	list := make([]endpick.Endpoint, 100_000) // without addresses
	var asked context.Context
	var reported []error
	filled := 0
	w := rig.Must(discover.New(discover.Config{
		Router: router, OnError: func(err error) { reported = append(reported, err) },
		Fill: func(e *endpick.Endpoint) { filled++; e.KVTokens = 7 },
		Source: source(func(ctx context.Context) ([]endpick.Endpoint, error) {
			asked = ctx
			return list, nil
		}),
	}))
	require.ErrorContains(t, w.Poll(t.Context()), "endpoint 1 of the list, \"\"")
	require.Error(t, asked.Err())
	require.Error(t, w.Poll(t.Context()))
	assert.Len(t, reported, 1)
	list = append(list, endpick.Endpoint{})
	require.ErrorContains(t, w.Poll(t.Context()), "has 100001 endpoints, more than 100000")
	list = good
	for range 2 {
		require.NoError(t, w.Poll(t.Context()))
	}
	assert.Equal(t, 6, filled)
	assert.Equal(t, 7, router.Endpoints()[0].Candidate.Endpoint.KVTokens)
	list = bad
	for range 2 {
		require.ErrorIs(t, w.Poll(t.Context()), endpick.ErrDuplicateEndpoint)
	}
	assert.Len(t, reported, 3)
	list = good
	require.NoError(t, w.Poll(t.Context()))
	list = bad
	require.Error(t, w.Poll(t.Context()))
	assert.Len(t, reported, 4, "it was good in between")
	assert.Len(t, router.Endpoints(), 3)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	list = []endpick.Endpoint{{Address: "c"}}
	require.Equal(t, context.Canceled, w.Poll(ctx))
	assert.Len(t, reported, 4)
	assert.Len(t, router.Endpoints(), 3, "it is not taken over")
}

func TestTheProgramsResolver(t *testing.T) {
	z := zoneOf("10.0.0.1")
	z.services = []net.SRV{{Target: "a.", Port: 1}}
	own := net.DefaultResolver
	net.DefaultResolver = z.resolver()
	defer func() { net.DefaultResolver = own }()
	list := rig.Must((&discover.DNS{Name: "fleet.test.", Port: 8000}).Endpoints(t.Context()))
	assert.Equal(t, []string{"10.0.0.1:8000 10.0.0.1:8000"}, addresses(list))
	list = rig.Must((&discover.DNS{SRV: true, Name: "fleet.test."}).Endpoints(t.Context()))
	assert.Equal(t, []string{"a:1 a:1"}, addresses(list))
}

// A silent name server is waited for no longer than the caller's context allows.
func TestLookingUpEndsWithItsContext(t *testing.T) {
	silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for _, s := range []discover.Source{&discover.DNS{Name: "fleet.test.", Resolver: silent}, &discover.DNS{SRV: true, Name: "fleet.test.", Resolver: silent}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err := s.Endpoints(ctx)
			require.Error(t, err)
			assert.NotErrorIs(t, err, discover.ErrEmpty)
			assert.Equal(t, time.Second, time.Since(start))
		})
	}
}

func TestASourceIsAskedByOne(t *testing.T) {
	var asking sync.Mutex
	asked := 0
	w := watch(func(context.Context) ([]endpick.Endpoint, error) {
		if assert.True(t, asking.TryLock()) {
			defer asking.Unlock()
			asked++
		}
		for range 100 {
			runtime.Gosched()
		}
		return []endpick.Endpoint{{Address: "a"}}, nil
	})
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { assert.NoError(t, w.Poll(t.Context())) })
	}
	all.Wait()
	assert.Equal(t, 200, asked)
}

func watch(asks source) *discover.Watcher {
	return rig.Must(discover.New(discover.Config{Router: rig.Must(endpick.New(endpick.Config{})), Source: asks}))
}

// A source may reuse its list: changes in place are noticed.
func TestASourceThatKeepsItsList(t *testing.T) {
	var change discover.Change
	list := []endpick.Endpoint{{Address: "a"}, {Address: "b"}, {Address: "d", Ranked: true}, {Address: "d", Ranked: true, Rank: 1}}
	router := rig.Must(endpick.New(endpick.Config{}))
	w := rig.Must(discover.New(discover.Config{
		Router: router, OnChange: func(c discover.Change) { change = c },
		Source: source(func(context.Context) ([]endpick.Endpoint, error) { return list, nil }),
	}))
	require.NoError(t, w.Poll(t.Context()))
	list[1] = endpick.Endpoint{Address: "c"}
	require.NoError(t, w.Poll(t.Context()))
	assert.Equal(t, discover.Change{Endpoints: 4, Added: []string{"c"}, Removed: []string{"b"}}, change)
	list[1].KVTokens = 1000
	require.NoError(t, w.Poll(t.Context()))
	assert.Equal(t, 1000, router.Endpoints()[3].Candidate.Endpoint.KVTokens)
	change = discover.Change{}
	slices.Reverse(list)
	require.NoError(t, w.Poll(t.Context()))
	assert.Zero(t, change, "the order is no change")
}

// A source is polled every two seconds and has five to answer.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var asked []time.Duration
		w := watch(func(ctx context.Context) ([]endpick.Endpoint, error) {
			asked = append(asked, time.Since(start))
			until, _ := ctx.Deadline()
			assert.Equal(t, 5*time.Second, time.Until(until))
			return []endpick.Endpoint{{Address: "a"}}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		w.Run(ctx)
		assert.Equal(t, []time.Duration{0, 2 * time.Second, 4 * time.Second}, asked)
	})
}

// A file counts when two polls in a row see the same, whatever it said before, even if it
// was missing in between.
func TestTwoQuestionsInARow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	f := discover.File(path)
	says := func(text string) string {
		if text == "" {
			require.NoError(t, os.Remove(path))
		} else {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		list, err := f.Endpoints(t.Context())
		if err != nil {
			return "error"
		}
		return list[0].Address
	}
	for i, step := range []struct{ text, want string }{
		{"a", "a"}, {"b", "a"}, {"a", "a"}, {"b", "a"}, {"b", "b"}, // reverted in between
		{"c", "b"}, {"", "error"}, {"c", "b"}, {"c", "c"}, // missing in between
		{"d", "c"}, {"e", "c"}, {"d", "c"}, {"d", "d"},
		{"ftp://x", "d"}, {"ftp://x", "error"}, {"ftp://x", "error"}, {"f", "d"}, {"f", "f"}, // invalid
		{"ftp://x", "f"}, {"ftp://x", "error"}, {"f", "f"}, {"g", "f"}, {"g", "g"}, // and reverted
	} {
		assert.Equal(t, step.want, says(step.text), "step %d", i)
	}
}

func TestAFileThatIsTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	require.NoError(t, os.WriteFile(path, []byte("a:1\n#"), 0o600))
	require.NoError(t, os.Truncate(path, 16<<20))
	assert.Len(t, rig.Must(discover.File(path).Endpoints(t.Context())), 1)
	require.NoError(t, os.Truncate(path, 16<<20+1))
	require.EqualError(t, rig.Err(discover.File(path).Endpoints(t.Context())), path+": is longer than 16777216 bytes")
}
