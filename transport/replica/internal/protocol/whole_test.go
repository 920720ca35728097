package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// newLine returns replicas on a perfect bus, whose effects are only recorded.
func newLine(t require.TestingT, n int) *world {
	w := newWorld(t)
	w.plain = true
	for range n {
		w.join(uint32(len(w.replicas)+1), true)
	}
	w.calm(time.Second)
	w.clear()
	return w
}

func (w *world) clear() {
	for _, r := range w.replicas {
		r.reported = nil
	}
}

// send ends a batch of every replica and delivers everything.
func (w *world) send() {
	for _, r := range w.replicas {
		w.flush(r, false)
	}
}

// rounded is a duration as transmitted.
func rounded(d time.Duration) time.Duration {
	switch {
	case d <= 0:
		return 0
	case d < 100*time.Microsecond:
		return 100 * time.Microsecond // never zero
	}
	return min((d+50*time.Microsecond)/(100*time.Microsecond)*100*time.Microsecond, time.Hour)
}

// Whatever the fields of a request, and however it ends, other replicas learn all of it:
// those present at the time, and those that join later.
func TestRequestsAreToldWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLine(t, 2)
		name := rapid.SampledFrom([]string{"", "x", "y", fmt.Sprintf("%0255d", 7)})
		duration := rapid.SampledFrom([]time.Duration{0, 1, 149 * time.Microsecond, 151 * time.Microsecond, time.Second, 3 * time.Hour})
		tokens := rapid.SampledFrom([]int{0, 1, 1000, 1<<24 - 1, 1 << 24, 1<<24 + 1})
		type request struct {
			ref      endpick.LeaseRef
			req      endpick.Request
			endpoint string
			prefix   int
		}
		var all []request
		for i := range rapid.IntRange(1, 6).Draw(t, "requests") {
			r := request{ref(i), endpick.Request{
				Model: name.Draw(t, "model"), Adapter: name.Draw(t, "adapter"), Tenant: name.Draw(t, "tenant"),
				SLO:    endpick.SLO{TTFT: duration.Draw(t, "ttft"), TPOT: duration.Draw(t, "tpot")},
				Stream: rapid.Bool().Draw(t, "stream"), Exact: rapid.Bool().Draw(t, "exact"),
				InputTokens: tokens.Draw(t, "input"), ExpectedOutputTokens: tokens.Draw(t, "output"),
				BlockTokens: rapid.SampledFrom([]float64{0, 16, 1, 14.25}).Draw(t, "block"),
				Responses:   rapid.SampledFrom([]int{0, 1, 2, 128, 1<<24 + 1}).Draw(t, "responses"),
			}, fmt.Sprint("e", i%3), tokens.Draw(t, "prefix")}
			r.req.Blocks = chain([]int{1, 2, 3, 4}[:rapid.IntRange(0, 4).Draw(t, "blocks")])
			l.replicas[0].Routed(r.ref, r.endpoint, &r.req, r.prefix, r.req.Blocks)
			all = append(all, r)
		}
		l.send()
		l.join(3, true)
		l.calm(time.Second)
		want := func(r request) endpick.Request {
			w := r.req
			w.SLO = endpick.SLO{TTFT: rounded(w.SLO.TTFT), TPOT: rounded(w.SLO.TPOT)}
			w.InputTokens, w.ExpectedOutputTokens = min(w.InputTokens, 1<<24), min(w.ExpectedOutputTokens, 1<<24)
			if w.Responses = min(w.Responses, 1<<24); w.Responses == 1 {
				w.Responses = 0 // which means the same
			}
			w.Adopted = &endpick.Adopted{Endpoint: r.endpoint, Mirrored: true, ExpectedCached: min(r.prefix, 1<<24)}
			if w.BlockTokens == 0 || len(w.Blocks) == 0 {
				w.BlockTokens = 16
			}
			return w
		}
		for _, r := range l.replicas[1:] {
			require.Len(t, r.reported, len(all))
			for i, e := range r.reported {
				require.Equal(t, Opened, e.Kind)
				got := e.Request
				if len(got.Blocks) == 0 {
					got.Blocks = nil
				}
				require.Equal(t, want(all[i]), got)
			}
		}
		leases := [][]*Lease{nil, nil, nil}
		for n := 1; n < 3; n++ {
			for _, e := range l.replicas[n].reported {
				leases[n] = append(leases[n], e.Lease)
			}
		}

		l.clear()
		for i, r := range all {
			o := Outcome{Outcome: endpick.Outcome{
				Status:      rapid.SampledFrom([]endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled, endpick.Lost}).Draw(t, "status"),
				InputTokens: tokens.Draw(t, "usage in"), OutputTokens: tokens.Draw(t, "usage out"),
				HasCachedTokens: rapid.Bool().Draw(t, "reports"),
			}}
			o.Took, o.TTFT = duration.Draw(t, "took"), duration.Draw(t, "first")
			if o.HasCachedTokens {
				o.CachedTokens = tokens.Draw(t, "cached")
			}
			if n := len(r.req.Blocks); n > 0 && rapid.Bool().Draw(t, "goes on") {
				o.Blocks = append(append(o.Blocks, r.req.Blocks...), r.req.Blocks[n-1]<<4|7)
			}
			l.replicas[0].Done(r.ref, &o)
			l.send()
			o.InputTokens, o.OutputTokens, o.CachedTokens = min(o.InputTokens, 1<<24), min(o.OutputTokens, 1<<24), min(o.CachedTokens, 1<<24)
			o.Took, o.TTFT = rounded(o.Took), rounded(o.TTFT)
			if o.Status != endpick.Completed {
				o.Blocks = nil
			}
			for n := 1; n < 3; n++ {
				if n == 2 { // a latecomer has no times
					o.Took, o.TTFT = 0, 0
				}
				require.Len(t, l.replicas[n].reported, i+1)
				e := l.replicas[n].reported[i]
				require.Equal(t, Ended, e.Kind)
				require.Same(t, leases[n][i], e.Lease)
				require.Equal(t, o, e.Outcome)
			}
		}
		l.clear()
		l.join(uint32(len(l.replicas)+1), true) // ended requests reach it as what endpoints hold
		l.calm(time.Second)
		for _, e := range l.replicas[3].reported {
			require.Equal(t, Holds, e.Kind)
			require.NotEmpty(t, e.Request.Blocks)
			var of request
			for _, r := range all {
				if r.endpoint == e.Request.Adopted.Endpoint && min(r.req.InputTokens, 1<<24) == e.Request.InputTokens && r.req.Tenant == e.Request.Tenant {
					of = r
				}
			}
			require.NotEmpty(t, of.endpoint)
			require.Equal(t, e.Request.InputTokens, e.Request.Adopted.ExpectedCached, "all of it is there")
		}
	})
}

