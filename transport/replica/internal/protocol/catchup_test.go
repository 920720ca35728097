package protocol

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pair returns two replicas that know each other.
func pair(t *testing.T) (w *world, a, b *replica) {
	w = newWorld(t)
	a, b = w.join(1, true), w.join(2, true)
	w.calm(time.Second)
	require.True(t, b.Peers()[0].Live)
	b.order = nil
	return w, a, b
}

// flush sends everything a replica has to say; with lose, none of it arrives.
func (w *world) flush(r *replica, lose bool) {
	r.Flush(w.now)
	w.take(r)
	if lose {
		w.bus = nil
	}
	w.deliverAll()
}

// The snapshot makes up for lost messages, each kind of change in its own way.
func TestWhatWasLost(t *testing.T) {
	w, a, b := pair(t)
	answered := w.route(a, "a", "m", chain([]int{1}))
	ended := w.route(a, "b", "m", chain([]int{1, 1}))
	w.first(a, ended)
	w.flush(a, false)
	w.first(a, answered)
	w.done(a, ended, endpick.Completed, chain([]int{1, 1, 3}))
	late := w.route(a, "c", "n", chain([]int{2}))
	w.flush(a, true)
	b.order = nil
	w.calm(time.Second)
	assert.Equal(t, []string{
		"ended 2 {{lost 0 0 0 false 0s []} 0s 0s}",
		"holds b[1 17 275]",
		"answered 1",
		"opened 3 c n [2]",
	}, b.order)
	w.converged()
	w.done(a, answered, endpick.Completed, nil)
	w.done(a, late, endpick.Completed, nil)
	again := w.route(a, "c", "n", chain([]int{2, 2}))
	b.order = nil
	w.flush(a, false)
	assert.Equal(t, []string{
		"ended 1 {{completed 0 3 0 false 0s []} 100µs 100µs}",
		"ended 3 {{completed 0 3 0 false 0s []} 0s 0s}", // reported late, so without times
		"opened 4 c n [2 34]",                           // in the numbers that names had before
	}, b.order)
	w.done(a, again, endpick.Failed, nil)
}

// A snapshot is outdated if the missing messages have arrived as well.
func TestOldSnapshot(t *testing.T) {
	for _, more := range []bool{true, false} {
		w, a, b := pair(t)
		w.route(a, "a", "m", nil)
		a.Flush(w.now)
		w.take(a)
		missing := w.bus
		w.bus = nil
		w.route(a, "a", "m", nil)
		w.flush(a, false)
		w.tick(b, 200*time.Millisecond)
		for len(w.bus) > 0 && w.bus[0].to == a { // the question, among other messages
			w.deliver(0, false)
		}
		answer := slices.DeleteFunc(slices.Clone(w.bus), func(f flying) bool { return !IsSnapshot(f.payload) })
		require.NotEmpty(t, answer)
		w.bus = slices.DeleteFunc(w.bus, func(f flying) bool { return IsSnapshot(f.payload) })
		w.bus = append(missing, w.bus...)
		w.deliverAll()
		if more { // since the snapshot
			w.route(a, "b", "m", nil)
			w.flush(a, false)
		}
		before := b.Counts().Snapshots
		w.bus = answer
		w.deliverAll()
		assert.Equal(t, before, b.Counts().Snapshots)
		w.converged()
	}
}

// Blocks with an unknown head are asked for until they arrive, or nobody knows them.
func TestUnknownBlocks(t *testing.T) {
	w, a, b := pair(t)
	w.route(a, "a", "m", chain([]int{1, 1}))
	w.flush(a, false)
	b.chains = newChains(0)
	w.route(a, "b", "m", chain([]int{1, 1, 1}))
	b.order = nil
	w.flush(a, false)
	assert.Equal(t, []string{"opened 2 b m []"}, b.order)
	require.Len(t, b.peers[1].wanted, 1)
	w.flush(a, false) // the answer
	assert.Equal(t, []string{"opened 2 b m []", "holds b[1 17 273]"}, b.order)
	assert.Empty(t, b.peers[1].wanted)
	assert.Equal(t, uint64(1), b.Counts().Wanted)
	assert.Equal(t, uint64(1), a.Counts().Repairs)

	b.chains = newChains(0)
	w.route(a, "c", "m", chain([]int{1, 1, 1, 1}))
	a.Flush(w.now)
	a.chains = newChains(0)
	w.take(a)
	w.calm(10 * time.Second)
	assert.Empty(t, b.peers[1].wanted, "it is given up")
	assert.Equal(t, uint64(1), a.Counts().Repairs)
	w.converged()
}

func TestBye(t *testing.T) {
	w, a, b := pair(t)
	w.route(a, "a", "m", nil)
	w.flush(a, false)
	require.Len(t, b.view, 1)
	a.Bye()
	w.flush(a, false)
	assert.Empty(t, b.Peers())
	assert.Empty(t, b.view)
}

