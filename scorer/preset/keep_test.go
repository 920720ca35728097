package preset_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
)

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
