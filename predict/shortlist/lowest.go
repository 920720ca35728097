package shortlist

import (
	"math"

	"github.com/endpick/endpick"
)

// lowest keeps the candidates with the lowest cost, in a heap with the highest of
// them on top. Among equal ones it keeps those that MaxScore would pick.
type lowest struct {
	most  int
	items []item
	worst float64 // cost of the highest; infinite while there is room
}

type item struct {
	cost  float64
	draw  float64 // random tie-breaker; zero: not drawn yet
	index int32
}

// tie is the salt with which endpick.MaxScore breaks ties.
const tie = 0x7c6a91d05f3be284

func (l *lowest) begin(most int) {
	l.most, l.items, l.worst = most, l.items[:0], math.Inf(1)
}

// offer adds a candidate if its cost is one of the lowest so far. An item that is
// offered to several lists keeps its tie-breaker.
func (l *lowest) offer(req *endpick.Request, candidates []endpick.Candidate, it *item, cost float64) {
	if cost > l.worst {
		return
	}
	it.cost = cost
	l.take(req, candidates, it)
	if len(l.items) == l.most {
		l.worst = l.items[0].cost
	}
}

func (l *lowest) take(req *endpick.Request, candidates []endpick.Candidate, it *item) {
	if len(l.items) < l.most {
		l.items = append(l.items, *it)
		i := len(l.items) - 1
		for i > 0 {
			parent := (i - 1) / 2
			if !above(req, candidates, &l.items[i], &l.items[parent]) {
				break
			}
			l.items[i], l.items[parent] = l.items[parent], l.items[i]
			i = parent
		}
		return
	}
	items := l.items
	if !above(req, candidates, &items[0], it) {
		return
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(items) {
			break
		}
		if child+1 < len(items) && above(req, candidates, &items[child+1], &items[child]) {
			child++
		}
		if !above(req, candidates, &items[child], it) {
			break
		}
		items[i] = items[child]
		i = child
	}
	items[i] = *it
}

// above reports whether a is further from being chosen than b.
func above(req *endpick.Request, candidates []endpick.Candidate, a, b *item) bool {
	return a.cost > b.cost || a.cost == b.cost && drawnLess(req, candidates, a, b)
}

// drawnLess compares candidates of equal cost.
func drawnLess(req *endpick.Request, candidates []endpick.Candidate, a, b *item) bool {
	return a.drawn(req, candidates) < b.drawn(req, candidates)
}

func (it *item) drawn(req *endpick.Request, candidates []endpick.Candidate) float64 {
	if it.draw == 0 {
		it.draw = req.ChanceOf(tie, &candidates[it.index])
	}
	return it.draw
}