func TestNumbers(t *testing.T) {
	n := newNumbers(2, func(s string) string { return s })
	for _, x := range []struct {
		name   string
		number int
		isNew  bool
	}{
		{"a", 0, true}, {"b", 1, true}, {"a", 0, false},
		{"c", 1, true}, // b is the least recently used
		{"a", 0, false}, {"b", 1, true}, {"c", 0, true}, {"b", 1, false}, {"a", 0, true},
	} {
		number, isNew := n.number(x.name)
		assert.Equal(t, x.number, number, x.name)
		assert.Equal(t, x.isNew, isNew, x.name)
	}
	assert.Equal(t, []string{"a", "b"}, n.names)
	assert.Len(t, n.of, 2)
}

func TestChains(t *testing.T) {
	c := newChains(0)
	assert.Equal(t, 0, c.add([]uint64{1, 2, 3}))
	assert.Equal(t, 2, c.add([]uint64{1, 2, 4}))
	got, ok := c.head([]uint64{7}, 4, 3)
	assert.True(t, ok)
	assert.Equal(t, []uint64{7, 1, 2, 4}, got)
	for _, bad := range []struct {
		leaf  uint64
		depth int
	}{{4, 2}, {4, 4}, {5, 1}, {4, -1}, {4, maxChain + 1}} {
		got, ok = c.head([]uint64{7}, bad.leaf, bad.depth)
		assert.False(t, ok)
		assert.Equal(t, []uint64{7}, got)
	}
	// A forged message can't put another head before known blocks.
	assert.Equal(t, 0, c.add([]uint64{9, 2, 3}))
	got, _ = c.head(nil, 3, 3)
	assert.Equal(t, []uint64{1, 2, 3}, got)
	// Blocks known behind another head are unknown here.
	assert.Equal(t, 0, c.add([]uint64{8}))
	assert.Equal(t, 1, c.add([]uint64{8, 2, 3}))
	// Blocks that have lost their head are sent again from there on.
	delete(c.young, 1)
	assert.Equal(t, 0, c.add([]uint64{1, 2, 3}))
	assert.Equal(t, 3, c.add([]uint64{1, 2, 3}))
}

// No endpoint holds what no engine has computed: a snapshot contains a refused
// prompt as little as one that was never sent.
func TestWhatWasRefusedIsNotHeld(t *testing.T) {
	w, a, b := pair(t)
	for i, tc := range []struct {
		status   endpick.Status
		answered bool
		holds    bool
	}{
		{endpick.Failed, false, false}, {endpick.Canceled, false, false}, {endpick.Lost, false, false}, {endpick.Refused, false, false},
		{endpick.Failed, true, true}, {endpick.Canceled, true, true}, {endpick.Completed, false, true},
	} {
		blocks := chain([]int{i + 1, 1})
		ref := w.route(a, "a", "m", blocks)
		if tc.answered {
			w.first(a, ref)
		}
		w.done(a, ref, tc.status, nil)
		w.flush(a, true) // so that b has to ask
		b.order = nil
		w.calm(time.Second)
		if tc.holds {
			assert.Equal(t, []string{fmt.Sprint("holds a", blocks)}, b.order, "%v", tc)
		} else {
			assert.Empty(t, b.order, "%v", tc)
		}
	}
	w.converged()
}

// asks is how many questions are on the bus; it clears the bus.
func (w *world) asks() (n int) {
	for _, f := range w.bus {
		if f.payload[0] == kindAsk {
			n++
		}
	}
	w.bus = nil
	return n
}

// tick lets one replica notice the time.
func (w *world) tick(r *replica, passed time.Duration) {
	w.now = w.now.Add(passed)
	r.Tick(w.now)
	w.take(r)
}

// gap lets b miss a batch of a, and notice it.
func gap(t *testing.T) (w *world, a, b *replica) {
	w, a, b = pair(t)
	w.route(a, "a", "m", nil)
	w.flush(a, true)
	w.route(a, "a", "m", nil)
	a.Flush(w.now)
	w.take(a)
	w.deliver(0, false)
	require.Empty(t, w.bus)
	return w, a, b
}

// A replica that sends what is malformed is asked for a snapshot after four seconds, and believed
// again when it has sent one, even of the same moment.
func TestAfterWhatIsMalformed(t *testing.T) {
	e := newEvil(t)
	asked := e.victim.Counts().Asked
	e.say(e.batch([]byte{0x0f}))
	require.Equal(t, uint64(1), e.victim.Counts().Malformed)
	for range 39 {
		e.now = e.now.Add(100 * time.Millisecond)
		e.say(e.batch(nil)) // it is there
		e.victim.peers[e.instance].heardAt = e.now
		e.tick(e.victim, 0)
	}
	assert.Equal(t, asked, e.victim.Counts().Asked)
	e.now = e.now.Add(100 * time.Millisecond)
	e.tick(e.victim, 0)
	assert.Equal(t, asked+1, e.victim.Counts().Asked)

	e = newEvil(t)
	e.say(e.batch([]byte{0x0f}))
	e.now = e.now.Add(time.Second)
	e.victim.peers[e.instance].askedAt = time.Time{}
	e.tick(e.victim, 0)
	e.snapshot([]byte{0})
	assert.True(t, e.victim.Peers()[0].Live)
}

