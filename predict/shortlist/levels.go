package shortlist

// level is predicted over estimated, for both latencies.
type level struct{ first, rest float64 }

var even = level{1, 1}

func (l level) times(by level) level { return level{l.first * by.first, l.rest * by.rest} }

func (l level) over(by level) level { return level{l.first / by.first, l.rest / by.rest} }

func (l level) plus(by level) level { return level{l.first + by.first, l.rest + by.rest} }

// towards moves l by one n-th of the way to another level.
func (l level) towards(to level, n float64) level {
	return level{l.first + (to.first-l.first)/n, l.rest + (to.rest-l.rest)/n}
}

// within limits l to meaningful values.
func (l level) within() level {
	bound := func(v float64) float64 { return min(max(v, leastRatio), mostRatio) }
	return level{bound(l.first), bound(l.rest)}
}

// matches is the number of kinds of match: none, and up to each quarter of the prompt.
const matches = 5

func matchOf(share float64) int {
	if !(share > 0) {
		return 0
	}
	return 1 + int(min(share*(matches-1), matches-2))
}

// levels are the means over a model's requests: of all endpoints, and by match relative to
// that.
type levels struct {
	all   level
	match [matches]level
	seen  [matches]float64 // requests with such candidates, up to memory
}

func newLevels() levels {
	l := levels{all: even}
	for m := range l.match {
		l.match[m] = even
	}
	return l
}

// whole returns the levels by match.
func (l *levels) whole() (by [matches]level) {
	for m := range by {
		by[m] = l.all.times(l.match[m])
	}
	return by
}

// shown sums up the predictions for one request by match: relative to the ratio of the
// endpoint, where that is known.
type shown struct {
	known, unknown [matches]level
	knew, others   [matches]float64 // numbers of endpoints
}

func (s *shown) add(next level, match int, e *ratio) {
	if e == nil {
		s.unknown[match] = s.unknown[match].plus(next)
		s.others[match]++
		return
	}
	s.known[match] = s.known[match].plus(next.over(level{float64(e.first), float64(e.rest)}))
	s.knew[match]++
}

// effect is what the request has in common for all endpoints, whatever their match: the
// mean over those with a known ratio, or over all if there are none.
func (s *shown) effect(l *levels) (level, bool) {
	of, count := &s.known, &s.knew
	if *count == ([matches]float64{}) {
		of, count = &s.unknown, &s.others
	}
	var sum level
	n := 0.0
	for m := range of {
		sum = sum.plus(of[m].over(l.match[m]))
		n += count[m]
	}
	return sum.over(level{n, n}), n > 0
}

// matches moves the levels of matches by what a request with that effect has shown.
func (s *shown) matches(l *levels, effect level) {
	for m := range l.match {
		if n := s.knew[m] + s.others[m]; n > 0 {
			l.seen[m] = min(l.seen[m]+1, memory)
			mean := s.known[m].plus(s.unknown[m]).over(level{n, n})
			l.match[m] = l.match[m].towards(mean.over(effect), l.seen[m]).within()
		}
	}
}
