//go:build !race

package endpick_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// quiet is an observer that does not allocate.
type quiet struct{ heard int }

func (*quiet) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) { clear(dst) }
func (q *quiet) Routed(*endpick.Event)                                        { q.heard++ }
func (q *quiet) FirstToken(*endpick.Event)                                    { q.heard++ }
func (q *quiet) Done(*endpick.Event, *endpick.Outcome)                        { q.heard++ }

// A decision allocates nothing, and neither does the rest of a lease. (The race
// detector drops pooled objects, so this does not hold under it.)
func TestAllocs(t *testing.T) {
	q := new(quiet)
	all := func(c *endpick.Candidate) bool { return c.InFlight.Requests < 1<<20 }
	policies := map[string]endpick.Policy{
		"zero":     {},
		"observed": {Scorers: []endpick.Weighted{{Scorer: q, Weight: 1}, {Scorer: scoreFunc(leastLoaded), Weight: 2}}},
		"everything": {
			Matcher:   matchFunc(func(req *endpick.Request, _ *endpick.Candidate) int { return req.InputTokens / 2 }),
			Predictor: expects(0),
			Admitters: []endpick.Admitter{admitFunc(func(*endpick.Request) error { return nil })},
			Filters:   []endpick.Filter{keepIf(all)},
			Scorers:   []endpick.Weighted{{Scorer: q, Weight: 1}},
			Picker:    endpick.WeightedRandom{},
		},
		"power of two": {Scorers: []endpick.Weighted{{Scorer: q, Weight: 1}}, Picker: endpick.PowerOfTwo{}},
	}
	var exclude []string
	for _, e := range numbered(17) {
		exclude = append(exclude, e.ID)
	}
	for name, p := range policies {
		t.Run(name, func(t *testing.T) {
			r, c := newRouter(endpick.Config{Endpoints: numbered(20), Policy: p})
			require.NoError(t, r.Report("e1", endpick.Load{Waiting: 2, Absent: endpick.KVUsageSignal}))
			blocks := make([]uint64, 64)
			stream := false
			allocs := testing.AllocsPerRun(1000, func() {
				stream = !stream
				l := rig.Must(r.Route(endpick.Request{Model: "llama", InputTokens: 1000, Blocks: blocks, Stream: stream, Exclude: exclude}))
				l.FirstToken()
				l.Tokens(5)
				c.advance(1000)
				l.Done(endpick.Outcome{OutputTokens: 7, Blocks: blocks})
			})
			assert.Zero(t, allocs)
		})
	}
	assert.NotZero(t, q.heard)

	// A mark does not allocate either; a scrape marks every endpoint.
	r, _ := newRouter(endpick.Config{Endpoints: numbered(2)})
	assert.Zero(t, testing.AllocsPerRun(100, func() { r.Snapshot("e1") }))
}
