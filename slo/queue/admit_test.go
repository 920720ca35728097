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
		admitter queue.Admitter
		priority int
		want     error
	}{
		{"full", queue.Admitter{}, -1, queue.ErrSaturated},
		{"not sheddable", queue.Admitter{}, 0, nil},
		{"room by another measure", queue.Admitter{By: queue.Concurrency{}}, -1, nil},
	} {
		req := endpick.Request{Priority: tc.priority}
		err := tc.admitter.Admit(&req, cs)
		if tc.want == nil {
			assert.NoError(t, err, tc.name)
			continue
		}
		require.ErrorIs(t, err, tc.want, tc.name)
		assert.EqualError(t, err, "queue: saturated: 1.00 of capacity is taken and priority -1 can be shed")
	}
}
