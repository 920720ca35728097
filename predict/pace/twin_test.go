package pace_test

import (
	"math"
	"testing"

	"github.com/endpick/endpick/predict/pace"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// naive follows Pace's comment and computes everything from all labels each time.
type naive struct {
	logs, weights []float64 // since the past was last discarded
	belief        float64   // after the newest label
	at            int64
	strange       int
}

// sum gives the newest label full weight, and each one before it a hundredth less.
func (n *naive) sum(of func(i int) float64) (sum float64) {
	for i := range n.logs {
		sum += of(i) * math.Pow(0.99, float64(len(n.logs)-1-i))
	}
	return sum
}

func (n *naive) weight() float64 { return n.sum(func(i int) float64 { return n.weights[i] }) }

func (n *naive) mean() float64 {
	if len(n.logs) == 0 {
		return 0
	}
	return n.sum(func(i int) float64 { return n.weights[i] * n.logs[i] }) / n.weight()
}

// excess is the variance of the labels over the one they were said to have, as if
// there were four more labels with exactly that.
func (n *naive) excess() float64 {
	m := n.mean()
	spread := n.sum(func(i int) float64 { return n.weights[i] * (n.logs[i] - m) * (n.logs[i] - m) })
	return (spread + 4) / (n.sum(func(int) float64 { return 1 }) + 4)
}

// known is the mean, less what may be chance.
func (n *naive) known() float64 {
	if len(n.logs) < 4 {
		return 0
	}
	error := math.Sqrt(n.excess() / n.weight()) // the standard error
	m := n.mean()
	if math.Abs(m) <= 5*error {
		return 0
	}
	return m * (1 - (5*error/m)*(5*error/m))
}

func (n *naive) believed(now int64) float64 {
	t := max(float64(now-n.at)/10e9, 0)
	return n.belief * math.Exp(-t*t)
}

func (n *naive) add(now int64, ratio, deviation float64) {
	if !(ratio > 0) {
		return
	}
	y := min(max(math.Log(ratio), -3), 3)
	deviation = max(deviation, 0.1)
	sigma := math.Sqrt(max(n.excess()*deviation*deviation, 0.01))
	belief, known := 0.95, n.known()
	if known != 0 {
		belief = max(n.believed(now), 0.05)
		slow := -(y - known) * (y - known) / (2 * sigma * sigma) // log-likelihoods
		odds := belief / (1 - belief) * math.Exp(min(max(slow-(-y*y/(2*sigma*sigma)), -4), 4))
		belief = min(odds/(1+odds), 0.95)
	}
	n.strange++
	if math.Abs(y-n.mean()) <= 5*sigma || len(n.logs) == 0 { // or there is no past to fit
		n.strange = 0
	}
	if belief < 0.1 || n.strange == 3 {
		*n, belief = naive{}, 0.95
	}
	n.logs, n.weights = append(n.logs, y), append(n.weights, 1/(deviation*deviation))
	n.belief, n.at = belief, now
}

func (n *naive) factor(now int64) float64 { return 1 + (math.Exp(n.known())-1)*n.believed(now) }

func TestPaceTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pace.Pace
		n := naive{}
		now := int64(1e18)
		slow := rapid.Float64Range(-4, 4).Draw(t, "slow")
		for range 150 {
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				now += rapid.Int64Range(-5e9, 40e9).Draw(t, "pause")
			case 1:
				slow = rapid.Float64Range(-4, 4).Draw(t, "slow")
			default:
				now += rapid.Int64Range(0, 2e9).Draw(t, "passed")
			}
			deviation := rapid.SampledFrom([]float64{0, 0.1, 0.15, 0.5, 2}).Draw(t, "deviation")
			ratio := math.Exp(slow + deviation*rapid.Float64Range(-2, 2).Draw(t, "noise"))
			if rapid.IntRange(0, 15).Draw(t, "no label") == 0 {
				ratio = rapid.SampledFrom([]float64{0, -1, math.NaN()}).Draw(t, "odd")
			}
			p.Add(now, ratio, deviation)
			n.add(now, ratio, deviation)

			later := now + rapid.Int64Range(-10e9, 60e9).Draw(t, "later")
			assert.InEpsilon(t, n.factor(later), p.Factor(later), 1e-9)
			mean, ok := p.Mean()
			assert.Equal(t, len(n.logs) >= 4, ok)
			if len(n.logs) > 0 {
				assert.InEpsilon(t, math.Exp(n.mean()), mean, 1e-9)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	})
}

// A server that becomes slow is recognised after a few labels, however long it was not.
func TestDecline(t *testing.T) {
	var p pace.Pace
	now, second := int64(0), int64(1e9)
	for i := range 1006 {
		now += second
		ratio := math.Exp(0.1 * math.Sin(float64(i)*2))
		if i >= 1000 {
			ratio = 10
		}
		p.Add(now, ratio, 0.1)
	}
	assert.Greater(t, p.Factor(now), 6.0)
}
