package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// only leaves on the bus the messages of one kind to one replica.
func (w *world) only(to *replica, kind byte) {
	w.bus = slices.DeleteFunc(w.bus, func(f flying) bool { return f.to != to || f.payload[0] != kind })
}

// askForMuch returns two replicas, and the question of the second for a snapshot of the first,
// which has many parts.
func askForMuch(t *testing.T) (w *world, a, b *replica, question flying) {
	w, a, b = pair(t)
	for i := range 2000 {
		w.route(a, fmt.Sprint("endpoint-", i%50), strings.Repeat("m", i%200), chain([]int{1 + i%8, 1 + i/8%8, 1 + i/64%8, 1 + i/512%8}))
	}
	for range 1000 { // in many batches, so that none is too long
		a.Flush(w.now)
		a.Drain()
	}
	w.now = w.now.Add(time.Second)
	w.route(a, "a", "m", nil)
	w.flush(a, false)
	w.deliverAll()
	w.tick(b, time.Second)
	w.only(a, kindAsk)
	require.Len(t, w.bus, 1)
	return w, a, b, w.bus[0]
}

// Only the answer to the latest question counts: parts of two answers are never combined.
func TestAnswersToOldQuestions(t *testing.T) {
	w, a, b := pair(t)
	lose := func() {
		w.route(a, "a", "m", nil)
		w.flush(a, true)
	}
	ask := func() (answer []flying) {
		w.now = w.now.Add(time.Second)
		a.Tick(w.now)
		b.Tick(w.now)
		w.take(a)
		w.take(b)
		w.bus = slices.DeleteFunc(w.bus, func(f flying) bool { return f.to == b }) // except what shows that something is missing
		require.NotEmpty(t, w.bus)
		for len(w.bus) > 0 && w.bus[0].to == a {
			w.deliver(0, false)
		}
		w.only(b, kindPart)
		answer, w.bus = w.bus, nil
		require.Len(t, answer, 1)
		return answer
	}
	lose()
	w.route(a, "a", "m", nil)
	w.flush(a, false)
	old := ask()
	lose()
	answer := ask()
	before := b.Counts()
	w.bus = old
	w.deliver(0, false)
	assert.Equal(t, before.Snapshots, b.Counts().Snapshots)
	assert.Equal(t, before.Repeated+1, b.Counts().Repeated)
	w.bus = answer
	w.deliver(0, false)
	assert.Equal(t, before.Snapshots+1, b.Counts().Snapshots)
	w.calm(time.Second)
	w.converged()
}

// A question that arrives twice is answered twice, each time from the current state: parts of the
// two answers are never combined.
func TestAnswersToOneQuestionAskedTwice(t *testing.T) {
	w, a, b, question := askForMuch(t)
	answer := func() (parts []flying) {
		w.bus = []flying{question}
		w.deliver(0, false)
		w.only(b, kindPart)
		parts, w.bus = w.bus, nil
		return parts
	}
	deliver := func(parts []flying) {
		for _, f := range parts {
			w.bus = []flying{f}
			w.deliver(0, false)
		}
	}
	first := answer()
	w.route(a, "a", "m", nil)
	w.flush(a, true)
	second := answer()
	require.Greater(t, len(first), 2)
	require.Len(t, second, len(first))
	before := b.Counts()
	deliver(first[:1])
	deliver(second)
	require.Equal(t, before.Snapshots, b.Counts().Snapshots)
	deliver(first[1:])
	require.Equal(t, before.Snapshots+1, b.Counts().Snapshots)
	w.calm(time.Second)
	w.converged()
}

// A silent replica is forgotten after its time, not before; the time by which a clock was
// wrong does not count.
func TestSilence(t *testing.T) {
	w, a, b := pair(t)
	w.route(a, "a", "m", nil)
	w.flush(a, false)
	heard := w.now
	tick := func(after time.Duration) int {
		w.now = heard.Add(after)
		b.Tick(w.now)
		w.take(b)
		w.bus = nil
		return b.mirrored
	}
	assert.Equal(t, 1, tick(1900*time.Millisecond))
	assert.Equal(t, 1, tick(2*time.Second))
	assert.Zero(t, tick(2*time.Second+1))
}

// Blocks that were asked for, and whose answer was lost, come with the next snapshot, even
// if their request is known to have ended; they are not asked for again.
func TestLostRepairOfWhatHasEnded(t *testing.T) {
	w, a, b := pair(t)
	w.route(a, "a", "m", chain([]int{1, 1}))
	w.flush(a, false)
	b.chains = newChains(0)
	second := w.route(a, "b", "m", chain([]int{1, 1, 1}))
	w.first(a, second)
	a.Flush(w.now)
	w.take(a)
	w.deliver(0, false) // b asks for the head
	w.bus = nil         // in vain
	w.done(a, second, endpick.Completed, nil)
	w.flush(a, false)
	require.Len(t, b.peers[1].wanted, 1)
	require.Len(t, b.view, 1)
	w.route(a, "a", "m", nil)
	w.flush(a, true)
	w.route(a, "a", "m", nil)
	w.flush(a, false)
	b.order = nil
	w.tick(b, 200*time.Millisecond)
	w.deliverAll()
	assert.Equal(t, []string{"holds b[1 17 273]", "opened 3 a m []", "opened 4 a m []"}, b.order)
	assert.Empty(t, b.peers[1].wanted)
}

