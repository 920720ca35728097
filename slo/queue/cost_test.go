package queue_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Many tenants, or many priorities, with one small request each, make room for a
// large one: that takes no longer than a few times their pushes did. A push that
// scans all tenants for each one it drops would take hundreds of times as long.
// The margin is wide, and the fastest of several runs counts, since a machine may
// be busy.
func TestQueueMakesRoomAsFastAsItFills(t *testing.T) {
	rig.SkipUnderRace(t, "it measures time")
	const n = 6000
	for _, tc := range []struct {
		name  string
		small func(i int) queue.Item[int]
		large queue.Item[int]
		want  error
	}{
		{"tenants", func(i int) queue.Item[int] { return queue.Item[int]{Tenant: fmt.Sprint(i), Tokens: 1, Priority: -1} },
			queue.Item[int]{Tokens: n}, nil},
		{"priorities", func(i int) queue.Item[int] { return queue.Item[int]{Tokens: 1, Priority: -1 - i} }, queue.Item[int]{Tokens: n}, nil},
		{"equals that hold more", func(i int) queue.Item[int] { return queue.Item[int]{Tenant: fmt.Sprint(i % 2), Tokens: 1} },
			queue.Item[int]{Tenant: "other", Tokens: n / 4}, nil},
		// Dropping the sheddable ones is not enough.
		{"in vain", func(i int) queue.Item[int] {
			return queue.Item[int]{Tenant: fmt.Sprint(i), Tokens: 1, Priority: min(i-1, 0)}
		},
			queue.Item[int]{Tokens: n, Priority: 0}, queue.ErrFull},
		// The newcomer's tenant holds more than half once three tenths are dropped.
		{"in vain after many", func(i int) queue.Item[int] { return queue.Item[int]{Tenant: "a", Tokens: 1} },
			queue.Item[int]{Tenant: "b", Tokens: n * 7 / 10}, queue.ErrFull},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fastest := math.Inf(1)
			const most = 50
			for runs := 0; runs < 10 && fastest >= most; runs++ {
				dropped := 0
				q := rig.Must(queue.New(queue.Config{MaxRequests: 2 * n, MaxTokens: n}, func(queue.Item[int], error) { dropped++ }))
				start := time.Now()
				for i := range n {
					require.NoError(t, rig.Err(q.Push(epoch, tc.small(i))))
				}
				filled := time.Now()
				_, err := q.Push(epoch, tc.large)
				ratio := float64(time.Since(filled)) / float64(filled.Sub(start))
				if tc.want == nil {
					require.NoError(t, err)
					require.Equal(t, tc.large.Tokens, dropped)
				} else {
					require.ErrorIs(t, err, tc.want)
				}
				fastest = min(fastest, ratio)
			}
			assert.Less(t, fastest, float64(most), "times as long as to fill it")
		})
	}
}
