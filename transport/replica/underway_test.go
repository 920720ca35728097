package replica_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// A request that was already under way has no known duration, so none is sent.
func TestWhatWasUnderWayHasNoTimes(t *testing.T) {
	bus := newHub()
	a, b := start(t, bus, nil), start(t, bus, nil)
	meet(t, a, b)
	for tokens, adopted := range map[int]*endpick.Adopted{11: {Endpoint: "server-1"}, 12: nil} {
		lease, err := a.Route(endpick.Request{InputTokens: tokens, Stream: true, Adopted: adopted})
		require.NoError(t, err)
		eventually(t, "it is known", func() bool { return b.open() == 1 })
		lease.FirstToken()
		lease.Done(endpick.Outcome{OutputTokens: 3})
		eventually(t, "and that it has ended", func() bool { return b.open() == 0 })
	}
	b.heard.mu.Lock()
	defer b.heard.mu.Unlock()
	assert.NotContains(t, b.heard.ttft, 11)
	assert.Contains(t, b.heard.ttft, 12)
}
