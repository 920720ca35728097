package main

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// seenRequest is a stream from server a, after b failed it, with its first token
// after 100 ms; of 1,000 tokens 640 were expected to be cached and 512 were.
func seenRequest(status string) *transport.Observation {
	ttft, cached := 100.0, 512
	at := time.Unix(1000, 0)
	of := func(id string, prefix int) endpick.Candidate {
		return endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}, PrefixTokens: prefix}
	}
	return &transport.Observation{
		Request: recording.Request{
			Time: at, Stream: true, Status: status, HTTP: 200, TTFTMillis: &ttft, E2EMillis: 200, InputTokens: 1000, OutputTokens: 3, CachedTokens: &cached,
		},
		Attempts: []transport.ObservedAttempt{
			{Candidate: of("b", 0), At: at, Result: transport.Erred},
			{Candidate: of("a", 640), At: at, Result: transport.Served},
		},
		Serving: 1,
	}
}

func TestHistory(t *testing.T) {
	var h history
	now := time.Unix(1_000_000, 0)
	h.observe(now, seenRequest("completed"))
	h.observe(now.Add(4*time.Second), seenRequest("completed"))
	h.observe(now.Add(5*time.Second), seenRequest("failed"))
	h.observe(now.Add(5*time.Second), seenRequest("canceled"))
	for _, status := range []int{404, 429, 401} { // the last has no key
		h.observe(now.Add(5*time.Second), &transport.Observation{Request: recording.Request{Status: "refused", HTTP: status}, Serving: -1})
	}
	all := h.all.last(now.Add(5 * time.Second))
	require.Len(t, all, slots)
	first, second := *all[slots-2], *all[slots-1]
	assert.Equal(t, []int{2, 0, 0}, []int{first.served, first.failed, first.refused})
	assert.Equal(t, []int{0, 1, 2, 1}, []int{second.served, second.failed, second.refused, second.limited})
	assert.Equal(t, "The only server is healthy, but of the requests that are not refused 100 % fail.", (&debugPage{Serving: 1, Minute: second}).Verdict().Text, "who asks for what is not there hides nothing")
	second.failed, second.served = 0, 1
	var sum slot
	sum.add(&second)
	assert.Equal(t, "All 3 servers are healthy, but 50 % of the requests get 429: too many at once, or over a quota.", (&debugPage{Serving: 3, Minute: sum}).Verdict().Text)
	assert.Equal(t, "2 servers are healthy, and 1 drained, but 1 model has no server.", (&debugPage{Serving: 2, Drained: 1, Lacking: []string{"m"}}).Verdict().Text)
	assert.Equal(t, []float64{2000, 1280, 1024}, []float64{first.prompt, first.expected, first.cached})
	assert.Nil(t, all[slots-3])
	assert.InEpsilon(t, 0.1, first.ttft.quantile(0.5), 0.05)

	a := h.servers["a"].last(now.Add(5 * time.Second))[slots-2]
	assert.Equal(t, serverSlot{served: 2, first: 2, ttft: 200 * time.Millisecond}, *a)
	b := h.servers["b"].last(now.Add(5 * time.Second))[slots-2]
	assert.Equal(t, serverSlot{failed: 2}, *b)

	// A slot is reused after ten minutes and starts empty.
	later := now.Add(slots * slotTime)
	assert.Nil(t, h.all.last(later)[slots-1])
	h.observe(later, seenRequest("completed"))
	assert.Equal(t, 1, h.all.last(later)[slots-1].served)

	for i := range 2 * mostServers {
		r := seenRequest("completed")
		r.Attempts[1].Candidate.Endpoint = &endpick.Endpoint{ID: fmt.Sprint(i)}
		h.observe(later, r)
	}
	assert.Len(t, h.servers, mostServers)
}

// Servers that come and go leave no history behind, whether or not anybody looks: after ten
// minutes there is room for others.
func TestHistoryForgetsServers(t *testing.T) {
	var h history
	now := time.Unix(1_000_000, 0)
	const eachSlot = 10
	for range 3 * slots {
		for i := range eachSlot {
			r := seenRequest("completed")
			id := fmt.Sprint(now.Unix(), " ", i)
			r.Attempts[1].Candidate.Endpoint = &endpick.Endpoint{ID: id}
			h.observe(now, r)
			require.NotNil(t, h.servers[id])
			require.LessOrEqual(t, len(h.servers), eachSlot*slots+1)
		}
		now = now.Add(slotTime)
	}
	require.NotNil(t, h.servers["b"], "which goes on failing")
	assert.NotNil(t, h.servers[fmt.Sprint(now.Add(-(slots-1)*slotTime).Unix(), " 0")], "which the page still shows")
	h.observe(now.Add(slots*slotTime), seenRequest("completed"))
	assert.Len(t, h.servers, 2)
}

func TestHistogram(t *testing.T) {
	var h histogram
	assert.True(t, math.IsNaN(h.quantile(0.5)))
	for i := range 100 {
		h.add(time.Duration(i+1) * 10 * time.Millisecond)
	}
	for _, q := range []float64{0.01, 0.5, 0.95, 1} {
		assert.InEpsilon(t, q, h.quantile(q), 0.1)
	}
	h.add(0)
	h.add(-time.Second)
	h.add(time.Duration(math.MaxInt64))
	assert.InEpsilon(t, firstBucket, h.quantile(0.001), 0.1)
}

func TestPlot(t *testing.T) {
	nan := math.NaN()
	assert.Equal(t, `<svg viewBox="0 0 240 48" preserveAspectRatio="none" role="img" aria-label="a &lt;b&gt;">`+
		`<path class="area good" d="M0.0 47.0L120.0 24.0L240.0 1.0L240.0 48 L0.0 48 Z"/><path class="line good" d="M0.0 47.0L120.0 24.0L240.0 1.0"/></svg>`,
		string(plot("a <b>", 1, line{"good", []float64{0, 2, 4}, true})))
	assert.Contains(t, string(plot("", 0, line{"x", []float64{nan, 1, nan, 1, 1}, false})), `d="M60.0 1.0h0.1"/><path class="line x" d="M180.0 1.0L240.0 1.0"/>`)
	for _, odd := range [][]float64{nil, {nan}, {nan, nan}, {0}, {math.Inf(1), -1}, {-5, 3}} {
		assert.NotContains(t, string(plot("", 0, line{"x", odd, true})), "NaN")
		assert.NotContains(t, string(plot("", 0, line{"x", odd, true})), "Inf")
	}
}

func TestShown(t *testing.T) {
	all := make([]*int, slots)
	assert.Len(t, shown(all), 2*perMinute)
	all[slots-2] = new(int)
	assert.Len(t, shown(all), 2*perMinute)
	all[10] = new(int)
	assert.Len(t, shown(all), slots-1-10)
	assert.Same(t, all[10], shown(all)[0])
}
