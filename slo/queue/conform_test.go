package queue_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/queue"
)

func TestAdmittersConform(t *testing.T) {
	for name, newAdmitter := range map[string]func() endpick.Admitter{
		"reject all":    queue.RejectAll,
		"by saturation": func() endpick.Admitter { return queue.RejectSheddable(nil) },
		"token bucket":  func() endpick.Admitter { return queue.TokenBucket(1<<21, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return newAdmitter() })
		})
	}
}
