package predict_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestStagesConform(t *testing.T) {
	newLatency := func(t *testing.T) predict.Latency {
		l, err := predict.NewLatency(predict.LatencyConfig{Synchronous: true, Trees: 8})
		require.NoError(t, err)
		return l
	}
	scorertest.RunPredictor(t, func(t *testing.T) endpick.Predictor { return newLatency(t) })
	t.Run("observer", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any { return newLatency(t) })
	})
}
