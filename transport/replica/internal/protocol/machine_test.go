package protocol

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// drawRef draws a request in flight at a replica; false if there is none.
func drawRef(t *rapid.T, r *replica) (endpick.LeaseRef, bool) {
	refs := slices.SortedFunc(maps.Keys(r.open), func(a, b endpick.LeaseRef) int { return int(a.Slot) - int(b.Slot) })
	if len(refs) == 0 {
		return endpick.LeaseRef{}, false
	}
	return rapid.SampledFrom(refs).Draw(t, "request"), true
}

// activity is what replicas do by themselves.
func activity(w *world) map[string]func(*rapid.T) {
	pick := func(t *rapid.T) *replica {
		if len(w.replicas) == 0 {
			t.Skip("none")
		}
		return w.replicas[rapid.IntRange(0, len(w.replicas)-1).Draw(t, "replica")]
	}
	path := rapid.SliceOfN(rapid.IntRange(1, 2), 0, 5)
	return map[string]func(*rapid.T){
		"route": func(t *rapid.T) {
			r := pick(t)
			w.route(r, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "endpoint"), rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), chain(path.Draw(t, "blocks")))
		},
		"first": func(t *rapid.T) {
			r := pick(t)
			if ref, ok := drawRef(t, r); ok && !r.open[ref].answered {
				w.first(r, ref)
			}
		},
		"done": func(t *rapid.T) {
			r := pick(t)
			ref, ok := drawRef(t, r)
			if !ok {
				return
			}
			var whole []uint64
			if blocks := r.open[ref].blocks; len(blocks) > 0 {
				_, n := parentOf(blocks[len(blocks)-1])
				whole = slices.Clone(blocks)
				for range rapid.IntRange(0, 3).Draw(t, "more") {
					if n < 15 {
						whole = append(whole, whole[len(whole)-1]<<4|3)
						n++
					}
				}
			}
			status := rapid.SampledFrom([]endpick.Status{endpick.Completed, endpick.Completed, endpick.Failed, endpick.Canceled}).Draw(t, "status")
			w.done(r, ref, status, whole)
		},
		"outcomes": func(t *rapid.T) { pick(t).Outcomes("a", 1, 2) },
		"flush": func(t *rapid.T) {
			r := pick(t)
			r.Flush(w.now)
			w.take(r)
		},
	}
}

// However messages are lost, duplicated, delayed, reordered and forged, and replicas come
// and go: each reported effect is consistent, and once the bus works again, all replicas
// agree on what is in flight and what endpoints hold.
func TestLossyBus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		instance := uint32(0)
		join := func() { instance++; w.join(instance, true) }
		join()
		join()
		actions := activity(w)
		actions["deliver"] = func(t *rapid.T) {
			if len(w.bus) > 0 {
				w.deliver(0, false)
			}
		}
		actions["deliver some"] = func(t *rapid.T) {
			for range min(len(w.bus), 20) {
				w.deliver(0, false)
			}
		}
		actions["deliver any, perhaps again"] = func(t *rapid.T) {
			if len(w.bus) > 0 {
				w.deliver(rapid.IntRange(0, len(w.bus)-1).Draw(t, "which"), rapid.Bool().Draw(t, "again"))
			}
		}
		actions["lose"] = func(t *rapid.T) {
			if len(w.bus) > 0 {
				i := rapid.IntRange(0, len(w.bus)-1).Draw(t, "which")
				w.bus = slices.Delete(w.bus, i, i+1)
			}
		}
		actions["forge"] = func(t *rapid.T) {
			if len(w.bus) > 0 {
				f := w.bus[rapid.IntRange(0, len(w.bus)-1).Draw(t, "which")]
				forged := slices.Clone(f.payload)
				forged[rapid.IntRange(0, len(forged)-1).Draw(t, "byte")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
				f.to.Receive(w.now, forged)
				w.take(f.to)
			}
		}
		actions["tick"] = func(t *rapid.T) {
			w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{-100, 1, 60, 300, 2500}).Draw(t, "ms")) * time.Millisecond)
			for _, r := range w.replicas {
				r.Tick(w.now)
				w.take(r)
			}
		}
		actions["join"] = func(t *rapid.T) {
			if len(w.replicas) < 4 {
				join()
			}
		}
		actions["die"] = func(t *rapid.T) {
			if len(w.replicas) > 1 {
				w.leave(w.replicas[rapid.IntRange(0, len(w.replicas)-1).Draw(t, "replica")])
			}
		}
		t.Repeat(actions)
		w.calm(6 * time.Second)
		w.converged()
		for _, r := range w.replicas {
			for _, o := range w.replicas {
				if o == r {
					continue
				}
				for _, x := range o.ended {
					if x.answered && len(x.blocks) > 0 {
						require.Contains(t, r.holds, at(x.endpoint, x.blocks[len(x.blocks)-1]), "replica %d of request %d of %d", r.instance, x.id, o.instance)
					}
				}
			}
		}
	})
}
