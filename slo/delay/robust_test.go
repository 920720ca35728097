package delay

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The bounds are three times what came first, and move by e^0.25 for a value outside, back by a
// hundredth of that for one inside.
func TestClipByHand(t *testing.T) {
	var q clip
	assert.InDelta(t, 100, q.of(100), 1e-9)
	assert.InDelta(t, math.Exp(1-0.0025), math.Exp(q.high)/100, 1e-9)
	assert.InDelta(t, math.Exp(-1+0.0025), math.Exp(q.low)/100, 1e-9)
	assert.InDelta(t, 100*math.Exp(1-0.0025), q.of(1e12), 1e-9)
	assert.InDelta(t, 100*math.Exp(1-0.005+0.25), q.of(1e12), 1e-9)
	assert.InDelta(t, 100*math.Exp(-1+0.0075), q.of(0), 1e-9)
	assert.InDelta(t, 100*math.Exp(-1+0.01-0.25), q.of(0), 1e-9)
	// About one in a hundred is outside on either side.
	for i := range 100_000 {
		q.of(float64(1 + i*7919%1000))
	}
	assert.InDelta(t, 1100, math.Exp(q.high), 150)
	assert.InDelta(t, 13, math.Exp(q.low), 8)
}

// A tenant that sends 31 of 32 requests has one vote, like the one that sends the other.
func TestVotesByHand(t *testing.T) {
	var v votes
	assert.Equal(t, 1/32., v.of(7), "who is alone")
	for range 100 {
		require.Equal(t, 1/32., v.of(7))
	}
	assert.Equal(t, 1.0, v.of(8))
	assert.Equal(t, 1/31., v.of(7))
	assert.Equal(t, 1/2., v.of(8))
	for i := range uint64(32) {
		v.of(100 + i)
	}
	assert.Equal(t, 1.0, v.of(8), "it is long ago")
}

// newCrowd is a router that has served many ordinary requests.
func newCrowd(t *testing.T) *lone {
	c := newLone(t)
	c.serve("", 600, 0)
	return c
}

// serve serves so many requests of a tenant: 0.1 ms for each token of a prompt, and 15 ms for each
// of the response, with first seconds of waiting.
func (c *lone) serve(tenant string, times int, first float64) {
	for i := range times {
		input, output := 500+i*37%1000, 100+i*7%200
		req := endpick.Request{Tenant: tenant, InputTokens: input, ExpectedOutputTokens: i % 2 * (100 + i*13%200), Stream: true}
		c.one(req, first+float64(input)*1e-4+0.02, float64(output-1)*0.015, endpick.Outcome{OutputTokens: output})
	}
}

func (c *lone) one(req endpick.Request, first, rest float64, o endpick.Outcome) {
	req.Model = "m"
	l := rig.Must(c.router.Route(req))
	wait := func(s float64) { c.now = c.now.Add(time.Duration(s * 1e9)) }
	if first > 0 {
		wait(first)
		if req.Stream {
			l.FirstToken()
		}
		wait(rest)
		l.Tokens(10)
	}
	l.Done(o)
}

// state is what decisions depend on: w, c, n without a guess and with one, k, k̄, and in how many steps others computed.
func (c *lone) state() []float64 {
	l := &c.m.learned
	k := l.kinds.known[kindName{model: "m"}]
	return []float64{
		c.m.weight(&asked), l.crowding(), l.lengths.of(&endpick.Request{}), l.lengths.of(&endpick.Request{ExpectedOutputTokens: 150}),
		k.each[tokens] * 1000, k.of(&amounts{steps: 100, batches: 200, contexts: 100_000}), l.again.or(l.common.each[tokens]) * 1000, k.meanSteps,
	}
}

// Whatever one request, client, engine or leap of the clock says, nothing that decisions depend on
// moves by more than a few percent.
func TestOneAbsurdNumberMovesNothing(t *testing.T) {
	for name, x := range map[string]struct {
		input, guess int
		first, rest  float64 // seconds
		o            endpick.Outcome
	}{
		"a guess":                    {1000, math.MaxInt32, 0.1, 2, endpick.Outcome{OutputTokens: 200}},
		"a guess of one token":       {1000, 1, 0.1, 2, endpick.Outcome{OutputTokens: 20_000}},
		"an engine's count":          {1000, 150, 0.1, 2, endpick.Outcome{OutputTokens: math.MaxInt32}},
		"an engine's count, unasked": {1000, 0, 0.1, 2, endpick.Outcome{OutputTokens: math.MaxInt32}},
		"an hour before a token":     {1000, 150, 3600, 2, endpick.Outcome{OutputTokens: 150}},
		"an hour after one":          {1000, 150, 0.1, 3600, endpick.Outcome{OutputTokens: 150}},
		"no time at all":             {1000, 150, 1e-9, 1e-9, endpick.Outcome{OutputTokens: 150}},
		"a prompt's length":          {math.MaxInt32, 150, 0.1, 2, endpick.Outcome{OutputTokens: 150}},
		"cached tokens":              {1000, 150, 0.1, 2, endpick.Outcome{OutputTokens: 150, HasCachedTokens: true, CachedTokens: math.MaxInt32}},
	} {
		for _, stream := range []bool{true, false} {
			c := newCrowd(t)
			before := c.state()
			c.one(endpick.Request{InputTokens: x.input, ExpectedOutputTokens: x.guess, Stream: stream}, x.first, x.rest, x.o)
			for i, v := range c.state() {
				assert.InEpsilon(t, before[i], v, 0.05, "%s: %d, stream %v", name, i, stream)
			}
		}
	}
}

