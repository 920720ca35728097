package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

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
		ref := w.route(a, "a", "m", chain(path))
		w.done(a, ref, endpick.Completed, nil)
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
