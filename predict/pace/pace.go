// Package pace detects servers that are faster or slower than others of their kind,
// by comparing how long their requests take with how long they were expected to
// take.
package pace

import "math"

// Pace is what is known about one server. The zero value knows nothing: the server is as
// fast as its kind. It is not safe for concurrent use. Times are in nanoseconds.
//
// A label is the logarithm of measured over expected, with its standard deviation. The
// estimate is the mean of the last hundred or so, weighted by precision. Means within
// five standard errors of zero count as zero, and others are reduced by as much:
// otherwise noise would outweigh the differences between requests.
//
// # What is not measured is forgotten
//
// A server that is known to be slow gets few requests, so its recovery would go
// unnoticed. Therefore measurements count with a belief that fades in the time without a
// label, as e^(−t²): to 4/5 in five seconds, to a third in ten, to nothing in thirty.
// Then the server is expected to be like its kind, and used again. So a slow server
// costs one request in some twenty seconds, or more if the others have become that busy.
//
// A label changes the odds by how much likelier it is if the server is as slow as before
// than if it is like its kind. So one that agrees with the past restores the belief in
// it; one that is too noisy does not; and after a pause one is enough to disprove it.
// Three in a row that fit neither disprove it too.
type Pace struct {
	labels, weight, sum, squares float64
	believed                     float64 // belief at that time
	at                           int64
	strange                      int     // labels in a row
	known                        float64 // shrunk, after the last label
	more                         float64 // e^known − 1
}

const (
	keep     = 1 - 1.0/100
	fade     = 10e9 // nanoseconds in which the belief falls to 1/e without labels
	asleep   = 0.05 // belief, however long without labels
	most     = 0.95 // belief; one in twenty labels may have another cause
	least    = 0.1  // below it measurements are forgotten
	evidence = 4    // the most that one label counts for or against, as a natural logarithm
	few      = 4    // with fewer labels the pace is unknown
	certain  = 5    // standard errors
	noise    = 0.1  // the least standard deviation of a label
	furthest = 3    // the largest label: twenty times as slow, or as fast
	// forgotten is the time in nanoseconds after which e^(−t²) of the most is below rounding.
	forgotten = 7 * int64(fade)
)

// Add adds a label: measured over expected, and its usual standard deviation as
// a natural logarithm.
func (p *Pace) Add(now int64, ratio, deviation float64) {
	if !(ratio > 0) {
		return
	}
	y := min(max(math.Log(ratio), -furthest), furthest)
	deviation = max(deviation, noise)
	weight := 1 / (deviation * deviation)
	variance := max(p.excess()/weight, noise*noise)
	believed := float64(most) // the belief that nothing is different
	if m := p.known; m != 0 {
		believed = max(p.belief(now), asleep)
		// ln of N(y; m, σ) over N(y; 0, σ).
		slower := m * (2*y - m) / (2 * variance)
		odds := believed / (1 - believed) * math.Exp(min(max(slower, -evidence), evidence))
		believed = min(odds/(1+odds), most)
	}
	if d := y - p.mean(); d*d > certain*certain*variance {
		p.strange++
	} else {
		p.strange = 0
	}
	if p.labels == 0 || believed < least || p.strange == 3 {
		*p = Pace{} // until there are a few labels again, the belief does not count
	}
	p.labels = p.labels*keep + 1
	p.weight = p.weight*keep + weight
	p.sum = p.sum*keep + weight*y
	p.squares = p.squares*keep + weight*y*y
	p.believed, p.at = believed, now
	p.known = p.shrunk()
	p.more = math.Exp(p.known) - 1
}

// Factor is how much longer than its kind the server is expected to take; 1 if nothing
// is known. While waiting for an answer nothing fades, because the answer will tell:
// now is then the start of the wait.
func (p *Pace) Factor(now int64) float64 {
	if p.known == 0 || now >= p.at+forgotten {
		return 1
	}
	return 1 + p.more*p.belief(now)
}

// Mean is the unshrunk mean of the labels, once there are some.
func (p *Pace) Mean() (ratio float64, ok bool) {
	return math.Exp(p.mean()), p.enough()
}

func (p *Pace) enough() bool { return p.labels >= few*keep*keep*keep }

func (p *Pace) belief(now int64) float64 {
	t := min(float64(max(now-p.at, 0))/fade, 10)
	return p.believed * math.Exp(-(t * t))
}

// mean is NaN before the first label: no comparison with it holds.
func (p *Pace) mean() float64 { return p.sum / p.weight }

// excess is the ratio of the variance of this server's labels to their stated
// variance; it is below 1 if the servers of its kind differ.
func (p *Pace) excess() float64 {
	m := p.mean()
	return (max(p.squares-p.weight*m*m, 0) + few) / (p.labels + few)
}

// shrunk is the mean, reduced by its uncertainty.
func (p *Pace) shrunk() float64 {
	if !p.enough() {
		return 0
	}
	m := p.mean()
	square := m * m
	uncertain := certain * certain * p.excess() / p.weight
	if square <= uncertain {
		return 0
	}
	return m * (1 - uncertain/square)
}
