package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// One server that runs one request at a time, of 10 ms each, and a queue that
// dispatches nothing while the server has one.
func TestQueueOrdersByHand(t *testing.T) {
	one := plain
	one.MaxSequences = 1
	work := hand{at(0, 10, 10), at(1, 10, 10), at(2, 10, 10), at(3, 10, 10), at(4, 10, 10)}
	work[3].Priority, work[3].Class, work[3].SLO.TTFT = 1, "urgent", 20*time.Millisecond
	work[4].Priority = -1
	cfg := Config{
		Router: named("round-robin"), Fleet: Fleet(1, one), Workload: work,
		Queue: &Queue{Saturation: queue.Concurrency{}, Bounds: queue.Config{MaxRequests: 3, Timeout: 25 * time.Millisecond}},
	}
	rep := mustRun(t, cfg)
	// The first runs until 10 ms; three wait and the sheddable fifth finds no room. At 10
	// ms the urgent one goes first, at 20 the second; the third has waited 25 ms at 27.
	require.Equal(t, []float64{0, 7, 19}, rep.Queue.Wait.Samples())
	require.Equal(t, QueueReport{Dispatched: 3, TimedOut: 1, Refused: 1, Wait: rep.Queue.Wait}, *rep.Queue)
	require.Equal(t, []float64{1, 8, 20}, rep.TTFT.Samples())
	require.Equal(t, 2, rep.Rejected)
	require.Equal(t, 1.0, *rep.SLOAttainment)

	// Without the queue the urgent one waits for its turn in the engine.
	cfg.Queue = nil
	rep = mustRun(t, cfg)
	require.Equal(t, 5, rep.Completed)
	require.Equal(t, 0.0, *rep.SLOAttainment)
	require.Nil(t, rep.Queue)

	cfg.Queue = &Queue{Bounds: queue.Config{MaxRequests: -1}}
	_, err := Run(cfg)
	require.ErrorIs(t, err, endpick.ErrConfig)
}
