package preset_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
)

// held is a matcher with Displaced.
type held struct{ asked int }

func (*held) Match(*endpick.Request, []endpick.Candidate) {}

func (h *held) Displaced(*endpick.Request, *endpick.Candidate) float64 { h.asked++; return 0 }

// silent is a matcher without it.
type silent struct{ _ int }

func (*silent) Match(*endpick.Request, []endpick.Candidate) {}

// A preset that keeps an index asks that for displaced blocks, not one that is never notified.
func TestKeepAsksTheIndexThatIsKept(t *testing.T) {
	for name, asks := range map[string]bool{
		"predicted-latency": true, "predicted-latency:most": true, "predicted-latency:no-claims": false, "predicted-latency:no-neighbours": false,
	} {
		h := &held{}
		c, err := preset.Keep(name, endpick.Policy{Matcher: h})
		require.NoError(t, err, name)
		assert.Equal(t, name, c.Policy.Name)
		assert.Same(t, h, c.Policy.Matcher)
		const has = endpick.TTFT | endpick.TPOT
		req := endpick.Request{Stream: true, InputTokens: 100}.At(time.Unix(1e9, 0), 1, 1)
		candidates := []endpick.Candidate{{Endpoint: &endpick.Endpoint{}, Prediction: endpick.Prediction{Has: has, TTFT: 1, TPOT: 1}}}
		c.Policy.Scorers[0].Scorer.Score(&req, candidates, make([]float64, 1))
		assert.Equal(t, asks, h.asked > 0, name)
		// A matcher without Displaced is kept, too.
		c, err = preset.Keep(name, endpick.Policy{Matcher: &silent{}})
		require.NoError(t, err, name)
		assert.IsType(t, &silent{}, c.Policy.Matcher)
	}
}

// What has been learned is kept if it is of use.
func TestKeep(t *testing.T) {
	learned, err := preset.ByName("predicted-latency")
	require.NoError(t, err)
	for _, name := range []string{"predicted-latency", "predicted-latency:no-warmup", "predicted-latency:synchronous"} {
		c, err := preset.Keep(name, learned.Policy)
		require.NoError(t, err)
		assert.Same(t, learned.Policy.Predictor, c.Policy.Predictor, name)
		assert.Same(t, learned.Policy.Matcher, c.Policy.Matcher, name)
	}
	c, err := preset.Keep("marginal-delay", learned.Policy)
	require.NoError(t, err)
	assert.Same(t, learned.Policy.Matcher, c.Policy.Matcher)
	assert.NotEqual(t, learned.Policy.Predictor, c.Policy.Predictor)
	c, err = preset.Keep("predicted-latency", endpick.Policy{})
	require.NoError(t, err)
	assert.IsType(t, &prefix.Index{}, c.Policy.Matcher, "there was none to keep")
	assert.IsType(t, &predict.Latency{}, c.Policy.Predictor)
	c, err = preset.Keep("random", learned.Policy)
	require.NoError(t, err)
	assert.Nil(t, c.Policy.Matcher, "nobody would ask it")
	_, err = preset.Keep("no such", learned.Policy)
	assert.ErrorAs(t, err, new(*preset.UnknownError))
}