// What is refused, or fails, teaches nothing.
func TestRefusedRequestsTeachNothing(t *testing.T) {
	for _, status := range []endpick.Status{endpick.Failed, endpick.Lost, endpick.Canceled} {
		c := newCrowd(t)
		before := c.m.learned
		known := *before.kinds.known[kindName{model: "m"}]
		for range 100 {
			c.one(endpick.Request{InputTokens: 1e6, ExpectedOutputTokens: 1e6, Stream: true}, 0, 0, endpick.Outcome{Status: status, OutputTokens: 5})
			c.one(endpick.Request{InputTokens: 1e6, ExpectedOutputTokens: 1e6, Model: "other"}, 0, 0, endpick.Outcome{Status: status, OutputTokens: 5})
		}
		assert.Equal(t, before, c.m.learned)
		assert.Equal(t, known, *c.m.learned.kinds.known[kindName{model: "m"}])
		for _, e := range c.m.endpoints.All() {
			assert.Zero(t, e.pairs)
			assert.Zero(t, e.decoding)
		}
	}
}

// A tenant that sends nine in ten requests, all of them odd, has as much to say about what all
// share as the one that sends the rest.
func TestAFloodHasOneVote(t *testing.T) {
	c := newCrowd(t)
	for range 300 {
		c.serve("flood", 9, 10)
		c.serve("quiet", 1, 0.1)
	}
	// The mean of 10 s and 0.1 s, each with one vote of about 29 and 3 of 32.
	assert.InDelta(t, (10_000+200)/2, c.m.learned.first.or(0), 1000)
}

// One more kind than fits costs one its place, not all in turn; and whoever is used most gets one.
func TestKindsGiveWay(t *testing.T) {
	const most = 8
	var s kinds
	s.most, s.known = most, map[kindName]*kind{}
	var common kind
	name := func(i int) kindName { return kindName{model: fmt.Sprint("m", i)} }
	lost := 0
	for round := range 1000 {
		for i := range most + 1 {
			before := s.known[name(i)]
			s.admit(name(i), &common)
			if round > 0 && before == nil {
				lost++
			}
		}
		require.LessOrEqual(t, len(s.known), most)
	}
	assert.Less(t, lost, 1100, "one in each round")
	assert.Len(t, s.known, most)

	// One that comes as often as others soon has a place, although some come once between.
	for i := range 400 {
		s.admit(name(i%most), &common)
		s.admit(kindName{model: "new"}, &common)
		if i%2 == 0 {
			s.admit(kindName{model: fmt.Sprint("once", i)}, &common)
		}
	}
	assert.Contains(t, s.known, kindName{model: "new"})
	for i := range 2000 {
		s.admit(kindName{model: fmt.Sprint("once", i)}, &common)
	}
	assert.Contains(t, s.known, kindName{model: "new"}, "a thousand that come once displace nobody")

	// By hand: two places; a is used three times, b twice.
	s = kinds{most: 2, known: map[kindName]*kind{}}
	use := func(names ...string) {
		for _, n := range names {
			s.admit(kindName{model: n}, &common)
		}
	}
	use("a", "a", "a", "b", "b", "c", "c")
	assert.NotContains(t, s.known, kindName{model: "c"}, "twice is no more often")
	use("c")
	assert.NotContains(t, s.known, kindName{model: "b"})
	assert.InDelta(t, 3, s.known[kindName{model: "c"}].uses.count, 0.01)
	use("b", "d", "b", "d", "b", "d", "b", "d") // each takes from the other
	assert.Len(t, s.known, 2)
	assert.Contains(t, s.known, kindName{model: "a"})
	assert.Contains(t, s.known, kindName{model: "c"})
}

// Of equally used kinds the first by name gives way, whatever the order of a map.
func TestTheLeastUsedKindIsTheSame(t *testing.T) {
	for range 20 {
		s := kinds{most: 4, known: map[kindName]*kind{}, total: 9}
		for _, n := range []kindName{{"b", "x"}, {"a", "y"}, {"a", "x"}, {"c", ""}} {
			s.known[n] = &kind{uses: fading{1, 9}}
		}
		require.Equal(t, kindName{"a", "x"}, s.leastUsed())
		s.known[kindName{"c", ""}].uses = fading{1, 8}
		require.Equal(t, kindName{"c", ""}, s.leastUsed(), "it was used earlier")
	}
}

// Names that are too long have no place.
func TestLongNamesHaveNoPlace(t *testing.T) {
	s := kinds{most: 1, known: map[kindName]*kind{}}
	long := string(make([]byte, maxName+1))
	s.admit(kindName{model: long}, &kind{})
	s.admit(kindName{variant: long}, &kind{})
	assert.Empty(t, s.known)
	s.admit(kindName{model: long[1:], variant: long[1:]}, &kind{})
	assert.Len(t, s.known, 1)
	for range 9 {
		s.admit(kindName{model: long}, &kind{})
	}
	assert.Zero(t, s.nextUses)
}
