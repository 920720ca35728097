package endpick_test

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An adopted request goes where it was sent, past an admitter that refuses everything and a
// filter that prefers another endpoint; it counts, and observers are notified.
func TestAdopted(t *testing.T) {
	for _, mirrored := range []bool{false, true} {
		s, filtered := new(spy), 0
		policy := endpick.Policy{
			Matcher:   holds(7),
			Admitters: []endpick.Admitter{admitFunc(func(*endpick.Request) error { return assert.AnError })},
			Scorers:   []endpick.Weighted{{Scorer: s, Weight: 1}},
			Filters: []endpick.Filter{filterFunc(func(c []endpick.Candidate) []endpick.Candidate {
				filtered++
				return c[:1]
			})},
		}
		r, c := newRouter(endpick.Config{Endpoints: named("a", "b"), Policy: policy})
		require.ErrorAs(t, rig.Err(r.Route(endpick.Request{})), new(*endpick.RejectedError))

		var receipt endpick.Receipt
		lease := rig.Must(r.Route(endpick.Request{
			Adopted: &endpick.Adopted{Endpoint: "b", Mirrored: mirrored, ExpectedCached: 30}, InputTokens: 100, Stream: true,
			Exclude: []string{"b"}, Avoid: []string{"b"}, Receipt: &receipt,
		}))
		assert.Equal(t, "b", lease.Endpoint().ID)
		assert.Zero(t, filtered)
		assert.Equal(t, "b", receipt.Verdicts[receipt.Chosen].Candidate.Endpoint.ID)
		prefill := map[bool]int{false: 93, true: 70}[mirrored]
		assert.Equal(t, endpick.InFlight{Requests: 1, Prefilling: 1, PrefillTokens: prefill, ContextTokens: 100}, status(t, r, "b").Candidate.InFlight)
		assert.Zero(t, status(t, r, "a").Candidate.InFlight)

		c.advance(time.Second)
		lease.FirstToken()
		assert.True(t, lease.Done(endpick.Outcome{}))
		heard := s.take()
		require.Len(t, heard, 1)
		assert.Equal(t, 2, heard[0].candidates, "observers see all candidates")
		assert.True(t, heard[0].first)
		assert.Equal(t, []time.Duration{-1, -1, -1}, heard[0].latencies(), "when it came here says little")
		assert.Empty(t, s.faults)
		requireQuiet(t, r)
		stats := r.Stats()
		assert.Equal(t, [2]uint64{1, map[bool]uint64{true: 1}[mirrored]}, [2]uint64{stats.Routed, stats.Mirrored})
	}
}

// Times that were not reported, or are impossible, are unknown. Of a request that this host has
// adopted only the beginning is. Here the first token comes after two seconds, the last after three more.
func TestTimesOfTheAdopted(t *testing.T) {
	const s = time.Second
	heard := new(spy)
	r, c := newRouter(endpick.Config{Endpoints: named("a"), Policy: scoredBy(heard)})
	for name, x := range map[string]struct {
		adopted         *endpick.Adopted
		status          endpick.Status
		ttft, tpot, e2e time.Duration
	}{
		"its own":                        {nil, 0, 2 * s, s, 5 * s},
		"adopted":                        {&endpick.Adopted{}, 0, -1, s, -1},
		"adopted, with another's times":  {&endpick.Adopted{Took: 2 * s, TTFT: s}, 0, -1, s, -1},
		"mirrored, nothing known":        {&endpick.Adopted{Mirrored: true}, 0, -1, -1, -1},
		"no first token":                 {&endpick.Adopted{Mirrored: true, Took: s}, 0, -1, -1, s},
		"negative":                       {&endpick.Adopted{Mirrored: true, Took: -s, TTFT: -2 * s}, 0, -1, -1, -1},
		"a first token after the last":   {&endpick.Adopted{Mirrored: true, Took: s, TTFT: 2 * s}, 0, -1, -1, -1},
		"all":                            {&endpick.Adopted{Mirrored: true, Took: 10 * s, TTFT: 4 * s}, 0, 4 * s, 2 * s, 10 * s},
		"lost, so that nobody told them": {&endpick.Adopted{Mirrored: true, Took: 10 * s, TTFT: 4 * s}, endpick.Lost, -1, -1, -1},
	} {
		if x.adopted != nil {
			x.adopted.Endpoint = "a"
		}
		l := rig.Must(r.Route(endpick.Request{Adopted: x.adopted, InputTokens: 10, Stream: true}))
		c.advance(2 * s)
		l.Tokens(1)
		c.advance(3 * s)
		l.Tokens(3)
		l.Done(endpick.Outcome{Status: x.status})
		assert.Equal(t, []time.Duration{x.ttft, x.tpot, x.e2e}, heard.take()[0].latencies(), name)
	}

	// The times of one don't leak into the next in its slot, and say when the last token came, too.
	for _, a := range []endpick.Adopted{{Took: 5 * s, TTFT: s}, {}, {Took: 5 * s, TTFT: s}} {
		a.Endpoint, a.Mirrored = "a", true
		l := rig.Must(r.Route(endpick.Request{Adopted: &a, InputTokens: 10, Stream: true}))
		c.advance(9 * s)
		l.Done(endpick.Outcome{OutputTokens: 9})
		want := []time.Duration{-1, -1, -1}
		if a.Took > 0 {
			want = []time.Duration{s, s / 2, 5 * s}
		}
		assert.Equal(t, want, heard.take()[0].latencies())
	}
}
