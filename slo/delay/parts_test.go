package delay

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// naiveSilence keeps the whole history.
type naiveSilence struct {
	waiting   int
	answered  int64
	patience  float64 // nanoseconds
	left, at  int64   // how long the endpoint had been silent when a request last left, and when
	remembers bool
}

func (n *naiveSilence) lasts(now int64) int64 {
	var lasted int64
	if n.waiting > 0 && n.patience > 0 && float64(now-n.answered) > n.patience {
		lasted = now - n.answered
	}
	if n.remembers {
		lasted = max(lasted, n.left-max(now-n.at, 0))
	}
	return lasted
}

// An endpoint is silent if no response has come for twice as long as the slowest waiting
// request may take; when a request leaves unanswered, the silence is remembered for
// fifteen seconds at most.
func TestSilenceTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s silence
		var n naiveSilence
		now := int64(1e18)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1e6, 500e6, 3e9, 20e9, -1e9}).Draw(t, "passed")
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what < 2 || n.waiting == 0:
				ms := float64(rapid.SampledFrom([]int{0, 1, 300, 2000}).Draw(t, "expected"))
				s.wait(now, ms)
				if n.waiting == 0 {
					n.answered, n.patience = now, 0
				}
				n.waiting++
				n.patience = max(n.patience, 2*ms*1e6)
			case what == 2:
				s.leave(now, true)
				n.waiting--
				n.answered, n.remembers = now, false
			default:
				s.leave(now, false)
				if left := n.lasts(now); left > 0 {
					n.left, n.at, n.remembers = min(left, 15e9), now, true
				}
				n.waiting--
			}
			for _, later := range []int64{0, 1e6, 1e9, 5e9, 30e9} {
				require.Equal(t, n.lasts(now+later), s.lasts(now+later))
			}
			if n.waiting > 0 {
				require.Equal(t, min(n.answered, now), s.asked(now))
				require.Equal(t, n.answered-1, s.asked(n.answered-1), "a clock that was set back")
			} else {
				require.Equal(t, now, s.asked(now))
			}
		}
	})
}

// A request of unknown expected time never makes an endpoint look silent, and one that
// does not stream may take the whole response's time.
func TestHowLongARequestMayTake(t *testing.T) {
	for _, x := range []struct {
		name   string
		labels float64
		stream bool
		ms     float64 // expected
	}{
		{"nothing is known", 0, true, 0},
		{"a stream", 10, true, 100 + 1000 + 1000*500/30_000. + 300},
		{"a whole response", 10, false, 100 + 1000 + 1000*500/30_000. + 300 + 20*(200+0.5+1.010)},
	} {
		d := newRig(t)
		d.m.common.labels = x.labels
		d.m.common.late.log = math.Log(1.25) // at most
		d.route(1000, 20, x.stream)
		ref, _ := d.router.Ref("a")
		assert.InDelta(t, 2*1.25*x.ms*1e6, d.m.endpoints.Find(ref).may, 1e3, x.name)
	}
}

// The bound that nine in ten stay below is where upward and downward steps balance.
func TestBoundOfNineInTen(t *testing.T) {
	var b bound
	assert.InDelta(t, 1.4918, b.ratio(), 1e-4, "before anything is known")
	assert.InDelta(t, 0.02/1.28, b.deviation(), 1e-9)
	b.add(2)
	assert.InDelta(t, math.Exp(0.418), b.ratio(), 1e-9)
	b.add(1)
	assert.InDelta(t, math.Exp(0.416), b.ratio(), 1e-9)
	assert.InDelta(t, 0.416/1.28, b.deviation(), 1e-9)
	for i := range 2000 {
		b.add(1 + float64(i*7%10)/10) // one in ten is 1.9, the next lower is 1.8
	}
	assert.InDelta(t, 1.85, b.ratio(), 0.1)
	for range 2000 {
		b.add(1e9)
	}
	assert.InDelta(t, math.Exp(3), b.ratio(), 1e-9)
	for range 2000 {
		b.add(0)
	}
	assert.InDelta(t, math.Exp(0.02), b.ratio(), 1e-9)
}

// A difference of which a share remains after a lag fades as e^(−t/τ); over the following
// time t its mean is (1 − e^(−t/τ))·τ/t.
func TestPersistenceByHand(t *testing.T) {
	var p persistence
	over := func(rest, lags float64) float64 { x := min(-math.Log(rest)*lags, 2); return (1 - math.Exp(-x)) / x }
	assert.InDelta(t, over(0.5, 2), p.over(1000), 1e-9, "nothing is known: a half after half of the time")
	assert.Equal(t, 0.5, p.over(0))
	p.add(7, 1, 250)
	assert.InDelta(t, over(1.5/8, 4), p.over(1000), 1e-9)
	assert.InDelta(t, over(1.5/8, 2), p.over(500), 1e-9)
	p.add(3, 3, 750)
	const keep = 0.99
	lag := (250*(1-1.0/memory) + 750) / (2 - 1.0/memory)
	assert.InDelta(t, over((keep+3+0.5)/(7*keep+3+1), 1000/lag), p.over(1000), 1e-9)
	// A growing difference lasts nearly as long as possible; one that changes sign, as where
	// servers alternate in being full, half of the time.
	p = persistence{}
	p.add(10, 1000, 100)
	assert.InDelta(t, over(0.99, 1), p.over(100), 1e-9)
	p = persistence{}
	p.add(10, -1000, 100)
	assert.InDelta(t, (1-math.Exp(-2))/2, p.over(100), 1e-9)
}

