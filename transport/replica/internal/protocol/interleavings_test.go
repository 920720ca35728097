package protocol

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
)

// One replica routes while another joins, and the bus between them delivers, swaps,
// duplicates or loses a message at any point: in every possible order, each request is
// reported at most once, and both agree in the end.
func TestReplicasInAllInterleavings(t *testing.T) {
	n := 0
	rig.Explore(func(choose func(int) int) {
		n++
		w := newWorld(t)
		a := w.join(1, true)
		var b *replica
		var one, two endpick.LeaseRef
		flush := func() {
			a.Flush(w.now)
			w.take(a)
		}
		steps := []func(){
			func() { one = w.route(a, "e", "m", chain([]int{1, 2})); flush() },
			func() { b = w.join(2, true); b.Tick(w.now); w.take(b) },
			func() { w.first(a, one); two = w.route(a, "e", "m", chain([]int{1, 2, 3})); flush() },
			func() { w.done(a, one, endpick.Completed, chain([]int{1, 2, 4})); flush() },
			func() { w.done(a, two, endpick.Canceled, nil); w.route(a, "f", "m", chain([]int{5})); flush() },
		}
		harm := 1 // how many things may go wrong
		if rig.Race {
			harm = 0 // there is only one goroutine
		}
		for len(steps) > 0 || len(w.bus) > 0 {
			var can []func()
			if len(w.bus) > 0 {
				can = append(can, func() { w.deliver(0, false) })
			}
			if len(steps) > 0 {
				can = append(can, func() {
					step := steps[0]
					steps = steps[1:]
					step()
				})
			}
			if harm > 0 && len(w.bus) > 0 {
				can = append(can,
					func() { harm--; w.bus = slices.Delete(w.bus, 0, 1) },
					func() { harm--; w.deliver(0, true) })
				if len(w.bus) > 1 {
					can = append(can, func() { harm--; w.deliver(1, false) })
				}
			}
			can[choose(len(can))]()
			for id, times := range b.seen() {
				require.LessOrEqual(t, times, 1, "request %d", id)
			}
		}
		w.calm(3 * time.Second)
		w.converged()
		for id, times := range b.opened {
			require.Equal(t, 1, times, "request %d", id)
			open := 0
			for _, s := range b.view {
				if s.id == id {
					open++
				}
			}
			require.Equal(t, 1, b.closed[id]+open, "request %d", id)
		}
	})
	t.Logf("%d ways", n)
	if !rig.Race {
		require.Greater(t, n, 1000)
	}
}

// seen is how often a replica has heard of each request.
func (r *replica) seen() map[int]int {
	if r == nil {
		return nil
	}
	return r.opened
}
