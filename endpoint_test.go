package endpick_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func TestEndpointValidation(t *testing.T) {
	with := func(r endpick.Resident) endpick.Endpoint {
		return endpick.Endpoint{ID: "a", Residents: []endpick.Resident{{Model: "first"}, r}}
	}
	for _, c := range []struct {
		endpoint endpick.Endpoint
		text     string
	}{
		{endpick.Endpoint{}, `endpick: endpoint "" has neither ID nor address`},
		{endpick.Endpoint{Address: "h:1", Ranked: true, Rank: -1}, `endpick: endpoint "h:1#-1" Rank is negative`},
		{endpick.Endpoint{Address: "h:1", Rank: 2}, `endpick: endpoint "h:1" has Rank 2, but is not Ranked`},
		{endpick.Endpoint{ID: "a", Models: []string{"m", ""}}, `endpick: endpoint "a" has an empty name at Models[1]`},
		{endpick.Endpoint{ID: "a", Adapters: strings.Split("", ",")}, `endpick: endpoint "a" has an empty name at Adapters[0]`},
		{endpick.Endpoint{ID: "a", MaxSequences: -1}, `endpick: endpoint "a" MaxSequences is negative`},
		{endpick.Endpoint{ID: "a", KVTokens: -1}, `endpick: endpoint "a" KVTokens is negative`},
		{endpick.Endpoint{ID: "a", MaxInFlight: -1}, `endpick: endpoint "a" MaxInFlight is negative`},
		{endpick.Endpoint{ID: "a", MaxContext: -1}, `endpick: endpoint "a" MaxContext is negative`},
		{endpick.Endpoint{ID: "a", Tier: -1}, `endpick: endpoint "a" Tier is negative`},
		{endpick.Endpoint{ID: "a", WakeTime: -1}, `endpick: endpoint "a" WakeTime is negative`},
		{endpick.Endpoint{ID: "a", Weight: math.NaN()}, `endpick: endpoint "a" Weight is negative or not finite`},
		{endpick.Endpoint{ID: "a", Weight: math.Inf(1)}, `endpick: endpoint "a" Weight is negative or not finite`},
		{endpick.Endpoint{ID: "a", MaxResidents: -1}, `endpick: endpoint "a" MaxResidents is negative`},
		{endpick.Endpoint{ID: "a\nb"}, `endpick: endpoint "a\nb" has an ID that is not printable UTF-8`},
		{endpick.Endpoint{ID: "\xff"}, `endpick: endpoint "\xff" has an ID that is not printable UTF-8`},
		{endpick.Endpoint{ID: "a", Address: "h h:80"}, `endpick: endpoint "a" has an address with spaces or control characters, or not in UTF-8`},
		{endpick.Endpoint{ID: "a", Address: "h\x00"}, `endpick: endpoint "a" has an address with spaces or control characters, or not in UTF-8`},
		{with(endpick.Resident{}), `endpick: endpoint "a" has a resident without a name, or one that is not printable UTF-8`},
		{with(endpick.Resident{Model: "\n"}), `endpick: endpoint "a" has a resident without a name, or one that is not printable UTF-8`},
		{with(endpick.Resident{Model: "m", State: endpick.InMemory + 1}), `endpick: endpoint "a" has resident "m" in an unknown state`},
		{with(endpick.Resident{Model: "m", Bytes: -1}), `endpick: endpoint "a" has resident "m" with negative Bytes or Context`},
		{with(endpick.Resident{Model: "m", Context: -1}), `endpick: endpoint "a" has resident "m" with negative Bytes or Context`},
	} {
		r, _ := newRouter(t, endpick.Config{})
		err := r.Add(c.endpoint)
		assert.EqualError(t, err, c.text)
		assert.ErrorIs(t, err, endpick.ErrBadEndpoint)
		assert.EqualError(t, r.Update(c.endpoint), c.text)
		assert.Empty(t, r.Endpoints())
		_, ok := r.Ref(c.endpoint.ID)
		assert.False(t, ok)
		_, err = endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{c.endpoint}})
		assert.EqualError(t, err, c.text)
	}
}

// An ID made from the address has the rank, if there is one, and no credentials, because IDs appear in
// headers, logs and metrics.
func TestEndpointIDs(t *testing.T) {
	for address, want := range map[string]string{
		"host:8000":                       "host:8000",
		"http://ann:s3cret@host:8000/a@b": "http://host:8000/a@b",
		"ann:s3cret@host":                 "host",
		"https://ann:p@ss@host?x=@":       "https://host?x=@",
		"http://host/ann:s3cret@x":        "http://host/ann:s3cret@x",
	} {
		r, _ := newRouter(t, endpick.Config{Endpoints: []endpick.Endpoint{
			{Address: address}, {Address: address, Ranked: true}, {Address: address, Ranked: true, Rank: 2}, {ID: "x", Address: address},
		}})
		var ids []string
		for _, s := range r.Endpoints() {
			ids = append(ids, s.Candidate.Endpoint.ID)
		}
		assert.Equal(t, []string{want, want + "#0", want + "#2", "x"}, ids)
		assert.ErrorIs(t, r.Add(endpick.Endpoint{Address: "x"}), endpick.ErrDuplicateEndpoint)
	}
}

func TestNoEndpoints(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{})
	_, err := r.Route(endpick.Request{Model: "m"})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 0 of 0 serve it, 0 excluded, 0 draining`)
	assert.ErrorAs(t, err, new(*endpick.NoEndpointError))

	for _, id := range []string{"a", "b", "c", "d"} {
		require.NoError(t, r.Add(endpick.Endpoint{ID: id, Models: []string{"m"}}))
	}
	require.NoError(t, r.Drain("c"))
	require.NoError(t, r.Remove("d"))
	_, err = r.Route(endpick.Request{Model: "m", Exclude: []string{"b", "a", "x"}})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 3 of 3 serve it, 2 excluded, 1 draining`)

	_, err = r.Route(endpick.Request{Model: "m", Adapter: "sql"})
	assert.EqualError(t, err, `endpick: no endpoint for model "sql": 0 of 3 serve it, 0 excluded, 0 draining; there are ["m"]`)
	assert.Equal(t, uint64(3), r.Stats().NoEndpoint)

	require.NoError(t, r.Resume("c"))
	assert.Equal(t, "c", route(t, r, endpick.Request{Model: "m", Exclude: []string{"b", "a"}}).Endpoint().ID)
}