// Differences in load are sampled every half of a response's time, within one kind.
func TestLoadsAreComparedWithinTheirKind(t *testing.T) {
	m := fresh(t, 0)
	n := kindName{"m", "v"}
	k := &kind{}
	k.decoding.add(2000)
	m.kinds[n] = k
	candidates := func(loads ...float64) (cs []endpick.Candidate) {
		for i, v := range loads {
			cs = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{Variant: "v"}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}, Running: v})
		}
		cs = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{Variant: "w"}, Ref: endpick.EndpointRef{Slot: 99, Generation: 1}, Running: 1000})
		return cs
	}
	at := int64(1e18)
	m.compare(candidates(1, 3), n, at) // ∓1
	assert.Equal(t, persistence{}, k.persistence)
	m.compare(candidates(1, 3), n, at+900e6)
	assert.Equal(t, persistence{}, k.persistence, "too early")
	m.compare(candidates(5, 9), n, at+1200e6) // ∓2, 1.2 s later
	want := persistence{}
	want.add(2, 4, 1200)
	assert.Equal(t, want, k.persistence)
	assert.Equal(t, want, m.common.persistence)
	m.compare(candidates(9, 5), n, at+4200e6)
	assert.Equal(t, want, k.persistence, "three seconds are too long for a lag of one")
	m.compare(candidates(9, 5), n, at+5200e6) // ±2
	want.add(8, 8, 1000)
	assert.Equal(t, want, k.persistence)
	m.compare(candidates(9, 5), n, at) // a clock that was set back
	m.compare(candidates(9, 5), n, at+1000e6)
	want.add(8, 8, 1000)
	assert.Equal(t, want, k.persistence)
	m.compare(candidates(0, 1e9), n, at+2000e6)
	want.add(8, -4*1e4, 1000)
	assert.Equal(t, want, k.persistence, "differences are bounded")
	m.compare(candidates(0, 0), kindName{"unknown", "v"}, at+9000e6)
	assert.Equal(t, want, m.common.persistence)
}

// The fit minimises the squared relative errors, with the prior as one more label for
// each part. The reference finds the point of zero slope, not below zero, by Newton steps
// in any order.
func TestFitIsLeastSquares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prior := scaled(rapid.Float64Range(0.01, 1).Draw(t, "token"))
		var l linear
		l.start(&prior)
		type label struct {
			x  amounts
			ms float64
			w  float64
		}
		var labels []label
		for range rapid.IntRange(1, 12).Draw(t, "labels") {
			x := amounts{requests: 1, tokens: float64(rapid.IntRange(1, 4000).Draw(t, "tokens")), steps: float64(rapid.IntRange(1, 300).Draw(t, "steps"))}
			x[batches] = x[steps] * float64(rapid.IntRange(0, 20).Draw(t, "batch"))
			ms := l.of(&x) * rapid.Float64Range(0.2, 20).Draw(t, "off")
			expected := max(l.of(&x), 1)
			w := 1 / expected
			if ms > 3*expected {
				w = 3 / ms
			}
			labels = append(labels, label{x, ms, w * w})
			l.label(&x, ms, &prior)
		}
		// A negative slope would mean that a smaller value fits better.
		for range 300 {
			l.solve(&prior)
		}
		for i := range parts {
			slope, scale := (l.each[i]-prior[i])*0.01/(prior[i]*prior[i]), 1e-300
			for n, y := range labels {
				w := y.w * math.Pow(1-1.0/memory, float64(len(labels)-1-n))
				slope += w * y.x[i] * (l.of(&y.x) - y.ms)
				scale += w * y.x[i] * (l.of(&y.x) + y.ms)
			}
			scale += 0.02 / prior[i]
			if l.each[i] > 0 && math.Abs(slope) > 1e-3*scale || l.each[i] == 0 && slope < -1e-3*scale || l.each[i] < 0 {
				t.Fatalf("part %d: %v, slope %v of %v", i, l.each[i], slope, scale)
			}
		}
		if want := sumOfKeeps(len(labels)); math.Abs(l.labels-want) > 1e-9 {
			t.Fatalf("%v labels, want %v", l.labels, want)
		}
	})
}

func sumOfKeeps(n int) (sum float64) {
	for i := range n {
		sum += math.Pow(1-1.0/memory, float64(i))
	}
	return sum
}

