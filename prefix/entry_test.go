package prefix

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// When runs are joined, so are the entries of who has used both together.
func TestEntriesAreJoinedWithTheirRuns(t *testing.T) {
	f := newFixture(t, 100)
	all := prompt(0, 20)
	open := endpick.Event{
		Lease:     endpick.LeaseRef{Slot: 100, Generation: 1},
		Request:   &endpick.Request{Blocks: all[:10], InputTokens: 160},
		Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.EndpointRef{Slot: 1, Generation: 1}},
	}
	observer{f.x}.Routed(&open) // a prompt that ends here keeps the runs apart
	f.done(f.routed(all), 0)
	assert.Equal(t, []int{2, 3}, []int{f.x.trie.nodes.count, f.x.entries.count})
	observer{f.x}.Done(&open, &endpick.Outcome{Status: endpick.Completed})
	assert.Equal(t, []int{1, 2}, []int{f.x.trie.nodes.count, f.x.entries.count}, "one for each endpoint")
	assert.NoError(t, f.x.check())
}
