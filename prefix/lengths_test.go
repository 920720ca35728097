package prefix

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

func TestLengths(t *testing.T) {
	var l lengths
	assert.EqualValues(t, 1, l.ratio(), "nothing is known")
	l.add(0, 100)
	l.add(100, 0)
	l.add(-1, -1)
	assert.EqualValues(t, 1, l.ratio(), "half of it is not known")
	l.add(150, 100)
	assert.EqualValues(t, 1.5, l.ratio())
	l.add(50, 100)
	assert.EqualValues(t, 1, l.ratio())
	l.add(50, 100)
	assert.EqualValues(t, 1, l.ratio(), "prompts that seem too short")
	l = lengths{}
	l.add(150, 100)
	l.add(3*150, 3*120)
	assert.InDelta(t, 4*150/(100+3*120.), l.ratio(), 1e-3, "long prompts count more")
	l.add(math.MaxInt, 1)
	assert.EqualValues(t, 2, l.ratio())
	for range 60_000 {
		l.add(130, 100)
	}
	assert.InDelta(t, 1.3, l.ratio(), 1e-3, "what is old is forgotten")
}

// The size of a cache is in the engine's tokens. Where the host takes prompts to be half as long
// again as they are, the cache holds half as many of its blocks again.
func TestBoundByTheEnginesLengths(t *testing.T) {
	d := newDesk(t, 0)
	d.endpoint.KVTokens = 16_000
	bound := func() int { return d.x.Stats().Endpoints[0].Bound }
	end := func(o endpick.Outcome) int {
		d.x.Done(d.routed(prompt(0, 60)), &o)
		e := d.routed(prompt(1, 60))
		d.x.Done(e, &endpick.Outcome{})
		return bound()
	}
	assert.Equal(t, 1000, end(endpick.Outcome{}))
	assert.Equal(t, 1000, end(endpick.Outcome{Status: endpick.Failed, InputTokens: 640}))
	assert.Equal(t, 1500, end(endpick.Outcome{InputTokens: 640}))
	d.endpoint.KVTokens = 0
	assert.Equal(t, defaultBlocks, end(endpick.Outcome{InputTokens: 640}), "a guess of another kind")
}
