package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// copies says which part of a request's computation later requests share.
//
// What a candidate lacks although another one holds it, is a copy when it has been computed
// there. As long as one server is a better place than another, later requests with the same
// beginning have the same choice, and only the first of them pays. So a token that m of them
// are expected to use there counts as 1/(1+m) tokens where its price is borne by others.
type copies struct {
	deepest int     // tokens of the prompt that some candidate holds; the most of all
	holders int     // how many of them do
	part    float64 // m/(1+m)
}

// add counts a candidate that holds so many tokens.
func (s *copies) add(depth int) {
	switch {
	case depth > s.deepest:
		s.deepest, s.holders = depth, 1
	case depth == s.deepest:
		s.holders++
	}
}

// expect works out how many uses of a copy are to be expected: of as many as there were lately,
// less a standard deviation, each holder gets its part, and so does the one that will be another.
func (s *copies) expect(u *uses, req *endpick.Request, now int64) {
	n := u.recent(blockAt(req, s.deepest), now)
	m := max(n-math.Sqrt(n), 0) / float64(s.holders+1)
	s.part = m / (1 + m)
}

// shared is σ: which part of so many new tokens on a candidate others pay for. A copy has to stay
// for that: where running requests use more than half of the memory, others would be evicted for
// it, or it for others, and it would have to be computed again and again.
func (d *decision) shared(c *endpick.Candidate, fresh float64) float64 {
	s := &d.copies
	if c.KVUsage > mostIdle {
		return 0
	}
	return min(float64(s.deepest-max(c.PrefixTokens, 0))/fresh, 1) * s.part
}

// blockAt is the last block of the prompt's beginning of that many tokens; 0: unknown.
func blockAt(req *endpick.Request, depth int) uint64 {
	at := int(math.Ceil(float64(depth)/req.TokensPerBlock()-1e-6)) - 1
	if at < 0 || at >= len(req.Blocks) {
		return 0
	}
	return req.Blocks[at]
}

// uses counts how often beginnings of prompts were asked for recently, in a table of fixed
// size. A client can only count up what it sends; and by taking places in the table, only
// make others count as seldom used.
type uses [8192]use

type use struct {
	block uint64 // the last one
	count fading
}

// add counts a use.
func (u *uses) add(block uint64, now int64) {
	e := &u[block%uint64(len(u))]
	switch {
	case block == 0:
	case e.block == block:
		e.count.add(now)
	case e.count.at(now) < 1:
		*e = use{block: block}
		e.count.add(now)
	}
}

// recent is how many uses there were.
func (u *uses) recent(block uint64, now int64) float64 {
	e := &u[block%uint64(len(u))]
	if block == 0 || e.block != block {
		return 0
	}
	return e.count.at(now)
}
