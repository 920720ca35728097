// Package pace tells a server from others of its kind that are faster or slower: by
// what its requests take against what they were expected to take.
package pace

import (
	"math"

	"github.com/endpick/endpick/internal/portable"
)

// Pace is what is known of one server. The zero value knows nothing: the server is as
// fast as its kind. It is not safe for concurrent use. Times are in nanoseconds.
//
// A label is the logarithm of measured over expected, and how far such a number is off
// by chance. The estimate is their mean, weighed by precision, over the last hundred or
// so. What lies within five standard errors of nothing is taken for nothing, and the
// rest is reduced by as much: noise would otherwise outweigh what requests differ by.
//
// # What is not asked is forgotten
//
// A server that is known to be slow is asked for little, and so nothing would be
// learned of its recovery. What was measured is therefore counted only with a belief
// that fades in the time without a label, as e^(−t²): to 4/5 in five seconds, to a third
// in ten, to nothing in thirty. It is expected to do what its kind does then, and is
// asked again. A slow server so costs one request in some twenty seconds, sooner if
// the others have got that busy.
//
// A label moves the odds by how much likelier it is if the server is as slow as it was
// than if it is like its kind again. One that agrees with the past therefore restores
// the belief in it, one that says nothing, being too noisy, does not, and after a pause
// one is enough to disprove it. Three in a row that fit nothing disprove it too.
type Pace struct {
	labels, weight, sum, squares float64
	held                         float64 // the belief at that time
	at                           int64
	strange                      int     // labels in a row
	known                        float64 // shrunk, as the last label has left it
	more                         float64 // e^known − 1
}

const (
	keep     = 1 - 1.0/100
	fade     = 10e9 // nanoseconds in which the belief in what is not asked falls to 1/e
	asleep   = 0.05 // belief, however long nothing was asked
	most     = 0.95 // belief; one in twenty labels may as well come from something else
	least    = 0.1  // below it what was measured is forgotten
	evidence = 4    // the most that one label says for or against, in natural logarithm
	few      = 4    // labels below which nothing is said
	errors   = 5    // standard ones
	noise    = 0.1  // labels are not better than that
	furthest = 3    // of a label: twenty times as slow, or as fast
	// forgotten is after how many nanoseconds e^(−t²) of the most is less than rounding.
	forgotten = 7 * int64(fade)
)

// Add takes in a label: measured over expected, of which noise, in natural
// logarithm, is the standard deviation that is usual.
func (p *Pace) Add(now int64, ratio, deviation float64) {
	if !(ratio > 0) {
		return
	}
	y := min(max(portable.Ln(ratio), -furthest), furthest)
	deviation = max(deviation, noise)
	weight := 1 / float64(deviation*deviation)
	variance := max(p.excess()/weight, noise*noise)
	held := float64(most) // that there is nothing to say
	if m := p.known; m != 0 {
		held = max(p.belief(now), asleep)
		// ln of N(y; m, σ) over N(y; 0, σ).
		says := float64(m*(2*y-m)) / (2 * variance)
		odds := held / (1 - held) * portable.Exp(min(max(says, -evidence), evidence))
		held = min(odds/(1+odds), most)
	}
	if d := y - p.mean(); float64(d*d) > errors*errors*variance {
		p.strange++
	} else {
		p.strange = 0
	}
	if p.labels == 0 || held < least || p.strange == 3 {
		*p = Pace{} // and the belief does not count before there are a few labels again
	}
	p.labels = float64(p.labels*keep) + 1
	p.weight = float64(p.weight*keep) + weight
	p.sum = float64(p.sum*keep) + float64(weight*y)
	p.squares = float64(p.squares*keep) + float64(weight*y*y)
	p.held, p.at = held, now
	p.known = p.shrunk()
	p.more = portable.Exp(p.known) - 1
}

// Until is from when on Factor is 1 if nothing else is added; before everything where it
// is 1 already.
func (p *Pace) Until() int64 {
	if p.known == 0 {
		return math.MinInt64
	}
	return p.at + forgotten
}

// Factor is how much longer than its kind the server is expected to take: 1 if
// nothing else is known. While an answer is awaited nothing fades, since it will tell:
// now is then the time since when it is.
func (p *Pace) Factor(now int64) float64 {
	if now >= p.Until() {
		return 1
	}
	return 1 + float64(p.more*p.belief(now))
}

// Mean is the mean of the labels as they are, once there are some.
func (p *Pace) Mean() (ratio float64, ok bool) {
	return portable.Exp(p.mean()), p.enough()
}

func (p *Pace) enough() bool { return p.labels >= few*keep*keep*keep }

func (p *Pace) belief(now int64) float64 {
	t := min(float64(max(now-p.at, 0))/fade, 10)
	return p.held * portable.Exp(-float64(t*t))
}

func (p *Pace) mean() float64 {
	if p.weight == 0 {
		return 0
	}
	return p.sum / p.weight
}

// excess is by how much the variance of this server's labels is above what they were
// said to have; below 1 if the servers of its kind differ.
func (p *Pace) excess() float64 {
	m := p.mean()
	return (max(p.squares-float64(p.weight*m*m), 0) + few) / (p.labels + few)
}

// shrunk is the mean as far as it is certain.
func (p *Pace) shrunk() float64 {
	if !p.enough() {
		return 0
	}
	m := p.mean()
	square := float64(m * m)
	uncertain := errors * errors * p.excess() / p.weight
	if square <= uncertain {
		return 0
	}
	return m * (1 - uncertain/square)
}
