package protocol

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
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
		testOldSnapshot(t, more)
	}
}

func testOldSnapshot(t *testing.T, more bool) {
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
