package preset_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer/preset"
)

// A day simulates conversations on three servers, with its own time. A server that is up gives the
// first token after 50 ms and prefill at 8,600 tokens per second, and 50 more at 20 ms each. One
// that is down sends nothing.
type day struct {
	t      *testing.T
	router *endpick.Router
	now    time.Time
	events []dayEvent
	up     map[string]bool
	turns  [40]int
	number int
	// held are the leases that wait for a server that is down.
	held []endpick.Lease
}

type dayEvent struct {
	at time.Time
	do func()
}

func newDay(t *testing.T, variants map[string]string) *day {
	d := &day{t: t, now: time.Unix(1_000_000, 0), up: map[string]bool{}}
	config, err := preset.PredictedLatency(preset.PredictedLatencyConfig{Latency: predict.LatencyConfig{Synchronous: true, Trees: 8}})
	require.NoError(t, err)
	config.Clock = func() time.Time { return d.now }
	config.Seed = 7
	for _, id := range []string{"a", "b", "c"} {
		// Caches that don't hold all conversations, so that those that have moved may move back.
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Address: id + ":80", Variant: variants[id], KVTokens: 160_000})
		d.up[id] = true
	}
	d.router, err = endpick.New(config)
	require.NoError(t, err)
	return d
}

func (d *day) after(wait time.Duration, do func()) {
	e := dayEvent{d.now.Add(wait), do}
	i, _ := slices.BinarySearchFunc(d.events, e, func(a, b dayEvent) int {
		return cmp.Or(a.at.Compare(b.at), -1) // after those of the same time
	})
	d.events = slices.Insert(d.events, i, e)
}

// run sends ten requests per second, turns of forty conversations, and returns each server's
// share.
func (d *day) run(length time.Duration) map[string]float64 {
	share := map[string]float64{}
	end := d.now.Add(length)
	const every = 100 * time.Millisecond
	for ; d.now.Before(end); d.now = d.now.Add(every) {
		next := d.now.Add(every)
		share[d.request()] += every.Seconds() / length.Seconds()
		for len(d.events) > 0 && d.events[0].at.Before(next) {
			e := d.events[0]
			d.events = d.events[1:]
			d.now = e.at
			e.do()
		}
		d.now = next.Add(-every)
	}
	return share
}

func (d *day) request() string {
	d.number++
	session := d.number * 7 % len(d.turns)
	d.turns[session]++
	blocks := make([]uint64, 100+10*min(d.turns[session], 50))
	for i := range blocks {
		blocks[i] = uint64(session+1)<<32 | uint64(i)
	}
	lease, err := d.router.Route(endpick.Request{Model: "m", Blocks: blocks, InputTokens: 16 * len(blocks), Stream: true})
	require.NoError(d.t, err)
	c, _ := lease.Candidate()
	if !d.up[c.Endpoint.ID] {
		d.held = append(d.held, lease)
		return c.Endpoint.ID
	}
	fresh := 16*len(blocks) - c.PrefixTokens
	d.after(50*time.Millisecond+time.Duration(fresh)*time.Second/8600, func() {
		lease.FirstToken()
		d.after(time.Second, func() {
			lease.Tokens(50)
			lease.Done(endpick.Outcome{})
		})
	})
	return c.Endpoint.ID
}

// recover ends the hang: the server answers those that wait, and is up.
func (d *day) recover() {
	for _, lease := range d.held {
		lease.FirstToken()
		lease.Done(endpick.Outcome{})
	}
	d.held, d.up["c"] = nil, true
}

// A server that hangs keeps its conversations, looks no busier than its reports say, and gives no
// labels. Before waits without a first token counted as evidence, it got 30 % of the requests in
// the first minute and 10 % of the next six, while none was answered.
func TestAServerThatAnswersNothingGetsNothing(t *testing.T) {
	for name, variants := range map[string]map[string]string{
		"of its own variant": {"c": "other"},
		"of all their kind":  {},
	} {
		d := newDay(t, variants)
		d.up["c"] = false
		require.Less(t, d.run(time.Minute)["c"], 0.05, name)
		require.Less(t, d.run(3 * time.Minute)["c"], 0.015, "%s: what explores", name)

		d = newDay(t, variants)
		require.Greater(t, d.run(time.Minute)["c"], 0.2, name)
		d.up["c"] = false
		// The affinity gate keeps conversations on their server until it is five seconds slower.
		require.Less(t, d.run(time.Minute)["c"], 0.05, name)
		require.Less(t, d.run(3 * time.Minute)["c"], 0.015, name)

		d.recover()
		require.Greater(t, d.run(time.Minute)["c"], 0.1, "%s: back as soon as it answers", name)
	}
}
