package endpick

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// must is rig.Must, which this package can't import.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Prefills end in the order of their time, and never too early.
func TestExpiry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h expiry
		h.start()
		var waiting []*leaseSlot
		made, now := uint32(0), int64(-100)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				made++
				s := &leaseSlot{index: made}
				h.push(s, time.Duration(rapid.IntRange(-2, 200).Draw(t, "at")))
				waiting = append(waiting, s)
				slices.SortStableFunc(waiting, func(a, b *leaseSlot) int { return cmp.Compare(a.prefillEnd, b.prefillEnd) })
			},
			"remove": func(t *rapid.T) {
				if n := len(waiting); n > 0 {
					i := rapid.IntRange(0, n-1).Draw(t, "which")
					h.remove(waiting[i])
					h.remove(waiting[i]) // it is gone already
					waiting = slices.Delete(waiting, i, i+1)
				}
			},
			"pop": func(t *rapid.T) {
				now += rapid.Int64Range(-5, 50).Draw(t, "time")
				x, ok := h.pop(now)
				require.Equal(t, len(waiting) > 0 && waiting[0].prefillEnd <= now, ok)
				if ok {
					require.Equal(t, expiring{waiting[0].prefillEnd, waiting[0]}, x)
					waiting = waiting[1:]
				}
			},
			"": func(t *rapid.T) {
				earliest := int64(math.MaxInt64)
				if len(waiting) > 0 {
					earliest = waiting[0].prefillEnd
				}
				require.Equal(t, earliest, h.earliest.Load())
			},
		})
	})
}

func TestNumbersWrapAround(t *testing.T) {
	for _, n := range []uint32{0, 7, math.MaxInt32, math.MaxUint32} {
		s := leaseSlot{request: Request{number: 1<<40 + uint64(n)}}
		require.Equal(t, []bool{false, false, true, true}, []bool{s.before(n - 5), s.before(n), s.before(n + 1), s.before(n + 1e9)})
	}
}

// A lease counts as open until its endpoint has let go of the request: who sees no open lease
// sees nothing in flight either.
func TestALeaseClosesAfterItsRequestHasLeft(t *testing.T) {
	r := must(New(Config{Endpoints: []Endpoint{{ID: "a"}}}))
	l := must(r.Route(Request{}))
	state := l.slot.state
	require.NoError(t, r.Remove("a")) // the last request to leave frees its slot
	r.fleet.mu.Lock()
	ended := make(chan bool)
	go func() { ended <- l.Done(Outcome{}) }()
	for state.requests.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, r.leases.closed.Load())
	r.fleet.mu.Unlock()
	require.True(t, <-ended)
	require.EqualValues(t, 1, r.leases.closed.Load())
}

// What a caller owns is not kept: neither by a lease, open or closed, nor by the memory that the next decision
// will use. An open lease does not keep the candidates among which its endpoint was chosen either.
func TestNothingOfACallerIsKept(t *testing.T) {
	var seen int
	r := must(New(Config{Endpoints: []Endpoint{{ID: "a"}}, Policy: Policy{Admitters: []Admitter{candidatesSeen{&seen}}}}))
	l := must(r.Route(Request{Blocks: []uint64{1}, Exclude: []string{"b"}, Avoid: []string{"b"}, Receipt: new(Receipt)}))
	d := r.work.Get().(*decision)
	require.Equal(t, Request{}, d.req)
	require.Nil(t, d.pool)
	s := l.slot
	require.Equal(t, 1, seen)
	require.Nil(t, s.event.Candidates)
	require.Equal(t, Request{InputTokens: 16}, Request{
		InputTokens: s.request.InputTokens, Blocks: s.request.Blocks, Exclude: s.request.Exclude, Avoid: s.request.Avoid, Receipt: s.request.Receipt,
	})
	require.True(t, l.Done(Outcome{Blocks: []uint64{1, 2}}))
	require.Equal(t, Outcome{}, s.outcome)
	require.Equal(t, Request{}, s.request)
}

type candidatesSeen struct{ n *int }

func (candidatesSeen) Admit(*Request, []Candidate) error { return nil }
func (s candidatesSeen) Routed(e *Event)                 { *s.n = len(e.Candidates) }
