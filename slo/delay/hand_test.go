package delay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict/pace"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Sums over time go on from the time that a clock was set back to.
func TestSumsOverTime(t *testing.T) {
	e := endpoint{at: 10e6, decoding: 2, size: 100}
	for _, x := range []struct{ at, decoding, size float64 }{{15e6, 10, 500}, {5e6, 10, 500}, {8e6, 16, 800}} {
		e.advance(int64(x.at))
		assert.Equal(t, []float64{x.decoding, x.size}, []float64{e.decodingTime, e.sizeTime})
	}
	assert.EqualValues(t, int64(4e18), nanoseconds(time.Unix(4e9, 0)), "the year 2096")
}

// A first token counts once, and only a stream's is waited for.
func TestFirstTokensCountOnce(t *testing.T) {
	m := newMarginal(Config{})
	now := time.Unix(1e9, 0)
	for i, stream := range []bool{false, true} {
		ref := endpick.EndpointRef{Slot: uint32(i), Generation: 1}
		ev := &endpick.Event{
			Request: &endpick.Request{InputTokens: 100, Stream: stream}, Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: ref},
			Lease: endpick.LeaseRef{Slot: uint32(i), Generation: 1}, Now: now, RoutedAt: now,
		}
		m.Routed(ev)
		now = now.Add(time.Second)
		ev.Now, ev.FirstTokenAt = now, now
		for range 2 {
			m.FirstToken(ev)
			e := m.endpoints.Find(ref)
			assert.Equal(t, []float64{1, 100}, []float64{e.decoding, e.computed})
			assert.Equal(t, stream, m.learned.first.weight > 0)
		}
		m.Done(ev, &endpick.Outcome{Status: endpick.Failed})
		assert.Zero(t, m.endpoints.Find(ref).decoding)
	}
	assert.Equal(t, leastVote, m.learned.first.weight)
}

// A server is compared with its kind's updated estimate, in units of the spread of
// first tokens.
func TestPaceOfAFirstToken(t *testing.T) {
	d := newLone(t)
	d.route(100, 1, false).Done(endpick.Outcome{}) // gives the kind its place
	k := d.m.learned.kinds.known[kindName{model: "m"}]
	k.late.log, k.slow.log = 1, 0.1
	ref, _ := d.router.Ref("a")
	e := d.m.endpoints.Find(ref)
	e.pace = pace.Pace{}
	l := d.route(1000, 20, true)
	var x amounts
	for _, open := range d.m.leases.All() {
		x = open.x
	}
	d.at(2)
	l.FirstToken()
	var want pace.Pace
	want.Add(nanoseconds(d.now), 2000/k.of(&x), 1/1.28)
	assert.Equal(t, want, d.m.endpoints.Find(ref).pace)
	assert.NotEqual(t, 1.0, k.late.log)
}

// The name of a kind does not alias a request.
func TestKindsKeepNoBody(t *testing.T) {
	m := newMarginal(Config{})
	body := strings.Repeat("model", 100)
	m.learned.kinds.admit(kindName{body[:5], body[5:10]}, &m.learned.common)
	for n := range m.learned.kinds.known {
		assert.Equal(t, kindName{"model", "model"}, n)
		assert.NotSame(t, unsafe.StringData(body), unsafe.StringData(n.model))
		assert.NotSame(t, unsafe.StringData(body[5:]), unsafe.StringData(n.variant))
	}
}

// Memory counts as nearly full if the room left is below the square root of the
// number of requests that fit: of a hundred, a tenth.
func TestPressureByHand(t *testing.T) {
	k := &kind{}
	c := endpick.Candidate{Endpoint: &endpick.Endpoint{KVTokens: 10_000}, Reported: endpick.KVUsageSignal}
	is := func(usage float64) bool {
		c.KVUsage = usage
		return pressed(&c, k)
	}
	assert.False(t, is(1), "the size of requests is not known")
	k.size.add(100, 1)
	assert.False(t, is(0.899))
	assert.True(t, is(0.901))
	c.Reported = 0
	assert.False(t, is(1), "nothing is reported")
	c.Reported, c.Endpoint = endpick.KVUsageSignal, &endpick.Endpoint{}
	assert.False(t, is(1), "nor how much there is")
}

// Costs are in prompt tokens until the first label gives them a time, of another kind at first.
func TestUnitsOfExplanations(t *testing.T) {
	m := newMarginal(Config{})
	common, own := &m.learned.common, &kind{}
	unit := func(k *kind) string { return (&decision{m: m, variantState: &variantState{kind: k}}).unit() }
	assert.Equal(t, "tokens (nothing is measured yet)", unit(common))
	common.labels = 1
	assert.Equal(t, "ms (as on others: nothing of its kind is measured yet)", unit(common))
	assert.Equal(t, unit(common), unit(own))
	own.labels = 1
	assert.Equal(t, "ms", unit(own))
}