// A want is asked for once a second, five times, and awaited for a second after that.
func TestWantsAreAskedInTime(t *testing.T) {
	w, a, b := pair(t)
	w.route(a, "a", "m", chain([]int{1, 1}))
	w.flush(a, false)
	b.chains = newChains(0)
	w.route(a, "b", "m", chain([]int{1, 1, 1}))
	a.Flush(w.now)
	w.take(a)
	w.deliver(0, false)
	var asked []time.Duration
	awaited := time.Duration(0)
	for at := time.Duration(0); at < 10*time.Second; at += 50 * time.Millisecond {
		for _, f := range w.bus {
			if f.payload[0] == kindWant {
				asked = append(asked, at)
			}
		}
		w.bus = nil
		if len(b.peers[1].wanted) > 0 {
			awaited = at
		}
		b.peers[1].heardAt = w.now // pretend it is present
		w.tick(b, 50*time.Millisecond)
	}
	assert.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, asked)
	assert.Equal(t, 4950*time.Millisecond, awaited)
}

// The next turn continues where the last response ended, and all replicas know the response's
// blocks.
func TestResponsesAreKnownToAll(t *testing.T) {
	w, a, b := pair(t)
	ref := w.route(a, "a", "m", chain([]int{1, 1}))
	w.first(a, ref)
	w.done(a, ref, endpick.Completed, chain([]int{1, 1, 2, 3}))
	w.flush(a, false)
	for _, r := range []*replica{a, b} { // each routes the next turn
		blocks := r.Counts().Blocks
		w.route(r, "a", "m", chain([]int{1, 1, 2, 3, int(r.instance)}))
		assert.Equal(t, blocks+1, r.Counts().Blocks)
		w.flush(r, false)
	}
	assert.Zero(t, a.Counts().Wanted+b.Counts().Wanted)
	assert.True(t, b.holds[at("a", 0x11231)])
	assert.True(t, a.holds[at("a", 0x11232)])
}

// A replica that shares load only sends no blocks, whatever the host gives it, and wants none.
func TestLoadAlone(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(1, false), w.join(2, true)
	w.calm(time.Second)
	ref := w.route(a, "a", "m", chain([]int{1, 2}))
	w.first(a, ref)
	b.order = nil
	w.flush(a, false)
	w.done(a, ref, endpick.Completed, chain([]int{1, 2, 3}))
	w.flush(a, false)
	assert.Equal(t, []string{"opened 1 a m []", "answered 1", "ended 1 {{completed 0 3 0 false 0s []} 100µs 100µs}"}, b.order)
	w.route(b, "a", "m", chain([]int{1, 1}))
	w.route(b, "a", "m", chain([]int{1, 1, 1})) // after what is known
	w.flush(b, false)
	require.Len(t, a.view, 2)
	assert.Zero(t, a.Counts().Blocks+a.Counts().Wanted)
	assert.Zero(t, a.chains.len())
}

// Nothing that is kept of a request aliases its body.
func TestNoBodyIsKept(t *testing.T) {
	w := newWorld(t)
	a := w.join(1, true)
	body := strings.Repeat("model", 1000)
	refs := []endpick.LeaseRef{w.route(a, "a", body[:5], nil), w.route(a, "a", body[5:10], nil)}
	for _, ref := range refs {
		kept := a.log.open[ref].class.Model
		assert.Equal(t, "model", kept)
		assert.NotSame(t, unsafe.StringData(body), unsafe.StringData(kept))
		assert.NotSame(t, unsafe.StringData(body[5:]), unsafe.StringData(kept))
	}
}

// Of ended requests the newest are remembered, and of these the newest are sent: as many as
// fit.
func TestTheNewestIsTold(t *testing.T) {
	l := newLine(t, 2)
	const each = 16
	for i := range maxRecent + 1000 {
		ref := ref(i)
		l.replicas[0].Routed(ref, "a", &endpick.Request{InputTokens: 1 + i}, 0, numbered(i+1, each))
		l.replicas[0].Done(ref, &Outcome{})
		if i%100 == 0 {
			l.send()
		}
	}
	l.send()
	held := map[uint64]bool{}
	for _, h := range l.replicas[0].log.recent {
		held[h.number] = true
	}
	first := l.replicas[0].log.next - maxRecent
	for n := range uint64(maxRecent) {
		require.True(t, held[first+n], "%d", n)
	}
	l.join(uint32(len(l.replicas)+1), true)
	l.calm(time.Second)
	reported := l.replicas[2].reported
	require.Len(t, reported, blockBudget/8/each)
	for i, e := range reported { // oldest first
		require.Equal(t, Holds, e.Kind)
		require.Equal(t, maxRecent+1000-len(reported)+i+1, e.Request.InputTokens)
		require.Len(t, e.Request.Blocks, each)
	}
}