// A first token is sent once, wherever it was noticed, and outcomes with the fields that count.
func TestFirstTokensAndOutcomesAreTold(t *testing.T) {
	l := newLine(t, 2)
	one, two := ref(1), ref(2)
	for _, ref := range []endpick.LeaseRef{one, two} {
		l.replicas[0].Routed(ref, "a", &endpick.Request{InputTokens: int(ref.Slot)}, 0, nil)
	}
	l.replicas[0].FirstToken(two)
	l.replicas[0].FirstToken(two)
	l.replicas[0].FirstToken(ref(3))
	l.replicas[0].Outcomes("a", 3, 7)
	l.replicas[0].Outcomes("b", 21, 1000)
	l.replicas[0].Outcomes(fmt.Sprintf("%0256d", 1), 1, 1)
	l.send()
	var kinds []EffectKind
	for _, e := range l.replicas[1].reported {
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []EffectKind{Opened, Opened, Answered, Outcomes, Outcomes}, kinds)
	assert.Same(t, l.replicas[1].reported[1].Lease, l.replicas[1].reported[2].Lease)
	assert.Equal(t, Effect{Kind: Outcomes, Endpoint: "a", Failed: 3, Served: 7}, l.replicas[1].reported[3])
	assert.Equal(t, Effect{Kind: Outcomes, Endpoint: "b", Failed: 20, Served: 20}, l.replicas[1].reported[4])
	l.join(uint32(len(l.replicas)+1), true)
	l.calm(time.Second)
	kinds = nil
	for _, e := range l.replicas[2].reported {
		kinds = append(kinds, e.Kind)
	}
	assert.Equal(t, []EffectKind{Opened, Opened, Answered}, kinds, "in a snapshot, too")
	assert.Equal(t, 2, l.replicas[2].reported[2].Lease.input)
}

// Names may be as long as the limit; a request with a longer one is not sent.
func TestNamesThatAreTooLong(t *testing.T) {
	l := newLine(t, 2)
	long := fmt.Sprintf("%0256d", 1)
	for i, r := range []struct {
		endpoint string
		req      endpick.Request
	}{
		{long, endpick.Request{}}, {"a", endpick.Request{Model: long}}, {"a", endpick.Request{Adapter: long}}, {"a", endpick.Request{Tenant: long}},
	} {
		l.replicas[0].Routed(ref(i), r.endpoint, &r.req, 0, nil)
		assert.EqualValues(t, i+1, l.replicas[0].Counts().Unshared)
	}
	l.send()
	assert.Empty(t, l.replicas[1].reported)
	assert.Zero(t, l.replicas[0].Counts().Shared)
	l.replicas[0].Routed(ref(9), long[1:], &endpick.Request{Model: long[1:], Adapter: long[1:], Tenant: long[1:]}, 0, nil)
	l.send()
	assert.Len(t, l.replicas[1].reported, 1)
}

