package precise_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/assert"
)

// confirmed are the prompts at a: of which events have named a block, of which none, and without ids.
func (f *fleet) confirmed() [3]uint64 {
	s := f.stats("a")
	return [3]uint64{s.Confirmed, s.Unconfirmed, s.Textual}
}

func TestEventsThatMatchNothing(t *testing.T) {
	f, a := fed(t)
	serve := func(req endpick.Request, event precise.Event, status endpick.Status) {
		lease := f.to("a", req)
		a.Apply([]precise.Event{event})
		lease.Done(endpick.Outcome{Status: status})
	}
	none := precise.Event{Kind: precise.Removed}
	big := func(name precise.Hash, first int) precise.Event { return stored(hashes{name}, ids(first, 64)) }
	for _, step := range []struct {
		req    endpick.Request
		event  precise.Event
		status endpick.Status
		want   [3]uint64
	}{
		{request(ids(0, 15)), none, endpick.Completed, [3]uint64{0, 0, 0}},        // no block
		{request(ids(0, 16)), none, endpick.Completed, [3]uint64{0, 1, 0}},        // which engines may have
		{request(ids(0, 64)), none, endpick.Failed, [3]uint64{0, 1, 0}},           // nothing was computed
		{request(ids(0, 64)), big(1, 500), endpick.Completed, [3]uint64{0, 2, 0}}, // other tokens
		{request(ids(0, 63)), none, endpick.Completed, [3]uint64{0, 2, 0}},        // shorter than a block of that engine
		{request(ids(0, 64)), none, endpick.Completed, [3]uint64{0, 3, 0}},
		{request(ids(0, 64)), big(2, 0), endpick.Completed, [3]uint64{1, 3, 0}},
		{request(ids(0, 200)), none, endpick.Completed, [3]uint64{2, 3, 0}}, // its head is
		{request(ids(0, 64)), none, endpick.Completed, [3]uint64{3, 3, 0}},  // whole, known before
		{endpick.Request{Blocks: []uint64{1}}, none, endpick.Completed, [3]uint64{3, 3, 1}},
		{endpick.Request{}, none, endpick.Completed, [3]uint64{3, 3, 1}},
	} {
		serve(step.req, step.event, step.status)
		assert.Equal(t, step.want, f.confirmed())
	}
	a.Reset(precise.Nothing)
	serve(endpick.Request{Blocks: []uint64{1}}, none, endpick.Completed)
	assert.Equal(t, [3]uint64{3, 3, 1}, f.confirmed(), "who is not heard, is not counted")

	// Of two ranks, one has it.
	f = newFleet(t, precise.Config{})
	f.feed("a", 0)
	one := f.feed("a", 1)
	lease := f.to("a", request(ids(0, 64)))
	one.Apply([]precise.Event{big(1, 0)})
	lease.FirstToken() // so that it was computed, though it fails in the end
	lease.Done(endpick.Outcome{Status: endpick.Failed})
	feeds := f.index.Stats().Feeds
	assert.Equal(t, []uint64{0, 0, 1, 0}, []uint64{feeds[0].Confirmed, feeds[0].Unconfirmed, feeds[1].Confirmed, feeds[1].Unconfirmed})
}
