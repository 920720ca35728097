package discover_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/discover"
)

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
	z := zoneOf("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1")
	d := &discover.DNS{Name: "models.test.", Port: 8000, Scheme: "https", Resolver: z.resolver(), Endpoint: endpick.Endpoint{ID: "x", Models: []string{"m"}, Variant: "h100"}}
	list := rig.Must(d.Endpoints(t.Context()))
	assert.Equal(t, []string{"10.0.0.1:8000 https://10.0.0.1:8000", "10.0.0.2:8000 https://10.0.0.2:8000", "[fd00::1]:8000 https://[fd00::1]:8000"}, addresses(list))
	assert.Equal(t, "h100", list[1].Variant)
	d.Network, d.Scheme = "ip4", ""
	list = rig.Must(d.Endpoints(t.Context()))
	assert.Equal(t, []string{"10.0.0.1:8000 10.0.0.1:8000", "10.0.0.2:8000 10.0.0.2:8000"}, addresses(list))

	d.Network = ""
	for _, z.fails = range []uint16{1, 28} { // A and AAAA
		list, err := d.Endpoints(t.Context())
		assert.Error(t, err, "half an answer: %v", list)
		z.addresses = z.addresses[:2]
		_, err = d.Endpoints(t.Context())
		assert.NotErrorIs(t, err, discover.ErrEmpty, "the other half is empty")
	}
	z.fails = 0

	z.set(3)
	_, err := d.Endpoints(t.Context())
	assert.ErrorIs(t, err, discover.ErrEmpty, "no such name")
	assert.ErrorAs(t, err, new(*net.DNSError))
	z.set(0)
	_, err = d.Endpoints(t.Context())
	assert.ErrorIs(t, err, discover.ErrEmpty, "no addresses")
	z.set(2)
	_, err = d.Endpoints(t.Context())
	assert.Error(t, err)
	assert.NotErrorIs(t, err, discover.ErrEmpty, "who knows")
}

// An address is the same however it is written: resolvers also return IPv4 addresses
// as IPv6, and one server must not count twice.
func TestDNSAddressesAreOfOneKind(t *testing.T) {
	z := zoneOf("10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "fd00::ffff:a00:1")
	d := &discover.DNS{Name: "models.test.", Port: 80, Resolver: z.resolver()}
	list := rig.Must(d.Endpoints(t.Context()))
	assert.Equal(t, []string{"10.0.0.1:80 10.0.0.1:80", "10.0.0.2:80 10.0.0.2:80", "[fd00::ffff:a00:1]:80 [fd00::ffff:a00:1]:80"}, addresses(list))
	for name, want := range map[string]string{
		"10.0.0.7": "10.0.0.7:80", "::ffff:10.0.0.7": "10.0.0.7:80", "fd00::7": "[fd00::7]:80",
	} {
		d.Name, d.Scheme = name, "http"
		list := rig.Must(d.Endpoints(t.Context()))
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
	list = rig.Must(s.Endpoints(t.Context()))
	assert.Empty(t, list, "there is no such service")
	z.set(3)
	_, err := s.Endpoints(t.Context())
	assert.ErrorIs(t, err, discover.ErrEmpty)
}