// The prior of every coefficient is scaled by how long prompt tokens take, by the proportions: here
// 300 + 1,000 + 200/2 of them take 280 ms.
func TestTheScaleOfPriors(t *testing.T) {
	m := newMarginal(Config{})
	m.learned.label(kindName{}, &amounts{requests: 1, tokens: 1000, steps: 0.5}, 280)
	assert.InDelta(t, 0.2, m.learned.token.or(0), 1e-9)
	for i, v := range m.learned.common.each[:blocked] {
		assert.InEpsilon(t, 0.2*proportions[i], v, 1e-6)
	}
	assert.InEpsilon(t, 1.0, m.learned.common.each[blocked], 1e-6, "a millisecond is one")
}

// What has to be computed for a prompt, by hand: the last token always, and never more than all.
func TestWhatIsComputed(t *testing.T) {
	for _, x := range []struct {
		input, cached int
		fresh, pairs  float64
	}{{1000, 0, 1000, 1000 * 500}, {1000, 600, 400, 400 * (600 + 200)}, {1000, 1000, 1, 1000.5}, {1000, -5, 1000, 1000 * 500}, {0, 0, 1, 0.5}} {
		fresh, pairs := compute(&endpick.Request{InputTokens: x.input}, x.cached)
		assert.Equal(t, []float64{x.fresh, x.pairs}, []float64{fresh, pairs}, "%+v", x)
	}
}

// A single step shows what is computed beside it. A report of fewer requests than this router has
// there is of none from elsewhere.
func TestWhatIsThereByHand(t *testing.T) {
	k := &newMarginal(Config{}).learned.common
	k.note(&amounts{tokens: 50, attention: 7}, 1)
	c := endpick.Candidate{Endpoint: &endpick.Endpoint{}, Running: 1, InFlight: endpick.InFlight{Requests: 3}}
	var v view
	v.look(&asked, &c, nil, k, 300)
	assert.Equal(t, []float64{50, 7, 0}, []float64{v.step[tokens], v.step[attention], v.external})
	c.Waiting = 4
	k.note(&amounts{tokens: 50, attention: 7}, 1)
	v.look(&asked, &c, nil, k, 300)
	assert.InDeltaSlice(t, []float64{50, 7, 2}, []float64{v.step[tokens], v.step[attention], v.external}, 1e-9, "two such steps are the same")
	// Of the five that are there, those that wait for a place don't decode, nor does one in whose place it will be.
	for places, decode := range map[int]float64{0: 5, 9: 5, 5: 5, 3: 3} {
		c.Endpoint.MaxSequences = places
		v.look(&asked, &c, nil, k, 300)
		want := []float64{1.5 * decode, min(decode+1, float64(cmp.Or(places, 9)))}
		assert.Equal(t, want, []float64{v.first[batches], v.step[batches]}, "%d places", places)
	}
}

// Times of less than a millisecond weigh no more than one of a millisecond.
func TestShortTimesWeighLittle(t *testing.T) {
	prior := scaled(1e-4)
	l := linear{each: prior}
	l.label(&amounts{tokens: 10}, 0.001, &prior)
	assert.Equal(t, 100.0, l.products[tokens][tokens])
}

// Who has to go when z is loaded, by hand: as many as there is no room for, those with requests last,
// of the others those that were asked for least recently.
func TestWhoIsDisplaced(t *testing.T) {
	in := func(model string, bytes int64) endpick.Resident {
		return endpick.Resident{Model: model, State: endpick.InMemory, Bytes: bytes}
	}
	here := []endpick.Resident{{Model: "disk", Bytes: 1}, in("a", 5), in("b", 6), in("c", 7), {Model: "z", Bytes: 4}, in("d", 8)}
	known := []held{{model: "a", used: 3}, {model: "b", used: 1, open: 1}, {model: "c", used: 2}, {model: "d", used: 4}}
	for _, x := range []struct {
		most    int
		ever    int
		learned residents
		want    string
	}{
		{ever: 5, want: ""}, // there is room, as there is in others of its kind
		{ever: 4, want: "c 1/5"}, {want: "c 1/5"},
		{most: 5, want: ""}, {most: 4, want: "c"}, {most: 3, want: "c a"}, {most: 1, want: "c a d b (busy)"},
		{learned: residents{models: 9, bytes: 30}, ever: 9, want: ""}, {learned: residents{full: true, models: 9, bytes: 30}, want: ""},
		{learned: residents{full: true, models: 9, bytes: 29}, want: "c"}, {learned: residents{full: true, models: 9, bytes: 22}, want: "c a"},
		{learned: residents{full: true, models: 4, bytes: 99}, want: "c"}, {most: 5, learned: residents{full: true, models: 1, bytes: 1}, want: ""},
	} {
		var got []string
		x.learned.held = known
		e := &endpick.Endpoint{MaxResidents: x.most, Residents: here}
		x.learned.displaced(e, &here[4], 0, 1, x.ever, func(u *endpick.Resident, busy bool, likely float64) {
			if got = append(got, u.Model); busy {
				got = append(got, "(busy)")
			}
			if likely < 1 {
				got = append(got, fmt.Sprintf("1/%v", 1/likely))
			}
		})
		assert.Equal(t, x.want, strings.Join(got, " "), "%+v", x)
	}
}