// An idle replica sends a heartbeat four times a second, a busy one no more often.
func TestHeartbeats(t *testing.T) {
	l := newLine(t, 1)
	n, now := l.replicas[0], l.now
	sent := func() (messages int) {
		out, _ := n.Drain()
		return len(out)
	}
	n.Tick(now)
	sent()
	beats := 0
	for range 100 { // ten seconds
		now = now.Add(100 * time.Millisecond)
		n.Tick(now)
		beats += sent()
	}
	assert.InDelta(t, 33, beats, 1, "each third time")
	for i := range 100 {
		now = now.Add(100 * time.Millisecond)
		n.Routed(ref(i), "a", &endpick.Request{}, 0, nil)
		n.Flush(now)
		require.Equal(t, 1, sent())
		n.Tick(now)
		require.Zero(t, sent(), "a batch is a heartbeat")
	}
	n.Flush(now)
	assert.Zero(t, sent(), "nothing is pending")
	n.Tick(now.Add(250 * time.Millisecond))
	assert.Equal(t, 1, sent(), "at the limit")
}

// A replica that does not answer is asked at growing intervals of at most four seconds.
func TestQuestionsBackOff(t *testing.T) {
	drawn := uint64(0)
	node := func(instance uint32) *Node {
		return New(Config{Instance: instance, Secret: "secret", Forget: time.Hour, Draw: func() uint64 { drawn += 2; return drawn }})
	}
	deaf, n, now := node(1), node(2), time.Unix(1000, 0)
	deaf.Tick(now)
	out, _ := deaf.Drain()
	require.Len(t, out, 1)
	n.Receive(now, out[0].Payload)
	var asked []time.Duration
	for at := time.Duration(0); at < 20*time.Second; at += 50 * time.Millisecond {
		n.Tick(now.Add(at))
		out, _ := n.Drain()
		for _, m := range out {
			if m.To == 1 {
				asked = append(asked, at/time.Millisecond)
			}
		}
	}
	assert.Equal(t, []time.Duration{0, 250, 750, 1750, 3750, 7750, 11750, 15750, 19750}, asked)
}

// A log numbers the requests that it sends: a request that is not sent has no number, and one that
// the receiver does not mirror still has one, so that later messages refer to the right requests.
func TestNumbersSkipNobody(t *testing.T) {
	l := newLine(t, 2)
	a, b := l.replicas[0], l.replicas[1]
	route := func(i int, endpoint string) { a.Routed(ref(i), endpoint, &endpick.Request{}, 0, nil) }
	reported := func() (all []string) {
		l.send()
		for _, e := range l.replicas[1].reported {
			all = append(all, fmt.Sprint(e.Kind, " ", e.Lease.endpoint))
		}
		l.clear()
		return all
	}
	say := func(kind EffectKind, endpoint string) string { return fmt.Sprint(kind, " ", endpoint) }
	route(0, "first")
	for i := range 3 {
		route(10+i, fmt.Sprintf("%0256d", i))
	}
	require.EqualValues(t, 3, a.Counts().Unshared)
	route(1, "second")
	require.Equal(t, []string{say(Opened, "first"), say(Opened, "second")}, reported())
	b.mirrored += maxMirrored
	route(2, "too much")
	require.Empty(t, reported())
	require.EqualValues(t, 1, b.Counts().Unmirrored)
	b.mirrored -= maxMirrored
	route(3, "third")
	require.Equal(t, []string{say(Opened, "third")}, reported())
	a.FirstToken(ref(1))
	a.FirstToken(ref(2))
	a.Done(ref(2), &Outcome{})
	a.Done(ref(0), &Outcome{})
	a.FirstToken(ref(3))
	require.Equal(t, []string{say(Answered, "second"), say(Ended, "first"), say(Answered, "third")}, reported())
	require.Equal(t, 2, b.mirrored)
}

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

// A message to another replica is ignored, a batch needs a number, and a question its text.
func TestMessagesForOthers(t *testing.T) {
	e := newEvil(t)
	e.say(e.batch(names().b))
	for _, to := range []uint32{0, 2, 666} {
		e.ask(to)
	}
	assert.Zero(t, e.victim.Counts().Answered)
	assert.Zero(t, e.victim.repairs.done)

	e.instance = 999
	w := e.header(kindBatch)
	w.uint(0)
	e.say(w.b)
	w = e.header(kindAsk)
	w.id(1)
	e.say(w.b)
	assert.Equal(t, uint64(2), e.victim.Counts().Malformed)
	assert.NotContains(t, e.victim.peers, uint32(999))

	e.instance = e.victim.instance
	e.say(e.batch(names().b))
	assert.NotContains(t, e.victim.peers, e.instance, "its own, which come back from some buses")
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