// When a replica is lost, its requests in flight end in the order in which they began.
func TestLostInOrder(t *testing.T) {
	l := newLine(t, 2)
	for i := range 100 {
		l.replicas[0].Routed(ref(i), "a", &endpick.Request{InputTokens: i}, 0, nil)
	}
	l.send()
	l.clear()
	l.replicas[1].Forget()
	l.send()
	require.Len(t, l.replicas[1].reported, 100)
	for i, e := range l.replicas[1].reported {
		require.Equal(t, i, e.Lease.input)
		require.Equal(t, endpick.Lost, e.Outcome.Status)
	}
}

// A status arrives unchanged, except for a refusal, which is sent as a failure: to
// the receivers both mean the same.
func TestStatuses(t *testing.T) {
	l := newLine(t, 2)
	for i := range 7 {
		ref := ref(i)
		l.replicas[0].Routed(ref, "a", &endpick.Request{}, 0, nil)
		l.replicas[0].Done(ref, &Outcome{Outcome: endpick.Outcome{Status: endpick.Status(i)}})
	}
	l.send()
	var got []endpick.Status
	for _, e := range l.replicas[1].reported {
		if e.Kind == Ended {
			got = append(got, e.Outcome.Status)
		}
	}
	lost := endpick.Lost
	require.Equal(t, []endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled, lost, endpick.Failed, lost, lost}, got)
}

// A message to another replica is ignored, and a batch needs a number.
func TestMessagesForOthers(t *testing.T) {
	e := newEvil(t)
	routed := names()
	e.say(e.batch(routed.b))
	for _, to := range []uint32{0, 2, 666} {
		e.ask(to)
	}
	assert.Zero(t, e.victim.Counts().Answered)
	assert.Zero(t, e.victim.repairs.done)

	e.instance = 999
	w := e.header(kindBatch)
	w.uint(0)
	e.say(w.b)
	assert.Equal(t, uint64(1), e.victim.Counts().Malformed)
	assert.NotContains(t, e.victim.peers, uint32(999))
}

// Among unknown replicas, the one heard first gives way.
func TestTheOldestStrangerGivesWay(t *testing.T) {
	e := newEvil(t)
	for i := range maxPeers - 1 {
		e.now = e.now.Add(time.Millisecond)
		e.as(5000 - i)
	}
	for i := range 3 {
		e.now = e.now.Add(time.Millisecond)
		e.as(6000 + i)
		assert.NotContains(t, e.victim.peers, uint32(5000-i))
		assert.Contains(t, e.victim.peers, uint32(5000-i-1))
		assert.Contains(t, e.victim.peers, e.instance)
		assert.Len(t, e.victim.peers, maxPeers)
	}
}

// A prompt and its response together are no longer than a prompt may be.
func TestResponsesAreBounded(t *testing.T) {
	for more, whole := range map[int]int{1: maxChain, 2: 0, 100: 0} {
		e := newEvil(t)
		blocks := numbered(0, maxChain-1)
		w := names()
		routed(&w, hasBlocks)
		w.hashes(blocks)
		w.b = append(w.b, opDone|hasMore, 1, 0, 0, 0, 0)
		w.hashes(make([]uint64, more))
		e.victim.Receive(e.now, e.sealer.seal(e.batch(w.b)))
		_, effects := e.victim.Drain()
		require.Len(t, effects, 2)
		assert.Len(t, effects[1].Outcome.Blocks, whole, "%d", more)
	}
}

// Numbers at their limits, by hand.
func TestNumbersAtTheirEdges(t *testing.T) {
	for tokens, want := range map[float64]int{0: 1, 0.001: 1, 14.25: 912, 14.7: 941, 14.69: 940, 16: 1024, 1e9: maxTokens} {
		assert.Equal(t, want, parts(tokens), "%v", tokens)
	}
	for _, tc := range []struct{ to, difference, want int }{
		{10, 5, 15}, {10, -10, 0}, {10, -11, 0}, {maxTokens, 0, maxTokens}, {maxTokens, 1, maxTokens}, {maxTokens - 1, maxTokens, maxTokens}, {0, -maxTokens, 0},
	} {
		var w writer
		w.int(tc.difference)
		r := reader{b: w.b}
		assert.Equal(t, tc.want, r.near(tc.to), "%+v", tc)
		assert.False(t, r.bad)
	}
	for _, difference := range []int{maxTokens + 1, -maxTokens - 1} {
		var w writer
		w.int(difference)
		r := reader{b: w.b}
		assert.Zero(t, r.near(10))
		assert.True(t, r.bad)
	}

	p, now := pace{most: 2}, time.Unix(1000, 0)
	for _, step := range []struct {
		ms   int
		want bool
	}{{0, true}, {999, true}, {999, false}, {1000, true}, {1999, true}, {1999, false}} {
		assert.Equal(t, step.want, p.take(now.Add(time.Duration(step.ms)*time.Millisecond)), "%+v", step)
	}
}