// What a server says of its models holds until more was sent there, and what it does not know yet holds
// beside it.
func TestWhereModelsAre(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(1e9+second, 0) }
	e := &endpick.Endpoint{ID: "a", Variant: "x", Residents: []endpick.Resident{{Model: "m", State: endpick.InMemory, Until: at(10)}, {Model: "n"}}}
	var s residents
	s.hear(e)
	is := func(want endpick.Residency, model, second int64, why string) {
		state, _ := s.state(e, &e.Residents[model], nanoseconds(at(second)), 0)
		assert.Equal(t, want, state, why)
	}
	is(endpick.InMemory, 0, 10, "until then")
	is(endpick.OnDisk, 0, 11, "nobody has asked for it")
	for i := range e.Residents {
		s.sent(e, &e.Residents[i], nanoseconds(at(9)), &endpick.Request{})
	}
	is(endpick.InMemory, 0, 11, "it is in use")
	is(endpick.Loading, 1, 11, "for a request")
	s.left("n", false)
	is(endpick.OnDisk, 1, 11, "which has left")
	s.answered("n", nanoseconds(at(9)))
	is(endpick.InMemory, 1, 11, "it has answered")
	e.Residents = slices.Clone(e.Residents)
	s.hear(e)
	is(endpick.OnDisk, 1, 11, "as the server says, if not when this was so")
	s.hear(&endpick.Endpoint{Residents: e.Residents[1:]})
	assert.NotNil(t, s.of("m"), "there is a request")

	d := newLone(t)
	require.NoError(t, d.router.Update(*e))
	d.m.Score(&endpick.Request{Model: "n"}, d.router.AppendCandidates(nil), make([]float64, 1))
	assert.Empty(t, d.m.pending, "a request that no router routes loads nothing")
	for range 2 {
		d.begin(600, 30).Done(endpick.Outcome{Status: endpick.Canceled})
	}
	d.begin(600, 30)
	assert.Zero(t, d.label(requests, 1, func() { d.begin(600, 30) }), "it has waited: the model answers one at a time")
	require.NoError(t, d.router.Add(endpick.Endpoint{ID: "b", Variant: "y", Residents: []endpick.Resident{
		{Model: "m", State: endpick.InMemory}, {Model: "n", State: endpick.InMemory},
	}}))
	of := decision{m: d.m, req: &endpick.Request{}, candidates: d.router.AppendCandidates(nil), variantState: &variantState{variant: "x"}}
	assert.Equal(t, 1, of.ever(), "others are another kind")
}

// matched are candidates that hold so many tokens of a prompt.
func matched(depths ...int) (cs []endpick.Candidate) {
	for i, h := range depths {
		cs = append(cs, endpick.Candidate{
			Endpoint: &endpick.Endpoint{ID: string(rune('a' + i))}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}, PrefixTokens: h,
		})
	}
	return cs
}

// The value of a place in a cache follows from the time per token on the servers that prompts went to,
// each kind of server by itself: 0.1 or 0.4 ms, and 500 pairs of a microsecond each.
func TestRecomputingIsOfTheServersThatCompute(t *testing.T) {
	d := newLone(t)
	require.NoError(t, d.router.SetEndpoints([]endpick.Endpoint{{ID: "a", Variant: "fast"}, {ID: "b", Variant: "slow"}}))
	for variant, each := range map[string]float64{"fast": 0.1, "slow": 0.4} {
		d.m.learned.kinds.admit(kindName{"m", variant}, &d.m.learned.common)
		k := d.m.learned.kinds.known[kindName{"m", variant}]
		k.labels, k.each[tokens], k.each[attention] = 1, each, 0.001
	}
	assert.Equal(t, 1.0, d.m.learned.again.or(d.m.learned.common.each[tokens]), "in prompt tokens, as long as nothing is known")
	const keep = 1 - 1.0/recent
	for i, want := range []float64{0.6, (0.6*keep + 0.9*32/31) / (keep + 32.0/31)} { // each tenant has a vote
		others := []string{"b", "a"}[i : i+1]
		l := rig.Must(d.router.Route(endpick.Request{Model: "m", InputTokens: 1000, Stream: true, Exclude: others, Tenant: others[0]}))
		d.now = d.now.Add(time.Second)
		l.FirstToken()
		assert.InDelta(t, want, d.m.learned.again.or(d.m.learned.common.each[tokens]), 1e-9)
	}
}
