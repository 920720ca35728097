package prefix

import (
	"fmt"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
)

// The index handles each event under one lock, so whatever goroutines do, it gets events in
// one of the orders of their calls. Here are all of them, for some requests that share
// heads and tenants, while an endpoint is replaced: after each call the index equals its
// twin.
func TestIndexInAllInterleavings(t *testing.T) {
	type request struct {
		slot   int
		tenant string
		blocks []uint64
		first  bool // it has a first token before its end
		status endpick.Status
		after  []uint64 // prompt and response
		late   bool     // it was chosen before the endpoint was replaced
	}
	a := request{0, "a", []uint64{1, 2, 3}, true, endpick.Completed, []uint64{1, 2, 3, 1}, false}
	b := request{0, "b", []uint64{1, 2, 1, 1}, false, endpick.Completed, nil, false}
	c := request{0, "a", []uint64{1, 2, 3, 1, 2}, true, endpick.Canceled, nil, false}
	refused := request{0, "b", []uint64{1, 2, 3, 3}, false, endpick.Failed, nil, false}
	late := request{0, "a", []uint64{1, 2}, false, endpick.Completed, nil, true}
	elsewhere := request{1, "b", []uint64{1, 2, 2}, false, endpick.Completed, []uint64{1, 2, 2, 2}, false}
	asked := []uint64{1, 2, 3, 1, 2}

	total := 0
	for name, tc := range map[string]struct {
		requests []request
		most     int
		replaced bool
	}{
		"heads that are shared":             {[]request{a, b, c}, 16, false},
		"more than there is room for":       {[]request{a, b, c}, 4, false},
		"an endpoint that is replaced":      {[]request{a, refused, late}, 16, true},
		"and has little room":               {[]request{a, c, late}, 3, true},
		"two endpoints":                     {[]request{a, elsewhere, refused}, 5, false},
		"one that goes, and one that stays": {[]request{b, elsewhere, c}, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []int
			for _, r := range tc.requests {
				n := 2
				if r.first {
					n = 3
				}
				steps = append(steps, n)
			}
			if tc.replaced {
				steps = append(steps, 1)
			}
			one := func(candidates []endpick.Candidate) []endpick.Candidate { return candidates }
			n := 0
			for order := range rig.Orders(steps...) {
				if n++; rig.Race && n%50 != 0 {
					continue // there is only one goroutine
				}
				x := rig.Must(NewIndex(IndexConfig{BlocksPerEndpoint: tc.most}))
				m := &machine{x: x, twin: newTwin(), bounds: []int{tc.most, tc.most}, tenants: []string{"a", "b"}}
				m.twin.share, m.twin.most = 0.5, tc.most
				m.refs = []endpick.EndpointRef{{Slot: 0, Generation: 1}, {Slot: 1, Generation: 1}}
				events := make([]endpick.Event, len(tc.requests))
				at := make([]int, len(steps))
				said := reported{t, order}
				for _, thread := range order {
					at[thread]++
					if thread == len(tc.requests) {
						m.succeeded(0)
						m.agree(said, asked, one)
						continue
					}
					r, e := &tc.requests[thread], &events[thread]
					switch {
					case at[thread] == 1:
						ref := m.refs[r.slot]
						if r.late {
							ref.Generation = 1
						}
						*e = m.routed(said, endpick.LeaseRef{Slot: uint32(thread), Generation: 1}, ref, r.tenant, slices.Clone(r.blocks))
					case at[thread] == 2 && r.first:
						m.answered(e)
					default:
						m.ended(said, e, &endpick.Outcome{Status: r.status, Blocks: r.after})
					}
					m.agree(said, asked, one)
				}
				for _, c := range x.caches.All() {
					require.Zero(said, (*c).pending+(*c).retained, "no request is open")
				}
			}
			t.Logf("%d orders", n)
			total += n
		})
	}
	require.Greater(t, total, 3000)
}

// reported fails with the order of calls.
type reported struct {
	t     *testing.T
	order []int
}

func (o reported) Errorf(format string, args ...any) {
	o.t.Helper()
	o.t.Errorf("in the order %v of requests: %s", o.order, fmt.Sprintf(format, args...))
}

func (o reported) FailNow() { o.t.FailNow() }
