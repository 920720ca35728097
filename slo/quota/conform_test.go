package quota_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/quota"
)

func TestStagesConform(t *testing.T) {
	newQuota := func(t *testing.T) endpick.Admitter {
		q, err := quota.New(quota.Config{Limits: func(string) quota.Limits {
			return quota.Limits{Rate: 1000, Burst: 1 << 22, Requests: 2}
		}})
		require.NoError(t, err)
		return q
	}
	scorertest.RunAdmitter(t, newQuota)
	t.Run("observer", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any { return newQuota(t) })
	})
}
