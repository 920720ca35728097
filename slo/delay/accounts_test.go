package delay

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An endpoint's account is the sum over its open requests, whatever has happened: once all
// have ended, nothing is left of them.
func TestAccountsAreTheSums(t *testing.T) {
	type sums struct{ pairs, decoding, size float64 }
	rapid.Check(t, func(t *rapid.T) {
		d := newLone(t)
		require.NoError(t, d.router.Add(endpick.Endpoint{ID: "b", Variant: "fast", MaxSequences: 2, Residents: []endpick.Resident{{Model: "m"}}}))
		var leases []endpick.Lease
		lease := func(t *rapid.T) endpick.Lease {
			if len(leases) == 0 {
				t.Skip("nothing was routed yet")
			}
			// The newest are most likely to be open.
			return leases[len(leases)-1-rapid.IntRange(0, len(leases)-1).Draw(t, "lease")]
		}
		someID := rapid.SampledFrom([]string{"a", "b"})
		route := func(t *rapid.T) {
			input, output := rapid.IntRange(1, 4000).Draw(t, "input"), rapid.IntRange(0, 600).Draw(t, "output")
			leases = append(leases, d.route(input, output, rapid.IntRange(0, 3).Draw(t, "stream") > 0))
		}
		check := func(t *rapid.T) {
			want := map[endpick.EndpointRef]sums{}
			for _, l := range d.m.leases.All() {
				s := want[l.ref]
				if l.answered || !l.stream || l.counted { // the last: streams are held back there
					s.decoding++
					s.size += l.size
				}
				if !l.answered {
					s.pairs += l.pairs
				}
				want[l.ref] = s
			}
			for ref, e := range d.m.endpoints.All() {
				s := want[ref]
				require.InDelta(t, s.pairs, e.pairs, 1e-3)
				require.Equal(t, s.decoding, e.decoding)
				require.InDelta(t, s.size, e.size, 1e-6)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"route": route, "route again": route,
			"first token": func(t *rapid.T) { lease(t).FirstToken() },
			"tokens":      func(t *rapid.T) { lease(t).Tokens(rapid.IntRange(1, 40).Draw(t, "tokens")) },
			"done": func(t *rapid.T) {
				lease(t).Done(endpick.Outcome{Status: endpick.Status(rapid.IntRange(0, 3).Draw(t, "status"))})
			},
			"report": func(t *rapid.T) {
				waiting, usage := rapid.IntRange(0, 9).Draw(t, "waiting"), rapid.Float64Range(0, 1).Draw(t, "KV usage")
				require.NoError(t, d.router.Report(someID.Draw(t, "id"), endpick.Load{Waiting: float64(waiting), KVUsage: usage}))
			},
			"replace": func(t *rapid.T) {
				id := someID.Draw(t, "id")
				require.NoError(t, d.router.Remove(id))
				require.NoError(t, d.router.Add(endpick.Endpoint{ID: id, KVTokens: 30_000}))
			},
			"pass": func(t *rapid.T) {
				d.now = d.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			},
			"": check,
		})
		for _, l := range leases {
			l.Done(endpick.Outcome{})
		}
		for _, l := range d.m.leases.All() {
			require.Zero(t, *l)
		}
		check(t)
		require.Zero(t, d.router.Stats().Panics)
	})
}

// What has come into an endpoint's memory: the new tokens of prompts that were computed, and the
// responses. It is at most a number of tokens that a response can have.
func TestWhatFillsMemory(t *testing.T) {
	for name, x := range map[string]struct {
		stream, answered bool
		o                endpick.Outcome
		filled           float64
	}{
		"a stream":          {true, true, endpick.Outcome{OutputTokens: 11}, 1011},
		"a whole response":  {false, false, endpick.Outcome{OutputTokens: 11}, 1011},
		"its client left":   {true, true, endpick.Outcome{Status: endpick.Canceled, OutputTokens: 5}, 1005},
		"nothing was begun": {true, false, endpick.Outcome{Status: endpick.Failed, OutputTokens: 5}, 0},
		"absurd":            {true, true, endpick.Outcome{OutputTokens: math.MaxInt32}, 1000 + 1<<24},
	} {
		d := newLone(t)
		l := d.route(1000, 20, x.stream)
		d.at(1)
		if x.answered {
			l.FirstToken()
		}
		d.at(2)
		l.Done(x.o)
		ref, _ := d.router.Ref("a")
		assert.Equal(t, x.filled, d.m.endpoints.Find(ref).filled, name)
	}
}
