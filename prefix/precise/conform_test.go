package precise_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestStagesConform(t *testing.T) {
	newIndex := func(t *testing.T) *precise.Index {
		x, err := precise.New(precise.Config{})
		require.NoError(t, err)
		return x
	}
	scorertest.RunMatcher(t, func(t *testing.T) endpick.Matcher { return newIndex(t) })
	t.Run("observer", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any { return newIndex(t).Observer().([]any)[0] })
	})
}
