package endpick_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func TestCandidatesServeTheModel(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{Endpoints: []endpick.Endpoint{
		{ID: "any"},
		{ID: "llama", Models: []string{"llama"}},
		{ID: "lora", Models: []string{"llama"}, Adapters: []string{"sql"}},
		{ID: "twice", Models: []string{"qwen", "qwen"}, Adapters: []string{"qwen"}},
		{ID: "drained", Models: []string{"old"}},
	}})
	require.NoError(t, r.Drain("drained"))
	for _, c := range []struct {
		model, adapter string
		ids            []string
	}{
		{"llama", "", []string{"any", "llama", "lora"}},
		{"llama", "sql", []string{"any", "lora"}},
		{"sql", "", []string{"any", "lora"}},
		{"qwen", "", []string{"any", "twice"}},
		{"old", "", []string{"any"}},
		{"unheard of", "", []string{"any"}},
		{"", "", []string{"any", "llama", "lora", "twice"}},
	} {
		var receipt endpick.Receipt
		l := route(t, r, endpick.Request{Model: c.model, Adapter: c.adapter, Receipt: &receipt})
		var ids []string
		for _, v := range receipt.Verdicts {
			ids = append(ids, v.Candidate.Endpoint.ID)
		}
		assert.ElementsMatch(t, c.ids, ids, "%s/%s", c.model, c.adapter)
		l.Done(endpick.Outcome{})
	}
}

func TestNoEndpoints(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{})
	_, err := r.Route(endpick.Request{Model: "m"})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 0 of 0 serve it, 0 excluded, 0 draining`)
	assert.ErrorIs(t, err, endpick.ErrNoEndpoints)

	for _, id := range []string{"a", "b", "c", "d"} {
		require.NoError(t, r.Add(endpick.Endpoint{ID: id, Models: []string{"m"}}))
	}
	require.NoError(t, r.Drain("c"))
	require.NoError(t, r.Remove("d"))
	receipt := endpick.Receipt{Chosen: 3, Verdicts: make([]endpick.Verdict, 2)}
	_, err = r.Route(endpick.Request{Model: "m", Exclude: []string{"b", "a", "x"}, Receipt: &receipt})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 3 of 3 serve it, 2 excluded, 1 draining`)
	assert.Equal(t, err, receipt.Err)
	assert.Equal(t, -1, receipt.Chosen)
	assert.Empty(t, receipt.Verdicts)

	_, err = r.Route(endpick.Request{Model: "m", Adapter: "sql"})
	assert.EqualError(t, err, `endpick: no endpoint for model "sql": 0 of 3 serve it, 0 excluded, 0 draining`)
	assert.Equal(t, uint64(3), r.Stats().NoEndpoint)

	require.NoError(t, r.Resume("c"))
	assert.Equal(t, "c", route(t, r, endpick.Request{Model: "m", Exclude: []string{"b", "a"}}).Endpoint().ID)
}

// A request that was matched with a description is sent according to that description.
func TestUpdate(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Address: "old:1"}}})
	l := route(t, r, endpick.Request{InputTokens: 10})
	require.NoError(t, r.Report("a", endpick.Load{Waiting: 1, KVUsage: 0.75}))
	ref := status(t, r, "a").Candidate.Ref
	require.NoError(t, r.Update(endpick.Endpoint{ID: "a", Address: "new:1", Models: []string{"m"}}))

	assert.Equal(t, "old:1", l.Endpoint().Address)
	got := status(t, r, "a").Candidate
	assert.Equal(t, "new:1", got.Endpoint.Address)
	assert.Equal(t, ref, got.Ref, "the same endpoint still")
	assert.Equal(t, 0.75, got.KVUsage)
	assert.Equal(t, 10, got.InFlight.ContextTokens)
	_, err := r.Route(endpick.Request{Model: "other"})
	assert.ErrorIs(t, err, endpick.ErrNoEndpoints)
	assert.Equal(t, "new:1", route(t, r, endpick.Request{Model: "m"}).Endpoint().Address)
	assert.EqualError(t, r.Update(endpick.Endpoint{ID: "b"}), `endpick: endpoint "b" is unknown`)
}

func TestSlotsAreUsedAgain(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{Endpoints: named("a", "b")})
	l := route(t, r, endpick.Request{Exclude: []string{"b"}})
	old := status(t, r, "a").Candidate.Ref
	require.NoError(t, r.Remove("a"))
	assert.Equal(t, 1, r.Stats().Departing)
	require.Len(t, r.Endpoints(), 2, "it has an open lease")

	require.NoError(t, r.Add(endpick.Endpoint{ID: "a"}))
	second := status(t, r, "a").Candidate
	assert.NotEqual(t, old.Slot, second.Ref.Slot, "the slot is still in use")
	assert.Zero(t, second.InFlight, "a new life")

	assert.True(t, l.Done(endpick.Outcome{}))
	assert.Zero(t, r.Stats().Departing)
	require.NoError(t, r.Add(endpick.Endpoint{ID: "c"}))
	assert.Equal(t, endpick.Ref{Slot: old.Slot, Generation: old.Generation + 1}, status(t, r, "c").Candidate.Ref)
	assert.Len(t, r.Endpoints(), 3)
}
