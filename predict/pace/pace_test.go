package pace_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick/predict/pace"
)

const second = int64(1e9)

// labelled returns a pace after n labels, one a second, and the time of the last.
func labelled(n int, ratio, deviation float64) (p pace.Pace, now int64) {
	for i := range n {
		now += second
		wave := math.Exp(deviation * math.Sin(float64(i)*2))
		p.Add(now, ratio*wave, deviation)
	}
	return p, now
}

func TestPaceIsWhatIsCertain(t *testing.T) {
	for _, c := range []struct {
		name             string
		labels           int
		ratio, deviation float64
		least, most      float64
	}{
		{"nothing is known", 0, 1, 0.1, 1, 1},
		{"too few", 3, 10, 0.1, 1, 1},
		{"like its kind", 100, 1, 0.3, 1, 1},
		{"within the noise", 20, 1.3, 0.5, 1, 1},
		{"ten times as slow", 4, 10, 0.1, 7, 10},
		{"noisy and ten times as slow", 12, 10, 0.5, 6, 10},
		{"half as fast", 50, 2, 0.1, 1.85, 2},
		{"twice as fast", 50, 0.5, 0.1, 0.5, 0.58},
		{"no more than twenty times", 50, 1e9, 0.1, 15, 20.1},
		{"no label", 50, math.NaN(), 0.1, 1, 1},
		{"none either", 50, 0, 0.1, 1, 1},
	} {
		p, now := labelled(c.labels, c.ratio, c.deviation)
		got := p.Factor(now)
		assert.GreaterOrEqual(t, got, c.least, c.name)
		assert.LessOrEqual(t, got, c.most, c.name)
	}
}

// For a server that was left without requests, one label is enough to see that
// it is ordinary again; otherwise it takes two.
func TestRecovery(t *testing.T) {
	p, now := labelled(100, 10, 0.1)
	now += 20 * second
	p.Add(now, 1, 0.1)
	assert.Equal(t, 1.0, p.Factor(now))

	p, now = labelled(100, 10, 0.1)
	p.Add(now+1, 1, 0.1)
	assert.Greater(t, p.Factor(now+1), 1.5, "it may have been chance")
	p.Add(now+2, 1, 0.1)
	assert.Equal(t, 1.0, p.Factor(now+2))

	p, now = labelled(100, 10, 0.1)
	now += 71 * second
	assert.Equal(t, 1.0, p.Factor(now))
	p.Add(now, 10, 0.1)
	assert.Greater(t, p.Factor(now), 5.0, "it is as slow as before")
}

// Three strange labels disprove what is known only if they come in a row; and one of 1.6 times the
// others is not strange, however much alike these are.
func TestWhatIsStrange(t *testing.T) {
	for _, every := range []int{1, 5} {
		for _, ratio := range []float64{16, 20} {
			p, now := labelled(100, 10, 0)
			least := p.Factor(now)
			for i := range 20 {
				now += second
				if i%every == every-1 {
					p.Add(now, ratio, 0.1)
				} else {
					p.Add(now, 10, 0.1)
				}
				least = min(least, p.Factor(now))
			}
			assert.Equal(t, every == 1 && ratio == 20, least == 1, "one in %d is %v", every, ratio)
		}
	}
}

// A server that becomes slow is recognised after a few labels, however long it was not.
func TestDecline(t *testing.T) {
	p, now := labelled(1000, 1, 0.1)
	for range 6 {
		now += second
		p.Add(now, 10, 0.1)
	}
	assert.Greater(t, p.Factor(now), 6.0)
}
