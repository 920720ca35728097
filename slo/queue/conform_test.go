package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/queue"
)

func TestAdmittersConform(t *testing.T) {
	for name, newAdmitter := range map[string]func() (endpick.Admitter, error){
		"reject all":    func() (endpick.Admitter, error) { return queue.RejectAll{}, nil },
		"by saturation": func() (endpick.Admitter, error) { return queue.Admitter{}, nil },
		"token bucket": func() (endpick.Admitter, error) {
			return queue.NewTokenBucket(queue.TokenBucketConfig{Capacity: 1 << 21, Refill: 1000})
		},
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunAdmitter(t, func(t *testing.T) endpick.Admitter {
				a, err := newAdmitter()
				require.NoError(t, err)
				return a
			})
		})
	}
}
