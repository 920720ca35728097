package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
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
			path := []int{1, 2, 3, 4}[:rapid.IntRange(0, 4).Draw(t, "blocks")]
			r.req.Blocks = chain(path)
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
