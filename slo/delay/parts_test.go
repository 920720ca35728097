package delay

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

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

// The fit minimises the squared relative errors, with the prior as one more label for
// each part. The reference finds the point of zero slope, not below a hundredth of the prior, by Newton steps
// in any order.
func TestFitIsLeastSquares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prior := scaled(rapid.Float64Range(0.01, 1).Draw(t, "token"))
		var l linear
		l.each = prior
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
			least := prior[i] / 100
			if l.each[i] > least*1.001 && math.Abs(slope) > 1e-3*scale || l.each[i] <= least*1.001 && slope < -1e-3*scale || l.each[i] < least*0.999 {
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

// The fuller servers are the faster ones: of both kinds together, more context takes no time. Each kind finds that of
// its own.
func TestKindsAreFittedApart(t *testing.T) {
	l := &newMarginal(Config{}).learned
	for i := range 1000 {
		for k, step := range []float64{5, 20} {
			n := kindName{"m", strconv.Itoa(k)}
			l.kinds.admit(n, &l.common)
			batch := float64(20 - 18*k + i%7)
			l.label(n, &amounts{requests: 1, tokens: 100}, 10)
			l.label(n, &amounts{steps: 100, contexts: 100 * 5000 * batch}, 100*(step+0.3*batch))
		}
	}
	for k, step := range []float64{5, 20} {
		x := l.find(kindName{"m", strconv.Itoa(k)}).each
		assert.InEpsilon(t, step, x[steps], 0.1)
		assert.InEpsilon(t, 0.3, 5000*x[contexts], 0.1)
	}
	assert.Less(t, l.common.each[contexts], 1e-6)
}

// An idle server computes some prompt tokens while it reads its weights, here up to 247 in 6.6 ms. Neither its
// steps nor who is in them are taken for longer or shorter because of that.
func TestWhatReadingTheWeightsHides(t *testing.T) {
	m := newMarginal(Config{})
	k := &m.learned.common
	for i := range 1000 {
		var v view
		v.look(&endpick.Request{InputTokens: 8000}, &endpick.Candidate{Endpoint: &endpick.Endpoint{}, PrefixTokens: 7900 - i%800}, nil, k, 100)
		m.learned.label(kindName{}, &v.first, 2+max(6.6, 0.0267*v.fresh))
		batch := float64(1 + i%3)
		m.learned.label(kindName{}, &amounts{steps: 100, batches: 100 * batch, contexts: 100 * batch * 8000}, 100*(8.6+0.4*batch))
	}
	assert.InEpsilon(t, 8.6, k.each[steps], 0.01)
	assert.InEpsilon(t, 0.4, k.each[batches]+8000*k.each[contexts], 0.05)
}

// Lengths by hand: 300 before the first response; what comes without a guess has the mean of such,
// and guesses are right as often as they were.
func TestLengthsByHand(t *testing.T) {
	var l lengths
	l.start()
	of := func(guess int) float64 { return l.of(&endpick.Request{ExpectedOutputTokens: guess}) }
	const keep = 1 - 1.0/memory
	assert.InDelta(t, 300, of(0), 1e-9)
	assert.InDelta(t, 50, of(50), 1e-9)
	l.add(0, 200, 1/32.) // a vote; the assumption counts as eight like that
	assert.InDelta(t, (8*300*keep+200)/(8*keep+1), of(0), 1e-9)
	assert.InDelta(t, 50, of(50), 1e-9, "guesses and means are two things")
	l.add(1000, 500, 1/64.)
	assert.InDelta(t, 500*(8*keep+0.25)/(8*keep+0.5), of(500), 1e-9)
	assert.InDelta(t, (8*300*keep+200)/(8*keep+1), of(0), 1e-9)
	assert.InDelta(t, 1, of(1), 1e-9, "no response has none")
	assert.InDelta(t, 3000*math.Exp(1-0.0075), of(1<<30), 0.1, "nor more than ten times what is usual")
	assert.Equal(t, of(800), l.of(&endpick.Request{ExpectedOutputTokens: 1600, Responses: 2}))
}

// Upper bounds come from the errors of each prediction: TTFT's from late first tokens,
// TPOT's from slow tokens, E2E's from the worse of both.
func TestPredictionsByHand(t *testing.T) {
	m := newMarginal(Config{})
	m.learned.common.labels = 1
	m.learned.common.late.log, m.learned.common.slow.log = math.Log(1.5), math.Log(1.25)
	length := asked.InputTokens
	predict := func(stream bool) endpick.Prediction {
		cs := []endpick.Candidate{busy}
		cs[0].Endpoint, cs[0].Ref = &endpick.Endpoint{ID: "a"}, endpick.EndpointRef{Generation: 1}
		req := asked
		req.Stream, req.InputTokens = stream, length
		req = req.At(time.Unix(1e9, 0), 1, 1)
		m.Predict(&req, cs)
		return cs[0].Prediction
	}
	ms := func(v float64) time.Duration { return time.Duration(v * 1e6) }
	near := func(want, got time.Duration, what string) { assert.InDelta(t, want, got, 1e3, what) }
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
	m.learned.common.slow.log = math.Log(2)
	near(ms((first+300*each)*2), predict(false).E2EUpper, "upper whole")

	// A prediction of days is cut to one day.
	for range 10 {
		m.learned.common.each[tokens] *= 1e3
	}
	assert.Equal(t, 24*time.Hour, predict(true).TTFT)
	assert.Equal(t, 24*time.Hour, predict(false).E2EUpper)
	length = 0
	assert.Zero(t, predict(true).Has, "the prompt's length is not known")
	length = 1
	assert.NotZero(t, predict(true).Has)
	m.learned.common.each[tokens] = math.Inf(1)
	assert.Zero(t, predict(true).Has)
	m.learned.common.each[tokens], m.learned.common.labels = 1, 0
	assert.Zero(t, predict(true).Has, "nothing is measured")
}

// Names of a batch are not retained after the request.
func TestDecisionsForget(t *testing.T) {
	m := newMarginal(Config{})
	cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{ID: "a", Variant: "v"}, Ref: endpick.EndpointRef{Generation: 1}}}
	req := asked.At(time.Unix(1e9, 0), 1, 1)
	d := m.decide(&req, cs)
	d.at(&cs[0])
	variants := d.variants[:1]
	d.end()
	assert.Zero(t, variants[0], "or a kind that has given way would be held for good")
	assert.Equal(t, math.Exp(firstLog), (&bound{}).ratio())
}