// When a snapshot has made up for what is missing, nothing is asked for any more.
func TestOneSnapshotIsEnough(t *testing.T) {
	w, _, b := gap(t)
	w.tick(b, 200*time.Millisecond)
	require.Len(t, w.bus, 2) // a question, and a heartbeat
	w.deliverAll()
	require.Len(t, b.view, 2)
	w.tick(b, time.Second)
	assert.Zero(t, w.asks())
}

// What is missing may still arrive for a tenth of a second.
func TestWhatIsLateIsNotAskedFor(t *testing.T) {
	w, _, b := gap(t)
	w.tick(b, 100*time.Millisecond)
	assert.Zero(t, w.asks())
	w.tick(b, time.Millisecond)
	assert.Equal(t, 1, w.asks())
}

// A snapshot that answers no question changes nothing, even if it claims to answer none.
func TestSnapshotsThatNobodyAskedFor(t *testing.T) {
	e := newEvil(t)
	require.Zero(t, e.victim.peers[e.instance].question)
	before := e.victim.Counts()
	e.batches += 5
	e.snapshot([]byte{0})
	assert.Equal(t, before.Snapshots, e.victim.Counts().Snapshots)
	assert.Equal(t, before.Repeated+1, e.victim.Counts().Repeated)
}

// What a replica has not told yet is in none of its snapshots, so that it is not told twice.
func TestSnapshotsEndWithABatch(t *testing.T) {
	w, a, b := gap(t)
	w.tick(b, 200*time.Millisecond)
	w.only(a, kindAsk)
	ref := w.route(a, "b", "n", nil) // and it waits to be told
	w.deliverAll()
	w.first(a, ref)
	w.calm(time.Second)
	w.converged()
	assert.Equal(t, map[int]int{1: 1, 2: 1, 3: 1}, b.opened)
	assert.Equal(t, uint64(0), b.Counts().Malformed)
}

// A first token that a snapshot has told is not told again by the next one, nor by a message.
func TestFirstTokensAreToldOnce(t *testing.T) {
	w, a, b := pair(t)
	ref := w.route(a, "a", "m", nil)
	w.flush(a, false)
	w.first(a, ref)
	for range 2 {
		w.flush(a, true)
		w.calm(time.Second)
		w.route(a, "b", "m", nil)
	}
	assert.Equal(t, map[int]int{1: 1}, b.answered)

	e := newEvil(t)
	ops := requests(1)
	ops.b = append(ops.b, opFirst, 1, opFirst, 1)
	e.say(e.batch(ops.b)) // which checks that effects are consistent
	assert.Equal(t, map[int]int{3: 1}, e.victim.answered)
}

// Of several requests that have ended, the one that was asked for is repaired.
func TestRepairsAreOfWhatWasAskedFor(t *testing.T) {
	w, a, b := pair(t)
	for _, path := range [][]int{{1}, {2}, {3}} {
		w.done(a, w.route(a, "a", "m", chain(path)), endpick.Completed, nil)
	}
	w.flush(a, false)
	for number := range uint64(3) {
		b.order = nil
		a.repair(number)
		w.flush(a, false)
		require.Len(t, b.order, 1)
		assert.Equal(t, []string{"holds a[1]", "holds a[2]", "holds a[3]"}[number], b.order[0])
	}
}

// Of a prompt with more blocks than count, the head is shared.
func TestTheHeadOfALongPromptIsShared(t *testing.T) {
	for _, known := range []bool{false, true} {
		l := newLine(t, 2)
		blocks := numbered(0, maxChain+1)
		if known {
			l.replicas[0].Routed(ref(1), "a", &endpick.Request{}, 0, blocks[:10])
		}
		l.replicas[0].Routed(ref(2), "a", &endpick.Request{}, 0, blocks)
		l.send()
		reported := l.replicas[1].reported
		require.NotEmpty(t, reported)
		assert.Equal(t, blocks[:maxChain], reported[len(reported)-1].Request.Blocks)
		assert.Zero(t, l.replicas[1].Counts().Malformed)
	}
}

// As many blocks are known as the configuration says.
func TestChainsAreBounded(t *testing.T) {
	const most = 100_000
	c := newChains(most)
	longest := 0
	for i := range 3 * most / 64 {
		c.add(numbered(i+1, 64))
		longest = max(longest, c.len())
	}
	assert.Equal(t, most, longest)
}

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

// One replica routes while another joins, and the bus between them delivers, swaps,
// duplicates or loses a message at any point: in every possible order, each request is
// reported at most once, and both agree in the end.
func TestReplicasInAllInterleavings(t *testing.T) {
	n := 0
	rig.Explore(func(choose func(int) int) {
		n++
		w := newWorld(t)
		a := w.join(1, true)
		b := &replica{}
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
			for id, times := range b.opened {
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
