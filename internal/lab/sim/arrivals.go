package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arrivals is an open-loop process of arrivals.
type Arrivals struct {
	// Stages follow one another; the process ends with the last one. A single
	// stage without a Duration lasts for ever.
	Stages []Stage
	// CV is the coefficient of variation of the time between arrivals at a constant
	// rate: 0 is 1, the Poisson process; anything else a gamma process, burstier
	// above 1, more regular below.
	CV float64
}

// Stage is a stretch of a process of arrivals.
type Stage struct {
	Duration time.Duration
	Rate     float64 // requests per second
}

// ConstantRate is a Poisson process without an end.
func ConstantRate(perSecond float64) Arrivals { return Arrivals{Stages: []Stage{{Rate: perSecond}}} }

// Ladder alternates between two rates, beginning with low, for steps stages of
// equal duration.
func Ladder(low, high float64, steps int, each time.Duration) Arrivals {
	var a Arrivals
	for i := range steps {
		rate := low
		if i%2 == 1 {
			rate = high
		}
		a.Stages = append(a.Stages, Stage{Duration: each, Rate: rate})
	}
	return a
}

// Scaled multiplies all rates.
func (a Arrivals) Scaled(factor float64) Arrivals {
	stages := make([]Stage, len(a.Stages))
	for i, s := range a.Stages {
		s.Rate *= factor
		stages[i] = s
	}
	a.Stages = stages
	return a
}

// clock draws arrival times. Gaps come from a process of rate 1, whose time is
// stretched by the current rate.
type clock struct {
	arrivals Arrivals
	random   *rand.Rand
	stage    int
	start    float64 // of the stage, in seconds
	into     float64 // seconds into the stage
}

func newClock(a Arrivals, random *rand.Rand) *clock { return &clock{arrivals: a, random: random} }

// next returns the time of the next arrival; false if the process has ended.
func (c *clock) next() (time.Duration, bool) {
	work := c.gap()
	for c.stage < len(c.arrivals.Stages) {
		s := c.arrivals.Stages[c.stage]
		length := s.Duration.Seconds()
		if length == 0 {
			c.into += work / s.Rate
			return seconds(c.start + c.into), true
		}
		if rest := s.Rate * (length - c.into); work > rest {
			work -= rest
			c.stage++
			c.start += length
			c.into = 0
			continue
		}
		c.into += work / s.Rate
		return seconds(c.start + c.into), true
	}
	return 0, false
}

// gap draws the time to the next arrival at rate 1.
func (c *clock) gap() float64 {
	cv := c.arrivals.CV
	if cv == 0 || cv == 1 {
		return c.random.ExpFloat64()
	}
	shape := 1 / (cv * cv)
	return gamma(c.random, shape) / shape
}

// gamma draws from the gamma distribution of this shape and scale 1 (Marsaglia and
// Tsang, A simple method for generating gamma variables, 2000).
func gamma(random *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(random, shape+1) * math.Pow(1-random.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := random.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-random.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// seconds converts a number of seconds, clamped to possible durations.
func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), math.MaxInt64/2))
}
