package delay

import (
	"cmp"
	"math"
)

// mean is a mean that forgets: it counts the newest labels, up to its memory.
type mean struct{ sum, weight float64 }

// memory is how many labels count: some minutes of a busy kind of server.
const memory = 1000

func (m *mean) add(v, vote float64) { m.fade(v, vote, memory) }

// recent is the memory of means over estimates that are still improving.
const recent = 100

func (m *mean) fade(v, weight, memory float64) {
	keep := 1 - 1/memory
	m.sum = m.sum*keep + weight*v
	m.weight = m.weight*keep + weight
}

func (m *mean) or(v float64) float64 {
	if m.weight == 0 {
		return v
	}
	return m.sum / m.weight
}

// fading counts what happened in the last ten seconds or so: an event counts 1, and 1/e ten
// seconds later.
type fading struct {
	count float64
	last  int64
}

// recently is in nanoseconds. How often kinds and models are used fades with the uses of all
// instead: each is so much time that the last thousand count.
const recently, oneUse = 10e9, recently / memory

func (f *fading) at(now int64) float64 {
	return f.count * math.Exp(-float64(max(now-f.last, 0))/recently)
}

func (f *fading) add(now int64) { f.count, f.last = f.at(now)+1, now }

// rate is how often per millisecond.
func (f *fading) rate(now int64) float64 { return f.at(now) / (recently / 1e6) }

// clip cuts values to what is usual for their kind, from the 1st to the 99th percentile: one
// absurd value counts no more than a large one. Percentiles follow a change within some dozens
// of values: one outside moves its bound by a step, one inside moves it back by a hundredth.
type clip struct {
	low, high float64 // natural logarithms
	known     bool
}

const clipStep = 0.25

func (q *clip) of(v float64) float64 {
	y := math.Log(max(v, 1e-6))
	if !q.known {
		*q = clip{low: y - 1, high: y + 1, known: true}
	}
	cut := math.Exp(min(max(y, q.low), q.high))
	if q.high -= clipStep / 100; y > q.high {
		q.high += clipStep
	}
	if q.low += clipStep / 100; y < q.low {
		q.low -= clipStep
	}
	return cut
}

// votes weighs what tenants contribute to what all of them share: a tenant has one vote,
// however many of the last answers were its own.
type votes struct {
	last [voters]uint64 // hashes of tenants; 0: not yet anybody
	next int
}

const voters = 32

// leastVote is that of a tenant who is alone.
const leastVote = 1.0 / voters

// of is the weight of one more answer for a tenant. At first, all before it count as its own.
func (v *votes) of(tenant uint64) float64 {
	v.last[v.next] = tenant
	v.next = (v.next + 1) % voters
	n := 0.0
	for _, t := range v.last {
		if t == tenant || t == 0 {
			n++
		}
	}
	return 1 / n
}

// bound tracks the 90th percentile of measured over expected: up by nine steps
// for a ratio above it, down by one step for one below.
type bound struct{ log float64 }

const (
	boundStep = 0.02
	firstLog  = 0.4 // a ratio of 1.5
	mostLog   = 3   // of 20
)

func (b *bound) add(ratio float64) {
	b.log = cmp.Or(b.log, firstLog)
	if ratio > math.Exp(b.log) {
		b.log += 0.9 * boundStep
	} else {
		b.log -= 0.1 * boundStep
	}
	b.log = min(max(b.log, boundStep), mostLog)
}

// deviation is the standard deviation of the logarithm of these ratios: nine in
// ten values of a normal distribution are below 1.28 standard deviations.
func (b *bound) deviation() float64 { return max(b.log, boundStep) / 1.28 }

func (b *bound) ratio() float64 { return math.Exp(cmp.Or(b.log, firstLog)) }
