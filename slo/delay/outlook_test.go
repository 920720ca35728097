package delay

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// What has to be computed for a prompt, by hand: the last token always, and never more than all.
func TestWhatIsComputed(t *testing.T) {
	for _, x := range []struct {
		input, cached int
		fresh, pairs  float64
	}{{1000, 0, 1000, 1000 * 500}, {1000, 600, 400, 400 * (600 + 200)}, {1000, 1000, 1, 1000.5}, {1000, -5, 1000, 1000 * 500}, {0, 0, 1, 0.5}} {
		fresh, pairs := compute(&endpick.Request{InputTokens: x.input}, x.cached)
		assert.Equal(t, []float64{x.fresh, x.pairs}, []float64{fresh, pairs}, "%+v", x)
	}
}

// A report of fewer requests than this router has there is of none from elsewhere.
func TestNobodyFromElsewhere(t *testing.T) {
	c := endpick.Candidate{Running: 1, InFlight: endpick.InFlight{Requests: 3}}
	assert.Zero(t, external(&c))
	c.Waiting = 4
	assert.Equal(t, 2.0, external(&c))
}

// A single step tells already what is computed beside it.
func TestWhatIsComputedBesideOneStep(t *testing.T) {
	m := fresh(t, 0)
	k := &m.common
	k.note(&amounts{tokens: 50, pairs: 7}, 1)
	var o outlook
	m.look(&o, &asked, &endpick.Candidate{Endpoint: &endpick.Endpoint{}}, nil, k, 300)
	assert.Equal(t, []float64{50, 7}, []float64{o.step[tokens], o.step[pairs]})
}

// Loads are means, to a thousandth of a request; what can't be is capped.
func TestMeanLoads(t *testing.T) {
	mean := func(loads ...float64) float64 {
		cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{Variant: "another"}, Running: 77}}
		for _, v := range loads {
			cs = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{}, Running: v})
		}
		return average(cs, "")
	}
	assert.Zero(t, mean())
	assert.Equal(t, 1.0, mean(0.5, 1.5))
	assert.Equal(t, 0.25, mean(0.25))
	assert.Equal(t, float64(1<<30), mean(1e300, math.Inf(1)))
}

// The silence of a slow endpoint is as long as it is, and not longer at its pace.
func TestSilenceOfASlowEndpoint(t *testing.T) {
	m := fresh(t, horizon)
	m.common.labels = 1
	at := time.Unix(1e9, 0)
	req := asked.At(at, 1, 1)
	c := endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}, Ref: endpick.EndpointRef{Generation: 1}}
	predict := func(expected float64) time.Duration {
		e := m.endpoints.At(c.Ref)
		*e = endpoint{}
		paced(e, nanoseconds(at)-9e9)
		e.wait(nanoseconds(at)-9e9, expected)
		cs := []endpick.Candidate{c}
		m.Predict(&req, cs)
		return cs[0].Prediction.TTFT
	}
	waiting, silent := predict(0), predict(1)
	require.Greater(t, waiting, 6*time.Second, "it is slow")
	assert.InDelta(t, 9*time.Second, silent-waiting, 10)
}

// A limit of one token is a guess like any other.
func TestLengthsOfOneToken(t *testing.T) {
	var l lengths
	unknown := endpick.Request{}
	before := l.of(&unknown)
	l.add("", 1, 1)
	assert.Equal(t, before, l.of(&unknown))
	assert.Equal(t, length{guessed: 1, actual: 1}, l.all)
}

// Times of less than a millisecond weigh no more than one of a millisecond.
func TestShortTimesWeighLittle(t *testing.T) {
	prior := scaled(1e-4)
	var l linear
	l.start(&prior)
	l.label(&amounts{tokens: 10}, 0.001, &prior)
	assert.Equal(t, 100.0, l.products[tokens][tokens])
}

// Blocks may be cut at fractions of tokens, of which multiples are not exact.
func TestBlocksAtFractions(t *testing.T) {
	req := endpick.Request{BlockTokens: 1.4, Blocks: make([]uint64, 60)}
	for i := range req.Blocks {
		req.Blocks[i] = uint64(i + 1)
	}
	for depth, blocks := range map[int]uint64{21: 15, 42: 30, 84: 60} {
		assert.Equal(t, blocks, blockAt(&req, depth), "%d tokens", depth)
	}
}

// Nothing is predicted for a prompt of unknown length.
func TestUnknownLengthsAreNotPredicted(t *testing.T) {
	m := fresh(t, 0)
	m.common.labels = 1
	for input, has := range map[int]endpick.Latencies{0: 0, 1: endpick.TTFT | endpick.TPOT} {
		cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{ID: "a"}, Ref: endpick.EndpointRef{Generation: 1}}}
		req := endpick.Request{InputTokens: input, Stream: true}.At(time.Unix(1e9, 0), 1, 1)
		m.Predict(&req, cs)
		assert.Equal(t, has, cs[0].Prediction.Has, "%d tokens", input)
	}
}
