package predict

import (
	"testing"

	"github.com/endpick/endpick/internal/learn"
	"github.com/stretchr/testify/require"
)

func TestDisableStrata(t *testing.T) {
	for target := range targets {
		plain := LatencyConfig{DisableStrata: true}
		w, err := learn.NewWindow(plain.learner(target).Window)
		require.NoError(t, err)
		require.Equal(t, 1, w.Buckets())
		stratified := LatencyConfig{}
		w, err = learn.NewWindow(stratified.learner(target).Window)
		require.NoError(t, err)
		require.Equal(t, 10*4*5*8, w.Buckets(), "ten of KV usage, four of prefix share, five of the queue, eight of variants")
	}
}