// Lengths by hand: 300 before the first response; all tenants together weigh as much as
// four responses of the tenant's own; an estimate has the weight that its past accuracy
// gives it.
func TestLengthsByHand(t *testing.T) {
	var l lengths
	of := func(tenant string, guess int) float64 {
		return l.of(&endpick.Request{Tenant: tenant, ExpectedOutputTokens: guess})
	}
	assert.InDelta(t, 300, of("", 0), 1e-9)
	assert.InDelta(t, 300, of("a", 0), 1e-9)
	assert.InDelta(t, 50, of("a", 50), 1e-9)
	l.add("a", 0, 100)
	mean := (100. + 300) / 2
	assert.InDelta(t, mean, of("", 0), 1e-9)
	assert.InDelta(t, mean, of("b", 0), 1e-9)
	assert.InDelta(t, (100+4*mean)/5, of("a", 0), 1e-9)
	l.add("", 0, 600)
	const keep = 1 - 1.0/200
	mean = (100*keep + 600 + 300) / (keep + 2)
	assert.InDelta(t, mean, of("", 0), 1e-9)
	assert.InDelta(t, (100+4*mean)/5, of("a", 0), 1e-9, "whoever has no name is nobody's")

	l.add("a", 1000, 200)
	ratio := 1200. / 2000
	assert.InDelta(t, 500*ratio, of("b", 500), 1e-9)
	assert.InDelta(t, 500*(200+4*500*ratio)/(1000+4*500), of("a", 500), 1e-9)
	assert.InDelta(t, mean, of("", 0), 1e-9, "guesses and means are two things")
	l.add("a", 1, 1e-9)
	for range 5000 {
		l.add("a", 1000, 1e-9)
		l.add("a", 0, 1e-9)
	}
	assert.Equal(t, 1.0, of("a", 10), "no response has none")
	assert.InDelta(t, 1, of("a", 0), 0.1)
}

// Upper bounds come from the errors of each prediction: TTFT's from late first tokens,
// TPOT's from slow tokens, E2E's from the worse of both.
func TestPredictionsByHand(t *testing.T) {
	m := fresh(t, horizon)
	m.common.labels = 1
	m.common.late.log, m.common.slow.log = math.Log(1.5), math.Log(1.25)
	predict := func(stream bool) endpick.Prediction {
		cs := []endpick.Candidate{busy}
		cs[0].Endpoint, cs[0].Ref = &endpick.Endpoint{ID: "a"}, endpick.EndpointRef{Generation: 1}
		req := asked
		req.Stream = stream
		req = req.At(time.Unix(1e9, 0), 1, 1)
		m.Predict(&req, cs)
		return cs[0].Prediction
	}
	ms := func(v float64) time.Duration { return time.Duration(v * 1e6) }
	near := func(want, got time.Duration, what string) { t.Helper(); assert.InDelta(t, want, got, 1e3, what) }
	const first = 100 + 2500 + 2000*2000/30_000. + 300 + 1.5*4*(0.5+2.05)
	const each = 200 + 5*0.5 + 4*2.05 + 3.15
	p := predict(true)
	assert.Equal(t, endpick.TTFT|endpick.TPOT, p.Has)
	near(ms(first), p.TTFT, "TTFT")
	near(ms(first*1.5), p.TTFTUpper, "upper TTFT")
	near(ms(each), p.TPOT, "TPOT")
	near(ms(each*1.25), p.TPOTUpper, "upper TPOT")
	p = predict(false)
	assert.Equal(t, endpick.TTFT|endpick.E2E, p.Has)
	near(ms(first), p.TTFT, "TTFT")
	near(ms(first+300*each), p.E2E, "whole")
	near(ms((first+300*each)*1.5), p.E2EUpper, "upper whole")
	m.common.slow.log = math.Log(2)
	near(ms((first+300*each)*2), predict(false).E2EUpper, "upper whole")

	// A silent endpoint's wait is added; a prediction of days is cut to one day.
	e := m.endpoints.At(endpick.EndpointRef{Generation: 1})
	at := nanoseconds(time.Unix(1e9, 0))
	e.wait(at-9e9, 1)
	near(ms(first+9000), predict(true).TTFT, "silent")
	near(ms(each), predict(true).TPOT, "silent")
	near(ms(first+9000+300*each), predict(false).E2E, "silent")
	for range 10 {
		m.common.each[tokens] *= 1e3
	}
	assert.Equal(t, 24*time.Hour, predict(true).TTFT)
	assert.Equal(t, 24*time.Hour, predict(false).E2EUpper)
	m.common.each[tokens] = math.Inf(1)
	assert.Zero(t, predict(true).Has)
	m.common.labels = 0
	assert.Zero(t, predict(true).Has)
}

func paced(e *endpoint, at int64) {
	for range 50 {
		e.pace.Add(at, 5, 0.1)
	}
}

// Names of a batch are not retained after the request.
func TestDecisionsForget(t *testing.T) {
	m := fresh(t, 0)
	cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{ID: "a", Variant: "v"}, Ref: endpick.EndpointRef{Generation: 1}}}
	req := asked.At(time.Unix(1e9, 0), 1, 1)
	d := m.decide(&req, cs)
	d.at(&cs[0])
	variants := d.variants[:1]
	d.end()
	assert.Zero(t, variants[0], "or a kind that has given way would be held for good")
	assert.Equal(t, math.Exp(firstLog), (&bound{}).ratio())
}
