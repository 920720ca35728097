package queue_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

func TestSaturationAdmitter(t *testing.T) {
	cs := reporting(2)
	cs[0].Waiting, cs[1].Waiting = 6, 4
	for _, tc := range []struct {
		name     string
		admitter endpick.Admitter
		priority int
		rejected bool
	}{
		{"full", queue.RejectSheddable(nil), -1, true},
		{"not sheddable", queue.RejectSheddable(nil), 0, false},
		{"room by another measure", queue.RejectSheddable(queue.Concurrency(0)), -1, false},
	} {
		req := endpick.Request{Priority: tc.priority}
		err := tc.admitter.Admit(&req, cs)
		if !tc.rejected {
			assert.NoError(t, err, tc.name)
			continue
		}
		require.ErrorAs(t, err, new(*queue.SaturatedError), tc.name)
		assert.EqualError(t, err, "queue: saturated: 1.00 of capacity is taken and priority -1 can be shed")
	}
}
