package endpick_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// costRouter scores endpoints by their ID.
func costRouter(scores map[string]float64, endpoints ...endpick.Endpoint) *endpick.Router {
	return rig.Must(endpick.New(endpick.Config{Policy: byID(scores), Endpoints: endpoints}))
}

// Many at once: no endpoint ever has more than its two, each is used, and who finds no room is told
// so.
func TestMaxInFlight(t *testing.T) {
	r := costRouter(map[string]float64{"a": 1}, endpick.Endpoint{ID: "a", MaxInFlight: 2}, endpick.Endpoint{ID: "b", MaxInFlight: 2, Tier: 2})
	var inFlight [2]atomic.Int32
	var served, full atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				lease, err := r.Route(endpick.Request{})
				if err != nil {
					var none *endpick.NoEndpointError
					assert.True(t, errors.As(err, &none) && none.Full == 2 && none.Serving == 2, "%v", err)
					full.Add(1)
					continue
				}
				n := &inFlight[lease.Endpoint().ID[0]-'a']
				assert.LessOrEqual(t, n.Add(1), int32(2))
				served.Add(1)
				n.Add(-1)
				lease.Done(endpick.Outcome{Status: endpick.Completed})
			}
		})
	}
	all.Wait()
	assert.Equal(t, int32(4000), served.Load()+full.Load())

	var open []endpick.Lease
	for _, want := range []string{"a", "a", "b", "b"} {
		var receipt endpick.Receipt
		lease := rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
		assert.Equal(t, want, lease.Endpoint().ID)
		assert.Equal(t, len(open)/2, receipt.Full)
		open = append(open, lease)
	}
	_, err := r.Route(endpick.Request{Model: "m", Avoid: []string{"b"}})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 2 of 2 serve it, 0 excluded, 0 draining, 1 full, 1 avoided, asleep or of too short a context`)
	lease, err := r.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a"}})
	require.NoError(t, err, "what an endpoint has already counts beyond the limit")
	assert.Equal(t, 3, r.Endpoints()[0].Candidate.InFlight.Requests)
	for _, l := range append(open, lease) {
		l.Done(endpick.Outcome{})
	}
}

// What operators set decides before scores do, which prefer the others here.
func TestOperatorsDecideFirst(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []endpick.Endpoint // a, b and c cost 3, 2 and 1, d is good for 1, e for 2
		request   endpick.Request
		want      string
		receipt   string
	}{
		{"the lower tier", []endpick.Endpoint{{ID: "a"}, {ID: "b", Tier: 2}, {ID: "c", Tier: 3}}, endpick.Request{}, "a", "2 of later tiers"},
		{"avoided", []endpick.Endpoint{{ID: "a"}, {ID: "b", Tier: 2}, {ID: "c", Tier: 3}}, endpick.Request{Avoid: []string{"a"}}, "b", "1 avoided (a), 1 of later tiers"},
		{"two avoided", []endpick.Endpoint{{ID: "b"}, {ID: "a"}, {ID: "c"}}, endpick.Request{Avoid: []string{"b", "a"}}, "c", "2 avoided (a b)"},
		{"all avoided", []endpick.Endpoint{{ID: "a"}, {ID: "b", Tier: 2}}, endpick.Request{Avoid: []string{"a", "b"}}, "a", "1 of later tiers"},
		{"excluded", []endpick.Endpoint{{ID: "a"}, {ID: "b", Tier: 2}}, endpick.Request{Exclude: []string{"a"}}, "b", "1 excluded"},
		{"none is the first", []endpick.Endpoint{{ID: "a", Tier: 1}, {ID: "b"}, {ID: "c", Tier: 3}}, endpick.Request{}, "b", "1 of later tiers"},
		{"another model", []endpick.Endpoint{{ID: "a", Models: []string{"x"}}, {ID: "b", Tier: 2}}, endpick.Request{Model: "y"}, "b", ""},
		{"fits", []endpick.Endpoint{{ID: "a", MaxContext: 1000}, {ID: "c", MaxContext: 999}}, endpick.Request{InputTokens: 1000}, "a", "1 of too short a context"},
		{"unknown context", []endpick.Endpoint{{ID: "a"}, {ID: "c", MaxContext: 999}}, endpick.Request{InputTokens: 1000}, "a", "1 of too short a context"},
		{"fits in a later tier", []endpick.Endpoint{{ID: "a", Tier: 2}, {ID: "c", MaxContext: 999}}, endpick.Request{InputTokens: 1000}, "a", "1 of too short a context"},
		{"a little longer", []endpick.Endpoint{{ID: "a", MaxContext: 800}, {ID: "c", MaxContext: 799}}, endpick.Request{InputTokens: 1000}, "a", "1 of too short a context"},
		{"twice as costly", []endpick.Endpoint{{ID: "a", Weight: 3.1}, {ID: "c"}}, endpick.Request{}, "a", ""},
		{"thrice as costly", []endpick.Endpoint{{ID: "a", Weight: 2.9}, {ID: "c"}}, endpick.Request{}, "c", ""},
		{"more than half as good", []endpick.Endpoint{{ID: "d", Weight: 2.1}, {ID: "e"}}, endpick.Request{}, "d", ""},
		{"less than half as good", []endpick.Endpoint{{ID: "d", Weight: 1.9}, {ID: "e"}}, endpick.Request{}, "e", ""},
		{"hardly worth anything", []endpick.Endpoint{{ID: "a", Weight: 1e-320}}, endpick.Request{}, "a", ""},
	} {
		r := costRouter(map[string]float64{"a": -3, "b": -2, "c": -1, "d": 1, "e": 2}, c.endpoints...)
		c.request.Receipt = new(endpick.Receipt)
		lease, err := r.Route(c.request)
		if assert.NoError(t, err, c.name) {
			assert.Equal(t, c.want, lease.Endpoint().ID, c.name)
			assert.Zero(t, c.request.Receipt.Regret, c.name)
			assert.Contains(t, c.request.Receipt.String(), "tokens"+map[bool]string{true: ", "}[c.receipt != ""]+c.receipt+"\n", c.name)
		}
	}
	r := costRouter(map[string]float64{}, endpick.Endpoint{ID: "a", MaxContext: 800}, endpick.Endpoint{ID: "b", MaxContext: 500})
	_, err := r.Route(endpick.Request{Model: "m", InputTokens: 1001})
	assert.Equal(t, &endpick.ContextError{Model: "m", InputTokens: 1001, MaxContext: 800}, err)
	_, err = r.Route(endpick.Request{Model: "m", InputTokens: 1001, Exclude: []string{"b"}})
	assert.ErrorAs(t, err, new(*endpick.NoEndpointError), "it might have fitted there")
	assert.Equal(t, uint64(2), r.Stats().NoEndpoint)

	r = costRouter(map[string]float64{"b": 1}, named("a", "b")...)
	assert.Equal(t, "b", rig.Must(r.Route(endpick.Request{})).Endpoint().ID)
	require.NoError(t, r.Update(endpick.Endpoint{ID: "b", Tier: 2}))
	assert.Equal(t, "a", rig.Must(r.Route(endpick.Request{})).Endpoint().ID, "as soon as it is set")
}
