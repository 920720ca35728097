package health

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// noting is a filter that notes the last lease.
type noting struct {
	*Filter
	last endpick.LeaseRef
}

func (*noting) Match(*endpick.Request, []endpick.Candidate) {}

func (n *noting) Routed(e *endpick.Event) {
	n.Filter.Routed(e)
	n.last = e.Lease
}

// walk returns a line from the oldest to the newest visit, as it is linked in both
// directions.
func (f *Filter) walk(t *testing.T, l line) (refs []endpick.LeaseRef) {
	var back []endpick.LeaseRef
	for at, v := l.oldest, f.leases.Find(l.oldest); v != nil; at, v = v.after, f.leases.Find(v.after) {
		refs = append(refs, at)
	}
	for at, v := l.newest, f.leases.Find(l.newest); v != nil; at, v = v.before, f.leases.Find(v.before) {
		back = append(back, at)
	}
	slices.Reverse(back)
	require.Equal(t, refs, back)
	return refs
}

// However requests come and go, those that wait for a first byte at an endpoint are in its
// lines, in the order in which they came, and nothing is kept of the others.
func TestLinesAreThoseWhoWait(t *testing.T) {
	type request struct {
		lease         endpick.Lease
		ref           endpick.LeaseRef
		to            string
		stream, waits bool
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f := &noting{Filter: NewFilter()}
		now := time.Unix(1e9, 0)
		router, err := endpick.New(endpick.Config{
			Policy: endpick.Policy{Matcher: f}, Clock: func() time.Time { return now },
			Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		})
		require.NoError(t, err)
		refs := map[string]endpick.Ref{}
		for _, e := range router.Endpoints() {
			refs[e.Candidate.Endpoint.ID] = e.Candidate.Ref
		}
		var open []*request
		for step := range 300 {
			now = now.Add(time.Millisecond)
			switch what := rng.IntN(8); {
			case step == 200:
				require.NoError(t, router.Remove("b"))
				assert.Nil(t, f.waits.Find(refs["b"]))
				delete(refs, "b")
			case what < 4 || len(open) == 0:
				r := &request{stream: rng.IntN(2) == 0, waits: true}
				r.lease, err = router.Route(endpick.Request{InputTokens: step, Stream: r.stream})
				require.NoError(t, err)
				r.ref, r.to = f.last, r.lease.Endpoint().ID
				open = append(open, r)
			case what == 4:
				r := open[rng.IntN(len(open))]
				r.lease.FirstToken()
				r.waits = false
			default:
				i := rng.IntN(len(open))
				r := open[i]
				open = slices.Delete(open, i, i+1)
				r.lease.Done(endpick.Outcome{Status: endpick.Status(rng.IntN(3))})
				require.Nil(t, f.leases.Find(r.ref))
			}
			for id, ref := range refs {
				var want [2][]endpick.LeaseRef
				for _, r := range open {
					if r.waits && r.to == id {
						want[kind(r.stream)] = append(want[kind(r.stream)], r.ref)
					}
				}
				if waits := f.waits.Find(ref); waits != nil {
					for kind, l := range waits {
						require.Equal(t, want[kind], f.walk(t, l))
					}
				} else {
					require.Empty(t, slices.Concat(want[0], want[1]))
				}
			}
		}
	}
}

// The filter knows the endpoints that were ever candidates until they go: it must leave a
// quarter of them in use.
func TestFleetIsWhoIsThere(t *testing.T) {
	f := NewFilter()
	router, err := endpick.New(endpick.Config{Policy: f.Guard(endpick.Policy{}), Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}})
	require.NoError(t, err)
	ask := func() {
		lease, err := router.Route(endpick.Request{})
		require.NoError(t, err)
		lease.Done(endpick.Outcome{})
	}
	b, _ := router.Ref("b")
	assert.False(t, f.fleet.has("b", b))
	ask()
	assert.Equal(t, 3, f.fleet.size())
	assert.True(t, f.fleet.has("b", b))
	require.NoError(t, router.Add(endpick.Endpoint{ID: "d"}))
	require.NoError(t, router.Remove("d")) // nobody has asked for it
	assert.Equal(t, 3, f.fleet.size())
	require.NoError(t, router.Remove("b"))
	assert.Equal(t, 2, f.fleet.size())
	assert.False(t, f.fleet.has("b", b))
	require.NoError(t, router.Add(endpick.Endpoint{ID: "b"}))
	for range 100 {
		ask()
	}
	assert.Equal(t, 3, f.fleet.size())
}
